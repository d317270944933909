"""Plays a recorded log into a new session, as an agent that lived through it would have called the daemon.

The one rule: every event goes through the call that an agent would have used for it, and a frame ends where a call
waited for the disk. What the daemon writes by itself (closers, end-seeds) is brought about, not sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.canonical import canonical
from support.rpc import CallRefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interop.recorded import Recorded
    from support.daemon import DaemonProcess

Event = dict[str, Any]

_CLOSER_ID = "interrupted-tool-result-"
_STREAMED = ("assistant/chunk", "assistant/message")
_APPENDED_AT = 11  # events; agents append as they go, and this makes some batches of several calls


class RefusedError(Exception):
    """The daemon refused a call; `rule` says why."""

    def __init__(self, error: CallRefusedError) -> None:
        super().__init__(str(error))
        self.rule = str(error.facts.get("rule", error.kind))


class Player:
    """One session being recorded anew.

    Attributes:
        batches: How many events each frame after the header must hold.
        session_id: The new session's.
    """

    def __init__(self, daemon: DaemonProcess, log: Recorded, session_id: str) -> None:
        self.session_id = session_id
        self.batches: list[int] = []
        self._daemon = daemon
        self._header: Event = log.facts["header"]
        self._connection = daemon.connect()
        self._writer = ""
        self._held: list[Event] = []  # not sent yet
        self._next_seq = 0
        self._durable_seq = 0
        self._asked_in_step = False
        self._has_header = (
            False  # a few logs have none: no model was ever asked, so neither is the checkpoint
        )

    def play(self, events: Sequence[Event]) -> None:
        """Play all events and close the session.

        Raises:
            RefusedError: One of them is not for a client to append.
        """
        try:
            self._play(events)
        except CallRefusedError as error:
            raise RefusedError(error) from error
        finally:
            self._connection.close()

    def _play(self, events: Sequence[Event]) -> None:
        self._create()
        place = 0
        while place < len(events):
            closers = closers_at(events, place)
            if closers:
                self._crash(closers)
                place += closers
                if place < len(events) and events[place]["type"] == "session/end-seed":
                    place += 1  # recovery wrote it with the closers
                continue
            self._play_one(events[place])
            place += 1
        self._append()
        self._call("session.close")
        self._note_frame()

    def _create(self) -> None:
        names = ("cwd", "parentSession", "seedLength", "origin", "delegationDepth", "agentPreset")
        params = {key: self._header[key] for key in names if key in self._header}
        created = self._connection.call("session.create", id=self.session_id, **params)
        self._writer = created["writer"]
        self._call("session.flush")  # the bare log, so that a session without events is one too

    def _play_one(self, event: Event) -> None:
        match event["type"]:
            case "session/end-seed":
                self._resume()
            case "tool/call":
                self._start_tool(event)
            case "turn/end":
                reason = event["data"]["reason"]
                self._checkpoint("turnEnd", 1, reason=reason, time=event["time"])
            case "step/start":
                self._asked_in_step = False
                self._hold(event)
            case "step/end":
                self._hold(event)
                self._checkpoint("postStep")
            case "request/header":
                self._has_header = True
                self._hold(event)
            case kind if kind in _STREAMED and self._has_header and not self._asked_in_step:
                self._checkpoint("request")
                self._asked_in_step = True
                self._hold(event)
            case _:
                self._hold(event)

    def _hold(self, event: Event) -> None:
        self._held.append({key: value for key, value in event.items() if key != "seq"})
        if len(self._held) >= _APPENDED_AT:
            self._append()

    def _append(self) -> None:
        held, self._held = self._held, []
        if held:
            answer = self._call("session.append", events=held, expectedSeq=self._next_seq)
            assert answer["firstSeq"] == self._next_seq
            assert not answer["duplicate"]
            self._next_seq = answer["nextSeq"]

    def _start_tool(self, event: Event) -> None:
        data = event["data"]
        asked = {key: data[key] for key in ("callId", "name", "arguments")}
        answer = self._checkpoint("tool", 1, time=event["time"], **asked)
        assert answer["decision"] == "DISPATCH"
        assert answer["callSeq"] == event["seq"]

    def _checkpoint(self, point: str, adds: int = 0, /, **params: Any) -> Any:
        """Take a checkpoint with what is held: the frame ends behind it."""
        held, self._held = self._held, []
        first = self._next_seq
        answer = self._call(f"checkpoint.{point}", events=held, expectedSeq=first, **params)
        assert answer["nextSeq"] == answer["durableSeq"] == first + len(held) + adds
        self._next_seq = answer["nextSeq"]
        self._note_frame()
        return answer

    def _note_frame(self) -> None:
        if self._next_seq > self._durable_seq:
            self.batches.append(self._next_seq - self._durable_seq)
            self._durable_seq = self._next_seq

    def _resume(self) -> None:
        """End the handle and open the session again: its new handle writes the end-seed."""
        self._append()
        self._call("session.close")
        self._note_frame()
        opened = self._connection.call("session.open", id=self.session_id, access="write")
        assert opened["recovery"] is None or opened["recovery"]["committed"]
        assert opened["session"]["nextSeq"] == self._next_seq + 1
        self._writer = opened["writer"]
        self._next_seq += 1

    def _crash(self, closers: int) -> None:
        """Lose the connection inside the turn, open the session again and recover it."""
        self._append()
        self._connection.close()
        self._note_frame()
        self._connection = self._daemon.connect()
        opened = self._open_until_free()
        assert not opened["recovery"]["committed"]
        assert len(opened["recovery"]["closers"]) == closers
        self._writer = opened["writer"]
        recovered = self._call("session.recover")
        assert recovered["committed"]
        assert recovered["repairs"] == opened["recovery"]["repairs"]
        assert recovered["nextSeq"] == self._next_seq + closers + 1
        self._next_seq = recovered["nextSeq"]
        self._note_frame()

    def _open_until_free(self) -> Any:
        """Open for writing; the daemon may not have seen yet that the old connection is gone."""
        while True:
            try:
                return self._connection.call("session.open", id=self.session_id, access="write")
            except CallRefusedError as error:
                if error.kind != "SESSION_BUSY":
                    raise

    def _call(self, method: str, /, **params: Any) -> Any:
        return self._connection.call(method, id=self.session_id, writer=self._writer, **params)


def closers_at(events: Sequence[Event], place: int) -> int:
    """Return how many closers of an interrupted turn stand at `place`."""
    for end in range(place, len(events)):
        event = events[end]
        data = event["data"]
        if event["type"] == "turn/end":
            return end + 1 - place if data["reason"]["kind"] == "interrupted" else 0
        is_result = event["type"] == "tool/result" and data["message"]["id"].startswith(_CLOSER_ID)
        if event["type"] != "step/end" and not is_result:
            return 0
    return 0


def is_of_the_daemon(event: Event) -> bool:
    """Whether the daemon says something of its own in an event: the time of an end-seed, the words of a closer."""
    if event["type"] == "tool/result":
        return bool(event["data"]["message"]["id"].startswith(_CLOSER_ID))
    return bool(event["type"] == "session/end-seed")


def without_what_the_daemon_says(events: Sequence[Event]) -> list[Event]:
    """Return the events with the words of closers and the times of end-seeds taken out."""
    return [_silenced(event) if is_of_the_daemon(event) else event for event in events]


def _silenced(event: Event) -> Event:
    if event["type"] == "session/end-seed":
        return {**event, "time": 0}
    data = event["data"]
    message = data["message"]
    block: Event = {**message["content"][0], "content": None}
    return {**event, "data": {**data, "message": {**message, "content": [block]}}}


def header_text(header: Event) -> str:
    """Return the header line of a log, with its time taken out."""
    keys = ("version", "id", "createdAt", "cwd", "parentSession", "seedLength", "origin")
    line: Event = {"type": "session"}
    for key in (*keys, "delegationDepth", "agentPreset"):
        if key in header:
            line[key] = 0 if key == "createdAt" else header[key]
    return canonical(line)
