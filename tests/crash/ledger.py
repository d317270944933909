"""What the writer of a session sent to a real daemon, and how much of it was called durable: the judge of a proof.

The one rule: it counts what arrived over the socket, and never asks the daemon what it has promised.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from support import events, turns
from support.verdicts import read_all

if TYPE_CHECKING:
    from support.rpc import Connection

_END_SEED = 1


class Ledger:
    """One session over the lives of its daemons.

    Attributes:
        session_id: Whose.
        sent: Every event that the daemon may have, in order.
        durable: How many of them it called durable.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.sent: list[events.Event] = []
        self.durable = 0
        self._turn = 0
        self._writer = ""
        self._waiting: list[int] = []
        self._closing = 0

    @property
    def handle(self) -> dict[str, Any]:
        """What every call of the writer names."""
        return {"id": self.session_id, "writer": self._writer}

    @property
    def waiting(self) -> int:
        """How many calls are not answered yet."""
        return len(self._waiting)

    def begin(self, one: Connection) -> None:
        """Create the session, or open it and end what was cut short; then begin a turn."""
        self._waiting.clear()
        if self._turn == 0:
            made = one.call("session.create", id=self.session_id, cwd="/w")
        else:
            made = one.call("session.open", id=self.session_id, access="write", takeover=True)
        self._writer = made["writer"]
        if self._turn:
            recovery = made["recovery"]
            if recovery is not None:
                if not recovery[
                    "committed"
                ]:  # a refused recover keeps its closers, to be written later
                    self._closing = len(recovery["closers"]) + _END_SEED
                one.call("session.recover", **self.handle)
            self._closing = 0
            self.sent = read_all(one, self.session_id)
            ended = [one["data"]["turn"] for one in self.sent if one["type"] == "turn/start"]
            self._turn = max([0, *ended])
        self._turn += 1
        self.send(one, *turns.opening(self._turn))
        self.collect(one)

    def send(self, one: Connection, *added: events.Event) -> None:
        """Ask for a durable checkpoint of these events, and do not wait for it."""
        self.sent += added
        self._waiting.append(one.send("checkpoint.request", **self.handle, events=list(added)))

    def chunk(self, one: Connection, text: str) -> None:
        """Ask for a checkpoint of a piece of text."""
        self.send(one, events.chunk(text, turn=self._turn))

    def collect(self, one: Connection) -> None:
        """Wait for the answers of all calls.

        Raises:
            CallRefusedError: One was refused.
        """
        while self._waiting:
            self._note(one.result(self._waiting[0]))

    def forget_waiting(self) -> None:
        """Wait no longer for calls whose answer was a refusal, or never comes."""
        self._waiting.clear()

    def collect_arrived(self, one: Connection) -> None:
        """Note the answers that have arrived by now, of a daemon that stands still or is gone."""
        one.socket.settimeout(0)
        with suppress(BlockingIOError, ConnectionRefusedError):
            while self._waiting:
                self._note(one.result(self._waiting[0]))

    def _note(self, result: dict[str, int]) -> None:
        self._waiting.pop(0)
        self.durable = max(self.durable, result["durableSeq"])

    def problems(self, one: Connection) -> list[str]:
        """What of the session is not as it must be: lost, changed or invented."""
        return self.compare(read_all(one, self.session_id))

    def compare(self, stored: list[events.Event]) -> list[str]:
        """What of the stored events is not as it must be."""
        name = self.session_id
        found: list[str] = []
        if [event["seq"] for event in stored] != list(range(len(stored))):
            found.append(f"{name}: seqs are skipped or doubled")
        if len(stored) < self.durable:
            found.append(f"{name}: {len(stored)} of {self.durable} durable events are there")
        if len(stored) > len(self.sent) + self._closing:
            found.append(f"{name}: {len(stored)} events, and {len(self.sent)} were sent")
        for place, (event, sent) in enumerate(zip(stored, self.sent, strict=False)):
            if (event["type"], event["data"]) != (sent["type"], sent["data"]):
                found.append(f"{name}: event {place} is not the one that was sent")
                break
        return found
