"""A workload played against a real daemon, over its socket. See `daemonless` for the same without one.

The one rule: whatever ends the connection ends the play; only what the daemon answered counts as acknowledged.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from crash.daemonless import stored
from crash.door import NO_FAULT, Fault
from crash.playing import Account, Handle, Player, RefusedError, tearer
from crash.served import serve, wish_of_environ
from crash.warm import WarmDaemon
from crash.workload import CWDS
from support.daemon import DaemonProcess
from support.rpc import CallRefusedError, Connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from crash.served import Wish
    from crash.workload import Event, Step

TESTS = Path(__file__).resolve().parents[1]
_BUSY_S = 10.0
_END_S = 60.0


class Wire:
    """Two connections to a daemon. A `Backend`; a dead daemon raises ConnectionError."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._daemon = daemon
        self._lines = [self._connect(0), self._connect(1)]

    def _connect(self, client: int) -> Connection:
        return Connection(self._daemon.socket, name=f"client-{client}")

    def close_all(self) -> None:
        """Close both connections."""
        for line in self._lines:
            line.close()

    def _call(self, client: int, method: str, /, **params: Any) -> Any:
        try:
            return self._lines[client].call(method, **params)
        except CallRefusedError as error:
            raise RefusedError(error.kind, json.dumps(error.error)) from error

    async def create(self, client: int, session: str) -> Handle:
        made = self._call(client, "session.create", id=session, cwd=CWDS.get(session))
        return Handle(made["writer"], 0, 0)

    async def open(self, client: int, session: str) -> Handle:
        until = time.monotonic() + _BUSY_S
        while True:
            try:
                opened = self._call(
                    client, "session.open", id=session, access="write", takeover=True
                )
            except (
                RefusedError
            ) as error:  # the daemon may not have seen yet that a connection is gone
                if error.kind != "SESSION_BUSY" or time.monotonic() > until:
                    raise
                continue
            view, recovery = opened["session"], opened["recovery"]
            due = recovery is not None and not recovery["committed"]
            return Handle(opened["writer"], view["nextSeq"], view["durableSeq"], due)

    async def append(self, client: int, session: str, handle: Handle, sent: list[Event]) -> int:
        whose = {"id": session, "writer": handle.writer}
        done = self._call(
            client, "session.append", **whose, events=sent, expectedSeq=handle.next_seq
        )
        self._call(client, "session.flush", **whose)
        return int(done["nextSeq"])

    async def recover(self, client: int, session: str, handle: Handle) -> int:
        found = self._call(client, "session.recover", id=session, writer=handle.writer)
        return int(found["nextSeq"])

    async def close(self, client: int, session: str, handle: Handle) -> int:
        done = self._call(client, "session.close", id=session, writer=handle.writer)
        return int(done["durableSeq"])

    async def fork(self, client: int, session: str, child: str) -> int:
        made = self._call(client, "session.fork", id=session, newId=child)
        return int(made["session"]["nextSeq"])

    async def drop(self, client: int, session: str) -> None:
        self._lines[client].close()
        self._lines[client] = self._connect(client)


class _Warm(WarmDaemon):
    def serve(self) -> int:
        return serve(wish_of_environ())


class Served:
    """A real daemon behind a door, on one root, one life after the other.

    Args:
        folder: As of a case: the root, the account and the log are in it.
        wish: What goes wrong in every life.
        warm: It is forked from this process, which has its imports, and not started anew.
    """

    def __init__(self, folder: Path, wish: Wish, *, warm: bool = False) -> None:
        self.folder = folder
        self.wish = wish
        kind = _Warm if warm else DaemonProcess
        self.daemon = kind(folder, flags=("--batch-window", "5"))
        serve = self.daemon.command.index("serve")
        served = str(TESTS / "crash" / "served.py")
        self.daemon.command = [sys.executable, served, *self.daemon.command[serve:]]

    @contextmanager
    def life(self, fault: Fault = NO_FAULT) -> Generator[None]:
        """Start the daemon with a fault; on leaving it has ended, by itself, by the fault or by a signal."""
        wish = replace(self.wish, fault=fault, told=str(self.folder / "told"))
        told = msgspec.json.encode(wish).decode()
        self.daemon.env |= {"PYTHONPATH": str(TESTS), "DSHD_TEST_DOOR": told}
        try:
            self.daemon.launch()
            yield
            if self.daemon.process.poll() is None:
                self.daemon.stop(_END_S)
        finally:
            self.daemon.kill()

    def play(self, steps: Sequence[Step], fault: Fault = NO_FAULT) -> int:
        """Play a workload; return how the daemon ended."""

        async def work(player: Player, _: Wire) -> None:
            await player.play(steps)

        return self._live(fault, work)

    def go_on(self, fault: Fault = NO_FAULT) -> int:
        """Open every session, mend it and go on with it; return how the daemon ended."""

        async def work(player: Player, wire: Wire) -> None:
            for name in sorted(stored(self.folder / "root")):
                try:
                    await player.go_on(0, name, await wire.open(0, name))
                except RefusedError as error:
                    Account(self.folder).refused("recover", error)

        return self._live(fault, work)

    def look(self, fault: Fault = NO_FAULT) -> int:
        """Open every session, hold what is shown for acknowledged, and do no more; return how the daemon ended."""

        async def work(_: Player, wire: Wire) -> None:
            for name in sorted(stored(self.folder / "root")):
                try:
                    opened = await wire.open(0, name)
                    Account(self.folder).acknowledged(name, opened.durable_seq)
                except RefusedError as error:
                    Account(self.folder).refused("open", error)

        return self._live(fault, work)

    def _live(self, fault: Fault, work: Callable[[Player, Wire], Awaitable[None]]) -> int:
        root = self.folder / "root"
        with self.life(fault):
            wire: Wire | None = None
            try:
                self.wait_answers()
                wire = Wire(self.daemon)
                player = Player(wire, Account(self.folder), tearer(root))
                trio.run(partial(work, player, wire))
            except (ConnectionError, FileNotFoundError, EOFError):
                self.daemon.process.wait(_END_S)  # it died, as it was to
            finally:
                if wire is not None:
                    wire.close_all()
        return int(self.daemon.process.returncode)

    def wait_answers(self) -> None:
        """Wait until the daemon answers.

        Raises:
            OSError: It ended, or took too long.
        """
        until = time.monotonic() + _END_S
        while True:
            try:
                self.daemon.call("daemon.status")
            except (FileNotFoundError, ConnectionRefusedError):
                if self.daemon.process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.01)  # a real process starts by the real clock
            else:
                return

    def remove(self) -> None:
        """Leave nothing running."""
        self.daemon.remove()
