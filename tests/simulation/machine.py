"""One machine: its disk, its clock, its processes, and the lives of the daemon on it, one after the other.

The rule that holds here: everything that is the machine's to decide comes from one source of chance with one seed, so
that a seed is a world, every time. What runs on it is the daemon's own code: store, sessions, connections and the order
of shutdown; only what touches the kernel is replaced.

* **Time** is trio's mock clock, which jumps when nothing else can be done; `time` and the file system follow it.
* **Tasks**: trio runs the tasks that are ready in an order of its own chance. Where it was told to be deterministic it
  sorts them first, and its source of chance is seeded, so that one seed means one order, and another seed another.
* **Threads**: a call that would block is made in the loop, whole, at some moment between its start and its end. Calls
  that run at the same time are therefore seen one behind the other, in any order.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import outcome
import trio

from dsh_protocol.errors import DshdError
from dshd.lifecycle import Ground, run_connections, run_sessions
from dshd.metrics import Metrics
from dshd.rpc.connection import serve_connection
from dshd.rpc.dispatch import Dispatcher
from dshd.rpc.handlers import HANDLERS
from dshd.sessions.processes import Peer
from dshd.sessions.threads import WORKERS
from dshd.storage.jsonl.lock import lock_root
from dshd.storage.jsonl.store import open_store
from simulation.disk import PowerCutError, VirtualDisk
from simulation.wire import ClientEnd, DaemonEnd, Flow, LostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from dshd.rpc.context import Services
    from dshd.settings import Settings
    from simulation.oracle import Oracle

T = TypeVar("T")

ROOT = Path("/simulated/root")
BEGIN_NS = 1_700_000_000_000_000_000
_RESTART_LIMIT_S = 1000.0
_DISPATCHER = Dispatcher(HANDLERS)  # it has no state, and making it takes a tenth of a world's time


class CannotRunError(Exception):
    """The daemon has ended at its start, and said why."""


class Machine:
    """See the module. Made within a run of `in_world`.

    Args:
        chance: The source of all chance.
        note: Told of everything that happens, for the trace.
        settings: Of the daemon; root and socket are the machine's.
        oracle: Told of every call and every reply.
    """

    def __init__(
        self,
        chance: Random,
        note: Callable[[str], None],
        settings: Settings,
        oracle: Oracle,
    ) -> None:
        self.chance = chance
        self.note = note
        self.settings = settings
        self.disk = VirtualDisk(now_ns, note)
        self.boot = 0
        self.uid = os.geteuid()
        self.slow_until = 0.0
        self.lazy = 0.1
        self.alive: set[int] = set()
        self.written: bool | None = None
        self.judged = False
        self.hurried = False  # its clients have little left to do
        self.runner: trio.lowlevel.Task | None = None
        self.services: Services | None = None
        self._oracle = oracle
        self._accept: Callable[[DaemonEnd, Peer], None] | None = None
        self._stopping: trio.Event | None = None
        self._changed = trio.Event()
        self._connections = 0
        self._late: trio.Nursery | None = None
        self._errands: set[trio.CancelScope] = set()
        self._life = trio.CancelScope()
        self._dead = trio.Event()

    # ------------------------------------------------------------------ the daemon's lives

    async def run_life(self) -> None:
        """Start the daemon and run it until it is stopped or dies."""
        self.written = None
        self.runner = trio.lowlevel.current_task()
        self._stopping, self._dead = trio.Event(), trio.Event()
        self.disk.died = self._dead.set
        WORKERS.set(_Workers(self))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._bury, trio.lowlevel.current_task())
                with trio.CancelScope() as self._life:
                    async with trio.open_nursery() as self._late:
                        await self._serve_root()
                        for errand in (
                            self._errands
                        ):  # with the process end the threads that nobody waits for
                            errand.shield = False
                        self._late.cancel_scope.cancel()
                nursery.cancel_scope.cancel()
        except* PowerCutError:
            self.note("died")
        except* CannotRunError as group:
            self.note(f"cannot run: {group.exceptions[0]}")
        finally:
            self._accept = None
            self.services = None
            self.disk.off = True

    async def _bury(self, runner: trio.lowlevel.Task) -> None:
        """When the daemon has died, end every task of it: nothing shields a process from its death."""
        await self._dead.wait()
        self._life.cancel()
        while True:
            _unshield(runner, self._life)
            await trio.lowlevel.checkpoint()

    async def _serve_root(self) -> None:
        self.note("start")
        try:
            lock = lock_root(ROOT, socket="/simulated/socket", since=0, pid=1, disk=self.disk)
        except DshdError as error:
            raise CannotRunError(str(error)) from error
        metrics = Metrics()
        assert self._stopping is not None
        ground = Ground(
            settings=self.settings,
            store=open_store(ROOT, compression=self.settings.compression, disk=self.disk),
            metrics=metrics,
            socket="/simulated/socket",
            unreachable=lambda: None,
            started_at=0,
            stopping=self._stopping,
        )
        self.written = await run_sessions(ground, self._serve)
        if not self.disk.off:
            lock.close()

    async def _serve(self, services: Services) -> float:
        self.services = services
        return await run_connections(partial(self._accept_until_stopped, services))

    async def _accept_until_stopped(self, services: Services, connections: trio.Nursery) -> None:
        def accept(end: DaemonEnd, peer: Peer) -> None:
            connections.start_soon(serve_connection, services, _DISPATCHER, end, peer)

        self._accept = accept
        self._changed.set()
        await services.stopping.wait()
        self._accept = None
        services.registry.closing = True

    def stop(self) -> None:
        """Tell the daemon to end in order, as SIGTERM does."""
        self.note("stop")
        if self._stopping is not None:
            self._stopping.set()

    def kill(self) -> None:
        """End the daemon at this moment."""
        self.note("kill")
        self.disk.off = True
        self._dead.set()

    def interrupt(self) -> None:
        """Cancel every task of the daemon, as Ctrl-C or a fault of the loop would; shields hold."""
        self.note("interrupt")
        self._life.cancel()

    def restart(self, *, power: bool) -> None:
        """Make the machine ready for another life of the daemon, after the last one or after a power cut."""
        self.note(f"restart {power}")
        self._oracle.forgotten()
        self.disk.stop(self.chance, power=power)
        self.boot += power

    # ------------------------------------------------------------------ what stands in for the kernel

    def begin(
        self,
        call: Callable[[], T],
        deliver: Callable[[outcome.Outcome[T]], None],
        patience: float = 0.0,
    ) -> None:
        """Begin a blocking call that no cancellation ends; see `dshd.sessions.threads.Workers`."""
        assert self._late is not None
        ends_at = self._ends_at()
        if patience > 0 and ends_at <= trio.current_time() and not self.disk.off:
            deliver(outcome.capture(call))
        else:
            self._late.start_soon(self._run_errand, ends_at, call, deliver)

    async def _run_errand(
        self,
        ends_at: float,
        call: Callable[[], T],
        deliver: Callable[[outcome.Outcome[T]], None],
    ) -> None:
        if ends_at <= trio.current_time():
            await trio.lowlevel.cancel_shielded_checkpoint()
            deliver(outcome.capture(call))
            return
        with trio.CancelScope(shield=True) as shield:
            self._errands.add(shield)
            try:
                await trio.sleep_until(ends_at)
            except trio.Cancelled:
                deliver(outcome.Error(PowerCutError()))  # the process has ended
                raise
            finally:
                self._errands.discard(shield)
            deliver(outcome.capture(call))

    async def work(
        self,
        call: Callable[..., T],
        *args: Any,
        limiter: trio.CapacityLimiter,
        abandon_on_cancel: bool,
    ) -> T:
        """Make a blocking call in the loop; see `dshd.sessions.threads.Workers`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        token = object()
        await limiter.acquire_on_behalf_of(token)
        kept = False
        try:
            ends_at = self._ends_at()
            if ends_at <= trio.current_time() and not abandon_on_cancel:
                await (
                    trio.lowlevel.cancel_shielded_checkpoint()
                )  # as below, for a fifth of the price
                return call(*args)
            with trio.CancelScope(shield=not abandon_on_cancel):
                try:
                    await trio.sleep_until(ends_at)
                except trio.Cancelled:
                    kept = True
                    assert self._late is not None
                    self._late.start_soon(self._work_late, ends_at, call, args, limiter, token)
                    raise
                return call(*args)
        finally:
            if not kept:
                limiter.release_on_behalf_of(token)
        raise AssertionError("the shield was cancelled")

    async def _work_late(
        self,
        ends_at: float,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        limiter: trio.CapacityLimiter,
        token: object,
    ) -> None:
        """Make a call that nobody waits for any more: a thread is not cancelled."""
        await trio.sleep_until(ends_at)
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001  # nobody hears of it, as with a thread
            self.note(f"late {error!r}")
        limiter.release_on_behalf_of(token)

    def _ends_at(self) -> float:
        now = trio.current_time()
        if self.slow_until > now:
            return self.slow_until
        return now + self.chance.random() * 0.01 if self.chance.random() < self.lazy else now

    def process_alive(self, pid: int, _start: int) -> bool:
        """Whether a client's process lives; see `dshd.sessions.processes`."""
        return pid in self.alive

    def boot_id(self) -> str:
        """See `dshd.sessions.processes`."""
        return f"boot {self.boot}"

    # ------------------------------------------------------------------ clients

    async def connect(self, pid: int) -> ClientEnd:
        """Connect, waiting while no daemon runs.

        Raises:
            LostError: None came.
        """
        with trio.move_on_after(_RESTART_LIMIT_S):
            while self._accept is None:
                self._changed = trio.Event()
                await self._changed.wait()
        if self._accept is None:
            raise LostError
        self._connections += 1
        number = self._connections
        to_daemon, to_client = Flow(self.chance), Flow(self.chance)
        sent = partial(self._oracle.replied, number)
        self._accept(DaemonEnd(to_daemon, to_client, self.disk, sent), Peer(pid, self.uid, 0, 1))
        return ClientEnd(number, to_daemon, to_client, self._oracle.asked)


class _Workers:
    """What runs the daemon's blocking calls on a machine; as `dshd.sessions.threads.Workers`."""

    def __init__(self, machine: Machine) -> None:
        self.begin = machine.begin
        self.clock = trio.current_time
        self._machine = machine

    async def __call__(
        self,
        call: Callable[..., T],
        *args: Any,
        limiter: trio.CapacityLimiter,
        abandon_on_cancel: bool,
    ) -> T:
        return await self._machine.work(
            call, *args, limiter=limiter, abandon_on_cancel=abandon_on_cancel
        )


def _unshield(task: trio.lowlevel.Task, outermost: trio.CancelScope) -> None:
    """Take away every shield of a task and those below it. There is no way in but trio's own notes of its scopes."""
    todo = [task]
    while todo:
        task = todo.pop()
        inside: Any = task
        status = inside._cancel_status  # noqa: SLF001  # see above
        while status is not None and status._scope is not outermost:  # noqa: SLF001  # likewise
            if status._scope.shield:  # noqa: SLF001  # likewise
                status._scope.shield = False  # noqa: SLF001  # likewise
            status = status._parent  # noqa: SLF001  # likewise
        for nursery in task.child_nurseries:
            todo += nursery.child_tasks


def now_ns() -> int:
    """The wall clock."""
    try:
        return BEGIN_NS + int(trio.current_time() * 1e9)
    except RuntimeError:
        return BEGIN_NS
