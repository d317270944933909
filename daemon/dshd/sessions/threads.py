"""Blocking calls in worker threads, and what is said when the process may have no more of them.

The one rule: what a full machine refuses is `OVERLOADED` and may be tried again; it is no defect of ours. This is the
only place where a thread is entered, so that a simulation can put something of its own in the threads' place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import trio

from dsh_protocol.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_NO_THREAD = "can't start new thread"


class Workers(Protocol):
    """What runs blocking calls."""

    async def __call__(
        self,
        call: Callable[..., T],
        *args: Any,
        limiter: trio.CapacityLimiter,
        abandon_on_cancel: bool,
    ) -> T:
        """Run one under the limiter and return its result."""
        ...


async def in_real_threads(
    call: Callable[..., T],
    *args: Any,
    limiter: trio.CapacityLimiter,
    abandon_on_cancel: bool,
) -> T:
    """Run a call in a thread of the event loop's cache."""
    return await trio.to_thread.run_sync(
        call, *args, limiter=limiter, abandon_on_cancel=abandon_on_cancel
    )


WORKERS: trio.lowlevel.RunVar[Workers] = trio.lowlevel.RunVar("dshd-workers", in_real_threads)
"""Set within a run of the event loop to have its blocking calls made otherwise."""


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
    try:
        workers = WORKERS.get()
        return await workers(call, *args, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
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
