"""What comes in on a connection: bytes into lines, and how long a peer may take over one.

The rule that holds here: a deadline never ends a connection that is owed something. One that has a write handle, a
call in flight or a subscription may stand still for as long as it likes, and so may one that is between two lines.
Only the time counts in which the daemon waits for the peer, not what it needs or loses itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from dsh_protocol.framing import LineSplitter
from dshd.rpc.duplex import STOOD_STILL_S, within

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_protocol.limits import Limits
    from dshd.rpc.duplex import Duplex

_CHUNK_BYTES = 64 * 1024


class OverdueError(Exception):
    """The peer has let a deadline pass: it said nothing (`hello`), or did not end its line (`frame`)."""

    def __init__(self, deadline: str) -> None:
        super().__init__(deadline)
        self.deadline = deadline


class Incoming:
    """The lines of one connection.

    Args:
        stream: To read from.
        limits: How long a line may be, in bytes and in time.
        is_owed: Whether the connection is to be kept although it is late.
    """

    def __init__(self, stream: Duplex, limits: Limits, is_owed: Callable[[], bool]) -> None:
        self._stream = stream
        self._limits = limits
        self._is_owed = is_owed
        self._splitter = LineSplitter(limits.max_line_bytes)
        self._spoken = False
        self._waited: float | None = 0.0

    async def next_lines(self) -> list[bytes] | None:
        """Return the lines that the next bytes complete, which may be none; None at the end of the stream.

        Raises:
            FrameTooLargeError: A line is too long; the stream cannot be read on.
            OverdueError: The peer was too slow.
        """
        chunk = await self._receive()
        if not chunk:
            return None
        lines = self._splitter.feed(chunk)
        self._spoken = self._spoken or bool(lines)
        if not self._splitter.held_bytes:
            self._waited = None if self._spoken else self._waited
        elif lines or self._waited is None:
            self._waited = 0.0
        return lines

    async def _receive(self) -> bytes:
        try:
            if self._waited is None:  # between two lines, where no deadline runs
                return await self._receive_some()
            return await self._receive_in_time(self._waited)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def _receive_some(self) -> bytes:
        try:
            return await self._stream.receive_some(_CHUNK_BYTES)
        except MemoryError:
            if not self._splitter.held_bytes:
                raise
        self._splitter.cut_line()  # what it held is free now, for this and for everybody else
        return await self._stream.receive_some(_CHUNK_BYTES)

    async def _receive_in_time(self, waited: float) -> bytes:
        """Receive before the deadline; where the connection is owed something, only look again then."""
        started = self._spoken or self._splitter.held_bytes > 0
        allowed = self._limits.frame_seconds if started else self._limits.hello_seconds
        while True:
            left = allowed - waited
            began = trio.current_time()
            chunk = await within(left, self._receive_some) if left > 0 else None
            spent = trio.current_time() - began
            if chunk is not None:
                self._waited = 0.0 if spent > left + STOOD_STILL_S else waited + spent
                return chunk
            if not self._is_owed():
                raise OverdueError("frame" if started else "hello")
            waited = 0.0
