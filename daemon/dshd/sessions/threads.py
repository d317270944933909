"""Blocking calls in worker threads, and what is said when the process may have no more of them.

The one rule: what a full machine refuses is `OVERLOADED` and may be tried again; it is no defect of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import trio

from dsh_protocol.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_NO_THREAD = "can't start new thread"


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
        return await trio.to_thread.run_sync(
            call, *args, limiter=limiter, abandon_on_cancel=abandon_on_cancel
        )
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
