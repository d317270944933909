"""Plays a workload, in this process or over a socket, and keeps an account of what was acknowledged.

The one rule: what is acknowledged is written down outside the root, in one write, after the answer has come and never
before. A client that is told no tries once more, then closes the session, opens it again and goes on from what it is
shown.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from crash.workload import further

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from crash.workload import Event, Step

TORN = b"\x28\xb5\x2f\xfd\x04Xhalf of a frame"


class RefusedError(Exception):
    """A call was refused.

    Attributes:
        kind: The error's kind.
        told: All that was said, as text.
    """

    def __init__(self, kind: str, told: str) -> None:
        super().__init__(f"{kind}: {told}")
        self.kind = kind
        self.told = told


@dataclass
class Handle:
    """A write handle as its client has it."""

    writer: str
    next_seq: int
    durable_seq: int
    recovery_due: bool = False


class Backend(Protocol):
    """What a workload is played on. Every call raises RefusedError."""

    async def create(self, client: int, session: str) -> Handle:
        """Create a session."""
        ...

    async def open(self, client: int, session: str) -> Handle:
        """Open one for writing."""
        ...

    async def append(self, client: int, session: str, handle: Handle, sent: list[Event]) -> int:
        """Append, wait until it is durable, and return the next seq. The same may be sent again."""
        ...

    async def recover(self, client: int, session: str, handle: Handle) -> int:
        """Close an interrupted turn, and return the next seq."""
        ...

    async def close(self, client: int, session: str, handle: Handle) -> int:
        """Give the handle up, and return the durable seq."""
        ...

    async def fork(self, client: int, session: str, child: str) -> int:
        """Fork the whole of a session, and return how many events the child has."""
        ...

    async def drop(self, client: int, session: str) -> None:
        """Lose the client's connection, and wait until its sessions are free."""
        ...


class Account:
    """What was acknowledged, what was refused, and what the player could not go on with."""

    def __init__(self, folder: Path) -> None:
        self._acks = folder / "acks"
        self._refusals = folder / "refusals"

    def acknowledged(self, session: str, next_seq: int) -> None:
        """Note that the events below a seq were promised to somebody."""
        _add(self._acks, f"{session} {next_seq}\n")

    def refused(self, step: str, error: RefusedError) -> None:
        """Note a refusal, with all that was said."""
        _add(self._refusals, json.dumps([step, error.kind, error.told]) + "\n")

    def promised(self) -> dict[str, int]:
        """Return up to which seq each session was promised."""
        found: dict[str, int] = {}
        for line in _lines(self._acks):
            session, seq = line.split(" ")
            found[session] = max(found.get(session, 0), int(seq))
        return found

    def refusals(self) -> list[tuple[str, str, str]]:
        """Return step, kind and text of every refusal."""
        return [tuple(json.loads(line)) for line in _lines(self._refusals)]


def _add(path: Path, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").split("\n")[:-1] if path.exists() else []


class Player:
    """Plays steps.

    Args:
        backend: What on.
        account: Where it is written down.
        tear: Leaves bytes behind a session's log.
        begun: Told of each step.
    """

    def __init__(
        self,
        backend: Backend,
        account: Account,
        tear: Callable[[str], None],
        begun: Callable[[Step], None] = lambda _: None,
    ) -> None:
        self._backend = backend
        self._account = account
        self._tear = tear
        self._begun = begun
        self._handles: dict[str, Handle] = {}
        self._given_up: set[str] = set()

    async def play(self, steps: Iterable[Step]) -> None:
        """Play them all; a session that cannot go on as it should is gone on with otherwise, and then left alone."""
        for step in steps:
            if step.session in self._given_up:
                continue
            self._begun(step)
            try:
                await self._twice(step)
            except RefusedError:
                self._given_up |= {step.session, step.child}
                await self._resume(step)

    async def _twice(self, step: Step) -> None:
        try:
            await self._do(step)
        except RefusedError as error:
            self._account.refused(step.verb, error)
            await self._do(step)

    async def _do(self, step: Step) -> None:
        backend, name, client = self._backend, step.session, step.client
        if step.verb == "create":
            self._handles[name] = await backend.create(client, name)
        elif step.verb == "open":
            self._handles[name] = handle = await backend.open(client, name)
            self._account.acknowledged(name, handle.durable_seq)
        elif step.verb == "append":
            handle = self._handles[name]
            handle.next_seq = await backend.append(client, name, handle, list(step.events))
            self._account.acknowledged(name, handle.next_seq)
        elif step.verb == "recover":
            handle = self._handles[name]
            handle.next_seq = await backend.recover(client, name, handle)
            self._account.acknowledged(name, handle.next_seq)
        elif step.verb == "close":
            self._account.acknowledged(name, await backend.close(client, name, self._handles[name]))
        elif step.verb == "fork":
            self._account.acknowledged(step.child, await backend.fork(client, name, step.child))
        elif step.verb == "drop":
            await backend.drop(client, name)
        else:
            self._tear(name)

    async def _resume(self, step: Step) -> None:
        """Begin anew with a session that could not go on: what it is shown is what it is."""
        backend, name, client = self._backend, step.session, step.client
        for trying in range(2):
            try:
                if name in self._handles:
                    await backend.close(client, name, self._handles.pop(name))
            except RefusedError as error:
                self._account.refused("close", error)
            try:
                handle = self._handles[name] = await backend.open(client, name)
                await self.go_on(client, name, handle)
            except RefusedError as error:
                self._account.refused("resume" if trying else "open", error)
            else:
                return

    async def go_on(self, client: int, name: str, handle: Handle) -> None:
        """Recover where that is due, and append two further batches."""
        backend, account = self._backend, self._account
        account.acknowledged(name, handle.durable_seq)
        if handle.recovery_due:
            handle.next_seq = await backend.recover(client, name, handle)
            account.acknowledged(name, handle.next_seq)
        for count in (1, 2):
            first = handle.next_seq
            sent = [further(name, seq) for seq in range(first, first + count)]
            handle.next_seq = await backend.append(client, name, handle, sent)
            account.acknowledged(name, handle.next_seq)


def tearer(root: Path) -> Callable[[str], None]:
    """Return what leaves half a frame behind a session's log, as a program that died in a write does."""

    def tear(session: str) -> None:
        for log in root.glob(f"*/{session}/session.jsonl*"):
            if log.suffix != ".tmp":
                with log.open("ab") as tail:
                    tail.write(TORN)

    return tear
