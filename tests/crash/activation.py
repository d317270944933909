"""Promise 16: under socket activation a daemon's death is a pause for its clients, and nothing else.

This process holds the listening socket, as the service manager does, and starts the daemon again whenever it has ended.
Clients connect, send, and are cut off at any moment by a SIGKILL; they connect again and send the same again.

The one rule: the socket is never closed, so nobody may ever be refused, and a batch is in the log once however often it
was sent.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from crash.processes import end_on_signal, end_with_parent, kill
from crash.proof import Result, Size
from support import events
from support.daemon import DaemonProcess
from support.rpc import CallRefusedError, Connection
from support.verdicts import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PROMISE = 16
_KILLS = (10, 100, 1000)
_CONNECTS_A_LIFE = 10
_FIRST_FD = 3
_WORST_S = 1.0
_GIVE_UP_S = 60.0
_BATCH = 2
_LIVES_A_SESSION = 10
"""A log that is opened for writing is read whole: longer ones would only cost time."""


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Kill the daemon again and again; see the module."""
    end_on_signal()
    kills = _KILLS[list(Size).index(size)]
    with closing(_Kept(scratch)) as kept:
        clients = _Clients(kept)
        clients.run(kills)
        connects, worst = len(clients.waits), max(clients.waits)
        yield Result(
            _PROMISE,
            "clients of a daemon that is killed",
            f"{connects} connects over {kills} kills, {clients.refused} refused, {clients.resent} batches sent again"
            f" ({clients.stored} were there), {len(clients.bad)} bad",
            "0 refused, 0 doubled",
            held=not clients.bad and not clients.refused and clients.resent > 0,
            why=tuple(clients.bad),
        )
        yield Result(
            _PROMISE,
            "the longest wait for an answer, a start included",
            f"{worst:.2f} s (of those without a start: {clients.usual():.4f} s)",
            f"< {_WORST_S:g} s",
            held=worst < _WORST_S,
            timed=True,
        )


class _Kept:
    """A listening socket that outlives every daemon on it."""

    def __init__(self, scratch: Path) -> None:
        self._daemon = DaemonProcess(scratch)
        self.path = self._daemon.socket
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen(512)
        self._pid = 0
        self.start()

    def start(self) -> None:
        """Start the daemon on the socket, and do not wait for it."""
        self._pid = os.fork()
        if self._pid == 0:
            end_with_parent()
            log = os.open(self._daemon.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.dup2(self._socket.fileno(), _FIRST_FD)
            os.set_inheritable(_FIRST_FD, True)  # noqa: FBT003  # the standard library's signature
            env = self._daemon.env | {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
            command = self._daemon.command
            os.execve(sys.executable, [sys.executable, *command[1:]], env)  # noqa: S606  # no shell is wanted

    def kill(self) -> None:
        """SIGKILL it, and start the next."""
        kill(self._pid)
        self.start()

    def close(self) -> None:
        """Kill it, and end the socket."""
        with suppress(ProcessLookupError, ChildProcessError):
            kill(self._pid)
        self._socket.close()
        self._daemon.remove()


class _Clients:
    """One client after the other, each with the next batch, or the last one once more."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._choose = random.Random(16)  # noqa: S311  # to be replayed, not secret
        self._written: dict[str, int] = {}
        self._id = ""
        self._done = 0
        self._at = 0
        self._next_seq = 0
        self._pending = False
        self.waits: list[float] = []
        self.refused = 0
        self.resent = 0
        self.stored = 0
        self.bad: list[str] = []

    def usual(self) -> float:
        """The wait that half of the clients stay below."""
        return sorted(self.waits)[len(self.waits) // 2]

    def run(self, kills: int) -> None:
        """Let clients come and go over so many kills; then read what is there."""
        for life in range(kills + 1):
            if life % _LIVES_A_SESSION == 0:
                self._begin(f"activated {life}")
            for number in range(_CONNECTS_A_LIFE - 1):
                self._come(killed=life < kills and number == _CONNECTS_A_LIFE - 2)
            self._come(killed=False)  # the one that finds it starting
            self._written[self._id] = self._done
        with Connection(self._kept.path) as one:
            for session_id, done in self._written.items():
                self._judge(session_id, done, read_all(one, session_id))

    def _begin(self, session_id: str) -> None:
        """Go on with another session; of the one before nothing is on its way."""
        self._id, self._done, self._at, self._next_seq = session_id, 0, 0, 0

    def _judge(self, session_id: str, done: int, stored: list[dict[str, Any]]) -> None:
        texts = [event["data"]["title"] for event in stored if event["type"] == "session/title"]
        if texts != [_text(number) for number in range(done)]:
            self.bad.append(
                f"{session_id}: {done} events were sent, {len(texts)} are there, or others"
            )
        if [event["seq"] for event in stored] != list(range(len(stored))):
            self.bad.append(f"{session_id}: seqs are skipped or doubled")

    def _come(self, *, killed: bool) -> None:
        """Connect, write a batch and leave; where it is `killed`, the daemon dies at any moment of that."""
        began = time.monotonic()
        try:
            one = Connection(self._kept.path, limit_s=_GIVE_UP_S)
        except OSError:
            self.refused += 1
            return
        with closing(one):
            try:
                handle = self._open(one)
                self.waits.append(time.monotonic() - began)
                if killed:
                    self._send(one, handle, self._next_seq)
                    self._pending = True
                    time.sleep(self._choose.uniform(0, 0.006))  # where it is then, is chance
                    self._kept.kill()
                    return
                self._write(one, handle)
            except (ConnectionRefusedError, BrokenPipeError, ConnectionResetError):
                self.bad.append("a connection ended although nobody was killed")

    def _open(self, one: Connection) -> dict[str, Any]:
        """Open the session, or make it where no earlier client's has become durable; return what a call needs."""
        try:
            made = one.call("session.open", id=self._id, access="write", takeover=True)
        except CallRefusedError as refused:
            if self._at or refused.kind != "SESSION_NOT_FOUND":
                raise
            made = one.call("session.create", id=self._id)
        self._next_seq = made["session"]["nextSeq"]
        return {"id": self._id, "writer": made["writer"]}

    def _send(self, one: Connection, handle: dict[str, Any], at: int) -> list[int]:
        batch = [events.title(_text(number)) for number in range(self._done, self._done + _BATCH)]
        self._at = at
        asked = one.send("session.append", **handle, events=batch, expectedSeq=at)
        return [asked, one.send("session.flush", **handle)]

    def _write(self, one: Connection, handle: dict[str, Any]) -> None:
        """Send the next batch, or the last one again with the same seqs, and see it durable."""
        again, self._pending = self._pending, False
        append, flush = self._send(one, handle, self._at if again else self._next_seq)
        answer = one.answer(append)
        if again:
            self.resent += 1
            self.stored += answer.get("result", {}).get("duplicate") is True
        if "error" in answer:
            # nothing of it was stored: the seqs are taken by what the opening wrote, so it goes behind that
            one.answer(flush)
            if not again or answer["error"]["data"]["kind"] != "SEQ_CONFLICT":
                self.bad.append(f"refused: {answer['error']['message']}")
            append, flush = self._send(one, handle, self._next_seq)
            one.result(append)
        self._done += _BATCH
        durable = one.result(flush)["durableSeq"]
        if durable < self._at + _BATCH:
            self.bad.append(f"{durable} durable after a batch at {self._at}")


def _text(number: int) -> str:
    return f"title {number}"
