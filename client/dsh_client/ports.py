"""What the shared logic needs of a flavour, and how the blocking flavour runs it.

It owns nothing. The one rule: everything that may wait is a coroutine here, so that `dsh_client.handle` and
`dsh_client.course` are written once. Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from dsh_client.errors import ClientError
    from dsh_client.exchange import Ticket

T = TypeVar("T")


class Line(Protocol):
    """One connection, as both flavours have it."""

    @property
    def lost(self) -> ClientError | None:
        """Why it ended, or None."""
        ...

    def start(self, method: str, params: Mapping[str, Any], timeout: float) -> Ticket:
        """Send a call; never waits for its answer."""
        ...

    def start_all(
        self, calls: Sequence[tuple[str, Mapping[str, Any]]], timeout: float
    ) -> list[Ticket]:
        """Send calls in one go, all or none; never waits for their answers."""
        ...

    def close(self) -> None:
        """End it; calls in flight fail."""
        ...


class Ports(Protocol):
    """What a flavour brings: its lock, its clock, its way to wait."""

    timeout: float

    def guard(self) -> AbstractContextManager[Any]:
        """Return the lock under which the ledger is used; nothing waits inside."""
        ...

    def turnstile(self) -> AbstractAsyncContextManager[Any]:
        """Return the lock that lets one caller mend the connection while the others wait."""
        ...

    async def connect(self, within: float) -> Line:
        """Return a living connection, or raise `DaemonUnavailableError` at once."""
        ...

    async def ready(self, line: Line | None, events: list[dict[str, Any]]) -> None:
        """Be where a call with these events may be sent: sending may wait for the daemon to read."""
        ...

    async def wait(self, line: Line, ticket: Ticket, within: float) -> None:
        """Wait until a call is answered or its connection lost.

        Raises:
            CallTimeoutError: Neither in time; the connection is closed.
        """
        ...

    async def pause(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def now(self) -> float:
        """Return a clock that only counts."""
        ...

    def wall_clock(self) -> int:
        """Return epoch milliseconds."""
        ...


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run shared code whose ports block and so never suspend.

    Raises:
        RuntimeError: It suspended after all: asynchronous ports were handed to the blocking client.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("the blocking client was given something to await")
