"""The drain: makes one session's admitted events durable, batch by batch, in order.

It owns the events that are admitted and not yet durable. They live here, not in a task, so that a cancelled caller
loses its wait and nothing else. One attempt runs at a time; a failed batch stays in front. An attempt is begun by the
drain's task, or in the turn of whoever wants it (`push`), and its end is a call and no task's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Protocol

import trio

from dsh_protocol.errors import DshdError, InternalFaultError
from dshd.sessions.at_once import Signal, begin_later
from dshd.sessions.threads import WORKERS, AbandonedError, Errand, out_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import outcome

    from dsh_protocol.events import Event
    from dshd.storage.store import HolderRecord, SessionHandle


_QUICK_S = 0.0005
_PATIENCE_S = 0.001
"""How long the event loop stands still for a write where the last one was quick: it saves two wake-ups, of the thread
and of the loop. A disk that hangs holds everybody for so long once, not for longer and not again."""


class DrainObserver(Protocol):
    """Who is told of each attempt. Called on the event loop; must not block and must not raise."""

    def batch_durable(self, events: Sequence[Event], size: int, seconds: float) -> None:
        """`events`, which take about `size` bytes in memory, are on disk; the write took `seconds`."""
        ...

    def batch_failed(self, error: DshdError, seconds: float) -> None:
        """The batch stays queued, in front."""
        ...

    def fault(self, error: BaseException) -> InternalFaultError:
        """Log an error that no store should raise, and name the incident."""
        ...


class HolderDue(Protocol):
    """Whose holder record goes before the next batch. Called in the drain's thread."""

    def due_holder(self) -> HolderRecord | None:
        """The record that is not durable yet, or None."""
        ...

    def note_holder(self, record: HolderRecord) -> None:
        """`record` is durable."""
        ...


@dataclass(eq=False, slots=True)
class _Waiter:
    """One caller of `wait_durable`. It shares the outcome of the first attempt that begins after it came."""

    target: int
    materialise: bool
    came_after: int
    losable: bool
    begun: Callable[[], None] | None
    done: Signal = field(default_factory=Signal)
    error: DshdError | None = None

    def begin(self) -> None:
        if self.begun is not None:
            self.begun()

    def release(self, error: DshdError | None = None) -> None:
        self.error = error
        self.done.set()


class Drain:
    """Queue and barrier of one session.

    Args:
        handle: The session's handle for writing. The drain is the only one that appends to it.
        window: Seconds from the first pending event to the automatic write; later events do not move it.
        observer: Told of each attempt.
        holder: Knows the holder record that must be durable before the next batch.
    """

    def __init__(
        self,
        handle: SessionHandle,
        *,
        window: float,
        observer: DrainObserver,
        holder: HolderDue,
    ) -> None:
        self.durable_seq = handle.next_seq
        self.pending: list[Event] = []
        self.pending_bytes = 0
        self.failure: DshdError | None = None
        self._sizes: list[int] = []
        self._handle = handle
        self._window = window
        self._observer = observer
        self._holder = holder
        self._waiters: list[_Waiter] = []
        self._attempts = 0
        self._writing = 0
        self._deadline: float | None = None
        self._kick = trio.Event()
        self._sleeps_until = -inf
        self._runs = False
        self._errand: Errand[float] | None = None
        self._rest = Signal()
        self._abandoned = False
        self._last_s = inf

    @property
    def next_seq(self) -> int:
        """The seq after the last admitted event."""
        return self.durable_seq + len(self.pending)

    @property
    def clean(self) -> bool:
        """Whether everything admitted is durable."""
        return not self.pending

    def admit_nowait(self, events: Sequence[Event], size: int) -> None:
        """Queue events that follow the last admitted one; the window opens with the first.

        Args:
            events: Complete and valid; the drain keeps them.
            size: About how many bytes they are, for the bound on pending memory.
        """
        if not events:
            return
        self.pending.extend(events)
        self._sizes.extend(_spread(size, len(events)))
        self.pending_bytes += size
        if self._deadline is None and self.failure is None:
            self._set_deadline()

    def _set_deadline(self) -> None:
        self._deadline = trio.current_time() + self._window
        self._see_to_deadline()

    def _see_to_deadline(self) -> None:
        """Have the drain's task look again when the window ends: it is woken where it would sleep for longer."""
        if self._deadline is not None and self._deadline < self._sleeps_until:
            self._kick.set()

    async def wait_durable(
        self,
        target: int,
        *,
        materialise: bool = False,
        losable: bool = True,
        begun: Callable[[], None] | None = None,
    ) -> None:
        """Wait until every event with `seq < target` is durable, and start an attempt for them.

        A caller that comes while an attempt runs and is not served by its success takes part in the next one. A
        cancelled caller loses its wait, not its events.

        Args:
            target: A next seq.
            materialise: Also wait until the log exists on disk.
            losable: Whether `lose_waiters` ends this wait.
            begun: Called when what is waited for is being written: from here on the outcome is the disk's.

        Raises:
            DshdError: The attempt failed. The batch is back at the head of the queue.
        """
        if self._served(target, materialise=materialise):
            return
        waiter = _Waiter(target, materialise, self._attempts, losable, begun)
        self._waiters.append(waiter)
        if target <= self._writing:
            waiter.begin()
        if not begin_later(self.push):
            self._kick.set()
        try:
            await waiter.done.wait()
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        if waiter.error is not None:
            raise waiter.error.with_facts()

    def lose_waiters(self, error: DshdError, *, every: bool = False) -> None:
        """End every losable wait (or `every` one) with `error`; the events stay."""
        for waiter in [one for one in self._waiters if one.losable or every]:
            self._waiters.remove(waiter)
            waiter.release(error)

    async def wait_room(self, size: int, limit: int) -> None:
        """Wait until `size` more bytes fit under `limit` pending ones, pushing the queue meanwhile.

        One call always fits into an empty queue, however large it is.

        Raises:
            DshdError: The last attempt failed: the queue does not move by itself.
        """
        while self.pending and self.pending_bytes + size > limit:
            if self.failure is not None:
                raise self.failure.with_facts()
            await self.wait_durable(self.durable_seq + 1)

    def abandon(self) -> None:
        """Stop waiting for a write that hangs. Only when the process is about to exit: its outcome stays unknown."""
        if self._errand is not None:
            self._errand.abandon()

    def push(self) -> None:
        """Begin an attempt in this turn where somebody waits for one and none runs; it may end in this turn, too."""
        if self._runs and self._is_free and self._waiters:
            self._begin()

    @property
    def _is_free(self) -> bool:
        """Whether an attempt may begin: none runs, and none was given up."""
        return self._errand is None and not self._abandoned

    async def run(self) -> None:
        """Drain until cancelled. A running write is seen to its end; only `abandon`, by the owner, ends the wait."""
        self._runs = True
        try:
            while True:
                await self._wait_wanted()
                self._begin()
        finally:
            self._runs = False
            if self._errand is not None:
                with trio.CancelScope(shield=True):
                    await self._rest.wait()

    def _served(self, target: int, *, materialise: bool) -> bool:
        return self.durable_seq >= target and (self._handle.materialised or not materialise)

    async def _wait_wanted(self) -> None:
        while True:
            until = inf
            if self._is_free:
                until = inf if self._deadline is None else self._deadline
                if self._waiters or until <= trio.current_time():
                    return
            self._kick, self._sleeps_until = trio.Event(), until
            try:
                with trio.move_on_at(until):
                    await self._kick.wait()
            finally:
                self._sleeps_until = -inf

    def _begin(self) -> None:
        """Begin an attempt; it may have ended when this returns."""
        began = trio.current_time()
        self._attempts += 1
        self._deadline = None
        self._failing(began, partial(self._attempt, began))

    def _attempt(self, began: float) -> None:
        batch = list(self.pending)
        self._writing = self.next_seq
        for waiter in self._waiters:
            waiter.begin()
        if not batch and self._handle.materialised:
            self._succeed(batch, 0.0)
            return
        write = partial(self._write, batch, WORKERS.get().clock)
        patience = _PATIENCE_S if self._last_s <= _QUICK_S else 0.0
        self._last_s, self._rest = inf, Signal()
        self._errand = Errand(partial(self._end, batch, began))
        self._errand.begin(write, patience)

    def _end(self, batch: list[Event], began: float, result: outcome.Outcome[float]) -> None:
        """An attempt has ended, one way or the other; what came meanwhile is next."""
        self._errand = None

        def take() -> None:
            try:
                self._last_s = result.unwrap()
            except AbandonedError:
                self._abandoned = True  # nothing is known of this batch
            else:
                self._succeed(batch, trio.current_time() - began)

        try:
            self._failing(began, take)
        finally:
            self._rest.set()
        self.push()
        self._see_to_deadline()  # of what came while it slept because a write ran

    def _failing(self, began: float, act: Callable[[], object]) -> None:
        """Do a part of an attempt. Whatever is raised, the session must survive it: it fails the attempt."""
        try:
            act()
        except DshdError as error:
            self._fail(error, trio.current_time() - began)
        except MemoryError:
            self._fail(out_of("memory"), trio.current_time() - began)
        except Exception as error:  # noqa: BLE001  # whatever it is
            self._fail(self._observer.fault(error), trio.current_time() - began)

    def _write(self, batch: list[Event], clock: Callable[[], float]) -> float:
        """Write a batch; in a thread. Returns the seconds that it took."""
        began = clock()
        record = self._holder.due_holder()
        if batch:
            self._handle.append(batch, record)
        else:
            self._handle.flush(record)
        if record is not None:
            self._holder.note_holder(record)
        return clock() - began

    def _succeed(self, batch: list[Event], seconds: float) -> None:
        count = len(batch)
        self._writing = 0
        self.durable_seq += count
        del self.pending[:count]
        size = sum(self._sizes[:count])
        self.pending_bytes -= size
        del self._sizes[:count]
        self.failure = None
        if self.pending and self._deadline is None:
            self._set_deadline()
        try:
            if batch:  # who follows the session hears of it before the writer has its reply
                self._observer.batch_durable(batch, size, seconds)
        finally:
            for waiter in list(self._waiters):
                if self._served(waiter.target, materialise=waiter.materialise):
                    self._waiters.remove(waiter)
                    waiter.release()

    def _fail(self, error: DshdError, seconds: float) -> None:
        self.failure = error
        self._writing = 0
        self._deadline = None
        for waiter in list(self._waiters):
            if waiter.came_after < self._attempts:
                self._waiters.remove(waiter)
                waiter.release(error)
        self._observer.batch_failed(error, seconds)


def _spread(size: int, count: int) -> list[int]:
    """Shares of `size` that add up to it, one an event."""
    share, rest = divmod(size, count)
    return [share + rest, *[share] * (count - 1)]
