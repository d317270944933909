"""Waiting for the daemon on a framework's event loop: a moment in place, and only what takes longer in a thread.

The way to a thread and back costs more than most answers take. The one rule: the loop stands still for `MOMENT_S` in
all, neither connects nor sends what the daemon has no room for, and what was begun on it goes on in a thread from
where it was.
"""

from __future__ import annotations

import threading
import time
import types
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dsh_client.session import (
    _BlockingPorts,  # pyright: ignore[reportPrivateUsage]  one flavour's ports, same package
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Generator

    from dsh_client.blocking import Link
    from dsh_client.exchange import Ticket
    from dsh_client.ports import Line

T = TypeVar("T")

MOMENT_S = 0.002


class _Here(threading.local):
    """Until when this thread, which runs an event loop, may stand still; None where it runs none."""

    until: float | None = None


_here = _Here()


class LoopPorts(_BlockingPorts):
    """Ports that block in a thread of their own, and on an event loop for a moment only; see `begin`."""

    @asynccontextmanager
    async def turnstile(self) -> AsyncGenerator[None, None]:
        """See `Ports`."""
        await _leave()
        async with super().turnstile():
            yield

    async def connect(self, within: float) -> Line:
        """See `Ports`."""
        await _leave()
        return await super().connect(within)

    async def ready(self, line: Line | None, events: list[dict[str, Any]]) -> None:
        """See `Ports`."""
        if _here.until is not None and (
            line is None or not cast("Link", line).takes(2 * len(repr(events)))
        ):
            await _leave()

    async def wait(self, line: Line, ticket: Ticket, within: float) -> None:
        """See `Ports`."""
        until = _here.until
        if until is not None:
            if cast("Link", line).look(ticket, min(within, until - time.monotonic())):
                return
            await _leave()
        await super().wait(line, ticket, within)

    async def pause(self, seconds: float) -> None:
        """See `Ports`."""
        await _leave()
        await super().pause(seconds)


def begin(coroutine: Coroutine[Any, Any, T]) -> tuple[bool, T | None]:
    """Run shared code on an event loop's thread, as far as it comes in a moment.

    Returns:
        Whether it has ended, and with what. Where not, `dsh_client.ports.run` in another thread goes on with it.
    """
    _here.until = time.monotonic() + MOMENT_S
    try:
        coroutine.send(None)
    except StopIteration as done:
        return True, done.value
    finally:
        _here.until = None
    return False, None


async def _leave() -> None:
    """Go on in another thread, where this one runs an event loop."""
    if _here.until is not None:
        await _suspend()


@types.coroutine
def _suspend() -> Generator[None, None, None]:
    yield
