"""The two directions of one connection, as far as the daemon uses them: a socket, or a test's stand-in for one.

The rule that holds here: a call does one thing and reports what the kernel said. A send that takes less than it was
given says so; completing it is the caller's.
"""

from __future__ import annotations

import select
from typing import Protocol

import trio


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
        """Receive; see `Duplex`."""
        return await self._stream.receive_some(max_bytes)

    async def send_some(self, data: bytes | memoryview) -> int:
        """Send; see `Duplex`."""
        try:
            return await self._stream.socket.send(data)
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
