"""Blocking calls in worker threads, and what is said when the process may have no more of them.

The one rule: what a full machine refuses is `OVERLOADED` and may be tried again; it is no defect of ours. This is the
only place where a thread is entered, so that a simulation can put something of its own in the threads' place.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import outcome
import trio

from dsh_protocol.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

T = TypeVar("T")

_NO_THREAD = "can't start new thread"


class Workers(Protocol):
    """What runs blocking calls."""

    def clock(self) -> float:
        """Return seconds that only count, for how long a call takes; in any thread."""
        ...

    def begin(
        self,
        call: Callable[[], T],
        deliver: Callable[[outcome.Outcome[T]], None],
        patience: float = 0.0,
    ) -> None:
        """Begin to run one; `deliver` is called on the event loop when it has ended, or before this returns.

        Args:
            call: It may take as long as it likes.
            deliver: Told how it ended. Once or twice.
            patience: Seconds that the event loop may stand still for it: waking another thread and being woken by it
                costs more than many a write.
        """
        ...

    async def __call__(
        self,
        call: Callable[..., T],
        *args: Any,
        limiter: trio.CapacityLimiter,
        abandon_on_cancel: bool,
    ) -> T:
        """Run one under the limiter and return its result."""
        ...


class RealThreads:
    """Threads of the event loop's cache."""

    def clock(self) -> float:
        """Return the seconds of the real clock."""
        return time.perf_counter()

    def begin(
        self,
        call: Callable[[], T],
        deliver: Callable[[outcome.Outcome[T]], None],
        patience: float = 0.0,
    ) -> None:
        """Hand a call to a thread; see `Workers`."""
        token = trio.lowlevel.current_trio_token()
        found: list[outcome.Outcome[T]] = []
        there = threading.Lock()
        there.acquire()
        left = patience <= 0

        def ended(result: outcome.Outcome[T]) -> None:
            found.append(result)
            there.release()
            if left:  # asked after the result is there: one of the two sides sees the other's
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(deliver, result)

        # without a name: the kernel would be told of it, and again of the old one, at every call
        trio.lowlevel.start_thread_soon(call, ended)
        if not left:
            there.acquire(timeout=patience)
            left = True
            if found:
                deliver(found[0])

    async def __call__(
        self,
        call: Callable[..., T],
        *args: Any,
        limiter: trio.CapacityLimiter,
        abandon_on_cancel: bool,
    ) -> T:
        """Run a call in a thread and wait for it; see `Workers`."""
        return await trio.to_thread.run_sync(
            call, *args, limiter=limiter, abandon_on_cancel=abandon_on_cancel
        )


WORKERS: trio.lowlevel.RunVar[Workers] = trio.lowlevel.RunVar("dshd-workers", RealThreads())
"""Set within a run of the event loop to have its blocking calls made otherwise."""


class AbandonedError(Exception):
    """Nobody waits for the errand any more; what becomes of it is not known."""


class Errand(Generic[T]):
    """One blocking call in a thread that no cancellation ends. Whoever made it may abandon it.

    Args:
        ended: Called once, on the event loop, with how it ended.
    """

    def __init__(self, ended: Callable[[outcome.Outcome[T]], None]) -> None:
        self._ended: Callable[[outcome.Outcome[T]], None] | None = ended

    def begin(self, call: Callable[[], T], patience: float = 0.0) -> None:
        """Begin the call, once; `ended` may be told before this returns.

        Whatever keeps it from being begun is how it ends: with OverloadedError, where the process gets no thread.

        Args:
            call: What is to be run.
            patience: Seconds that the event loop may stand still for it.
        """
        try:
            with _refused():
                WORKERS.get().begin(call, self._settle, patience)
        except Exception as error:  # noqa: BLE001  # its owner is told, and never waits for nothing
            self._settle(outcome.Error(error))

    def abandon(self) -> None:
        """End the wait for it; the call may still be running. Nothing where it has ended."""
        self._settle(outcome.Error(AbandonedError()))

    def _settle(self, result: outcome.Outcome[T]) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(result)


async def in_thread(
    call: Callable[..., T],
    *args: Any,
    limiter: trio.CapacityLimiter,
    abandon_on_cancel: bool = False,
) -> T:
    """Run a blocking call in a worker thread.

    Raises:
        OverloadedError: The process got no thread or no memory for it.
    """
    with _refused():
        workers = WORKERS.get()
        return await workers(call, *args, limiter=limiter, abandon_on_cancel=abandon_on_cancel)


@contextmanager
def _refused() -> Generator[None]:
    """Say what a full machine refused."""
    try:
        yield
    except MemoryError as error:
        raise out_of("memory") from error
    except RuntimeError as error:
        if _NO_THREAD not in str(error):
            raise
        raise out_of("threads") from error


def out_of(what: str) -> OverloadedError:
    """The refusal for want of `what`."""
    return OverloadedError(
        f"the daemon's process has run out of {what}; close what is not needed, or raise its limit, and try again",
        limit=what,
    )
