"""The two directions of one connection, as far as the daemon uses them: a socket, or a test's stand-in for one.

The rule that holds here: a call does one thing and reports what the kernel said. A send that takes less than it was
given says so; completing it is the caller's.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

STOOD_STILL_S = 0.5
"""A wait that ends so much later than it was to end says that the daemon stood still."""

_LOOK_S = 0.01

Done = TypeVar("Done")


class Duplex(Protocol):
    """A stream of bytes in both directions."""

    async def receive_some(self, max_bytes: int) -> bytes:
        """Receive what is there, at least one byte; nothing where the peer has ended its side."""
        ...

    async def send_some(self, data: bytes | memoryview) -> int:
        """Send what can be sent at once, at least one byte, and return how much it was.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: The peer is gone, or the stream was closed.
        """
        ...

    def send_nowait(self, data: bytes) -> int:
        """Send what the kernel takes at this moment, which may be nothing, and return how much it was.

        Raises:
            trio.BrokenResourceError: The peer is gone, or the stream was closed.
        """
        ...

    def hung_up(self) -> bool:
        """Whether the peer has closed both directions, so that nobody reads what is sent."""
        ...

    async def aclose(self) -> None:
        """Close it, also when cancelled."""
        ...


class SocketDuplex:
    """A connected socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int) -> bytes:
        """Receive; see `Duplex`. Raises trio.BrokenResourceError, trio.ClosedResourceError."""
        socket = self._stream.socket
        while True:
            # Whoever asks has mostly read all that was there: the kernel is asked once, when it has something.
            if socket.fileno() < 0:
                raise trio.ClosedResourceError
            await trio.lowlevel.wait_readable(socket)
            try:
                return os.read(socket.fileno(), max_bytes)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def send_some(self, data: bytes | memoryview) -> int:
        """Send; see `Duplex`."""
        try:
            return await self._stream.socket.send(data)
        except OSError as error:
            raise trio.BrokenResourceError from error

    def send_nowait(self, data: bytes) -> int:
        """Send; see `Duplex`."""
        try:
            return os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError from error

    def hung_up(self) -> bool:
        """Ask the kernel, which tells this from a half-close; see `Duplex`."""
        poll = select.poll()
        poll.register(self._stream.socket.fileno(), 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))

    async def aclose(self) -> None:
        """Close; see `Duplex`."""
        await self._stream.aclose()


async def within(seconds: float, act: Callable[[], Awaitable[Done]]) -> Done | None:
    """Return what a call on a stream gives in time; None where the peer took longer.

    Only the peer's time counts. After the deadline comes one more look, which hardly waits: a daemon that stood still
    (SIGSTOP, a frozen container) may have asked the kernel before and read its clock after. One that stood still for
    long gives the peer, which may have stood still with it, the whole time again.
    """
    while True:
        deadline = trio.current_time() + seconds
        with trio.move_on_at(deadline):
            return await act()
        with trio.move_on_after(_LOOK_S):
            return await act()
        if trio.current_time() - deadline < STOOD_STILL_S:
            return None
