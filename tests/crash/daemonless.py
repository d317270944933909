"""The store and the drains of a daemon without its socket, to be played on in a process that may die at any moment.

The one rule: time stands still and nothing runs beside anything. No window passes and no rest is taken, so that the
same workload makes the same calls of the disk in the same order, every time.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import outcome
import trio
import trio.testing

from crash.playing import Account, Handle, Player, RefusedError, tearer
from crash.workload import CWDS
from dsh_protocol.errors import DshdError
from dsh_protocol.events import Header
from dsh_protocol.limits import DEFAULT_LIMITS
from dshd.metrics import Metrics
from dshd.sessions import recovering
from dshd.sessions.asked import Asked, Caller
from dshd.sessions.claims import Taker
from dshd.sessions.forks import fork
from dshd.sessions.registry import Registry
from dshd.sessions.session import now_ms
from dshd.sessions.threads import WORKERS
from dshd.storage.jsonl.lock import lock_root
from dshd.storage.jsonl.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence
    from pathlib import Path

    from crash.workload import Event, Step
    from dshd.sessions.session import Session
    from dshd.storage.files import Disk
    from dshd.storage.jsonl.layout import Compression

T = TypeVar("T")

_STOP_S = 5.0
_PATIENT = Caller(lambda _: None, lambda: False, lambda: None)


class Rooms:
    """A registry, called as the handlers call it. A `Backend`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._connections = [object(), object()]

    def _taker(self, client: int) -> Taker:
        return Taker(self._connections[client], 0, None, f"client {client}")

    def _handle(self, session: Session) -> Handle:
        assert session.claim is not None
        return Handle(
            session.claim.writer, session.next_seq, session.durable_seq, session.recovery_due
        )

    def _live(self, name: str) -> Session:
        session = self._registry.get(name)
        if session is None:
            raise RefusedError("WRITER_LOST", f"session '{name}' is not live")
        return session

    async def create(self, client: int, session: str) -> Handle:
        def header(name: str) -> Header:
            return Header(id=name, created_at=now_ms(), cwd=CWDS.get(name))

        with _refusals():
            made = await self._registry.create(header, session, self._taker(client))
        return self._handle(made)

    async def open(self, client: int, session: str) -> Handle:
        with _refusals():
            opened = await self._registry.open_write(
                session, self._taker(client), None, takeover=True
            )
        return self._handle(opened)

    async def append(self, client: int, session: str, handle: Handle, sent: list[Event]) -> int:
        live = self._live(session)
        with _refusals():
            admission = await live.admit(handle.writer, Asked(sent, handle.next_seq, 1000))
            await live.wait_durable(live.require_writer(handle.writer), admission)
        return admission.next_seq

    async def recover(self, client: int, session: str, handle: Handle) -> int:
        with _refusals():
            live = self._live(session)
            found = await recovering.recover(live, handle.writer, _PATIENT, now_ms())
        return int(found["nextSeq"])

    async def close(self, client: int, session: str, handle: Handle) -> int:
        with _refusals():
            return int((await self._registry.close(session, handle.writer))["durableSeq"])

    async def fork(self, client: int, session: str, child: str) -> int:
        with _refusals():
            await fork(self._registry, session, None, child)
            events = self._registry.store.open(child, "read")
            try:
                return sum(1 for _ in events.read())
            finally:
                events.close()

    async def drop(self, client: int, session: str) -> None:
        live = self._registry.get(session)
        self._registry.lose_connection(self._connections[client])
        self._connections[client] = object()
        if live is not None:
            while live.claim is not None:
                await trio.testing.wait_all_tasks_blocked()
            async with self._registry.exclusive(session):
                pass


class _refusals:  # noqa: N801  # used as a function
    """Turns the daemon's errors into refusals."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, DshdError):
            raise RefusedError(error.kind, f"{error} {error.facts}") from error


class InTheLoop:
    """Makes blocking calls where they are asked for: nothing runs beside them. As `Workers`."""

    clock = staticmethod(time.perf_counter)

    def begin(
        self,
        call: Callable[[], T],
        deliver: Callable[[outcome.Outcome[T]], None],
        patience: float = 0.0,
    ) -> None:
        """Make one."""
        _ = patience
        deliver(outcome.capture(call))

    async def __call__(
        self,
        call: Callable[..., T],
        *args: Any,
        limiter: trio.CapacityLimiter,
        abandon_on_cancel: bool,
    ) -> T:
        """Make one."""
        _ = abandon_on_cancel
        async with limiter:
            return call(*args)


@asynccontextmanager
async def open_rooms(root: Path, disk: Disk, compression: Compression) -> AsyncGenerator[Rooms]:
    """Run a registry as the daemon does, from taking the root's lock to the last flush.

    Raises:
        RefusedError: The root could not be taken.
    """
    WORKERS.set(InTheLoop())
    with _refusals():
        lock = lock_root(root, socket="", since=now_ms(), disk=disk)
    try:
        async with trio.open_nursery() as nursery:
            registry = Registry(
                open_store(root, compression=compression, disk=disk),
                limits=DEFAULT_LIMITS,
                window=0.2,
                metrics=Metrics(),
                nursery=nursery,
            )
            yield Rooms(registry)
            await registry.shut_down(_STOP_S)
            await registry.wait_ended(_STOP_S)
            nursery.cancel_scope.cancel()
    finally:
        lock.close()


def play(
    folder: Path, disk: Disk, steps: Sequence[Step], compression: Compression = "zstd"
) -> None:
    """Play a workload under `folder`: its root is there, and what was acknowledged beside it."""
    trio.run(partial(_play, folder, disk, steps, compression), clock=trio.testing.MockClock())


async def _play(folder: Path, disk: Disk, steps: Sequence[Step], compression: Compression) -> None:
    account, root = Account(folder), folder / "root"
    try:
        async with open_rooms(root, disk, compression) as rooms:
            await Player(rooms, account, tearer(root)).play(steps)
    except RefusedError as error:
        account.refused("start", error)


def recover(folder: Path, disk: Disk, compression: Compression = "zstd") -> None:
    """Start again on what a dead process left: open every session, mend it, and go on with two batches."""
    trio.run(partial(_recover, folder, disk, compression), clock=trio.testing.MockClock())


async def _recover(folder: Path, disk: Disk, compression: Compression) -> None:
    account, root = Account(folder), folder / "root"
    try:
        async with open_rooms(root, disk, compression) as rooms:
            player = Player(rooms, account, tearer(root))
            for name in sorted(stored(root)):
                try:
                    await player.go_on(0, name, await rooms.open(0, name))
                except RefusedError as error:
                    account.refused("recover", error)
    except RefusedError as error:
        account.refused("start", error)


def stored(root: Path) -> Generator[str]:
    """Yield the sessions that have a log."""
    for log in root.glob("*/*/session.jsonl*"):
        if log.suffix != ".tmp":
            yield log.parent.name
