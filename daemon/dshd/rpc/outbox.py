"""The outbox: what a connection still has to send, and the one task that sends it.

A line is sent whole or the connection is closed: after a send that was cut short nothing more is written. A peer that
does not read costs the bytes of its budget and then its connection.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from dsh_protocol.errors import OverloadedError
from dshd.rpc.duplex import within
from dshd.rpc.making import PRESSED_S, SMALL_SHARE, Making

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from dsh_protocol.limits import Limits
    from dshd.rpc.duplex import Duplex

_LARGE_BYTES = 64 * 1024


class Outbox:
    """Lines to send on one stream, in order.

    Args:
        stream: To write to.
        limits: The budget in bytes, and how long a peer may take nothing of what waits for it.
        making: Of the daemon, where all connections' replies count; one of its own by default.
    """

    def __init__(self, stream: Duplex, limits: Limits, making: Making | None = None) -> None:
        self._stream = stream
        self._making = making or Making()
        self._one_large = trio.CapacityLimiter(1)
        self._budget = limits.max_unsent_bytes
        self._patience = limits.unsent_seconds
        self._lines: list[bytes] = []
        self._size = 0
        self._held = 0
        self._wake = trio.Event()
        self._room = trio.lowlevel.ParkingLot()
        self._finished = False
        self._idle = False

    def put(self, line: bytes) -> None:
        """Send one line, or queue what the kernel does not take at once; the newline is added here."""
        if self._finished:
            return
        rest = [line, b"\n"]
        if self._idle and len(line) <= _LARGE_BYTES:
            whole = b"%b\n" % line
            sent = self._send_nowait(whole)
            if sent == len(whole):
                return
            rest = [whole[sent:]]
        size = sum(map(len, rest))
        self._lines += rest
        self._size += size
        self._making.count(size)
        self._idle = False
        self._wake.set()

    def _send_nowait(self, data: bytes) -> int:
        """Send without a turn of the sending task, which has nothing else to send; it finds out what is broken."""
        try:
            return self._stream.send_nowait(data)
        except trio.BrokenResourceError:
            return 0

    def hold(self, size: int) -> None:
        """Count a reply that is made and may not go yet, because it waits for its turn."""
        self._held += size
        self._making.count(size)

    def release(self, size: int) -> None:
        """Count it no longer: it is put, or dropped."""
        self._held -= size
        self._making.count(-size)
        self._tell_room()

    def finish(self) -> None:
        """Send what is queued, then end `run`."""
        self._finished = True
        self._wake.set()

    def drop(self) -> None:
        """Give up what is queued: the connection has ended."""
        self._finished = True
        self._lines.clear()
        self._making.count(-self._size)
        self._size = 0

    @property
    def has_room(self) -> bool:
        """Whether what is queued is within the budget, which is a small one while all connections hold too much."""
        return self._size <= (SMALL_SHARE if self._making.is_tight else self._budget)

    @asynccontextmanager
    async def large(self, *, refused: bool = True) -> AsyncGenerator[None, None]:
        """Wait to make a large reply: one at a time, and none while the peer has yet to read the last ones.

        Raises:
            OverloadedError: All connections hold too much for too long; not where it is not to be `refused`.
        """
        async with AsyncExitStack() as turn:
            while True:
                try:
                    async with AsyncExitStack() as trying:
                        await trying.enter_async_context(self._one_large)
                        await self.wait_idle()
                        await trying.enter_async_context(self._making.turn())
                        await turn.enter_async_context(trying.pop_all())
                    break
                except OverloadedError:  # the room may be held by what waits for its turn here
                    if refused:
                        raise
            yield

    async def wait_room(self) -> None:
        """Wait until what is queued is within the budget: a caller that makes more waits here first."""
        while not self.has_room:
            with trio.move_on_after(PRESSED_S):  # others may have made room
                await self._room.park()

    async def wait_idle(self) -> None:
        """Wait until little is queued or held: whoever makes a large reply waits here first.

        For what is held only a moment: it may be waiting for the very reply that is to be made.
        """
        most, until = self._budget // 4, trio.current_time() + PRESSED_S
        while self._size + self._held > most:
            if self._size <= most and trio.current_time() >= until:
                return
            with trio.move_on_after(PRESSED_S):
                await self._room.park()

    def _tell_room(self) -> None:
        if self.has_room:
            self._room.unpark_all()

    async def run(self) -> None:
        """Send until finished.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: The peer is gone.
            trio.TooSlowError: It did not read for too long.
        """
        while True:
            while self._lines:
                lines, self._lines = self._lines, []
                await self._send(lines)
            if self._finished:
                return
            self._wake = trio.Event()
            if not self._lines and not self._finished:
                self._idle = True
                try:
                    await self._wake.wait()
                finally:
                    self._idle = False

    async def _send(self, lines: list[bytes]) -> None:
        for piece in _pieces(lines):
            left = memoryview(piece)
            while left:
                sent = await self._send_some(left)
                left = left[sent:]
                self._size -= sent
                self._making.count(-sent)
                self._tell_room()

    async def _send_some(self, data: memoryview) -> int:
        """Send what the kernel takes. A peer that reads at all is never too slow, whoever stood still meanwhile.

        One that takes nothing of a large reply is given up sooner while others wait for the room that it takes.
        """
        left = float(self._patience)
        while left > 0:
            look = min(left, PRESSED_S)
            sent = await within(look, lambda: self._stream.send_some(data))
            if sent is not None:
                return sent
            if self._making.is_pressed and len(data) > SMALL_SHARE:
                raise trio.TooSlowError
            left -= look
        raise trio.TooSlowError


def _pieces(lines: list[bytes]) -> list[bytes]:
    """Join small lines; a large reply is sent as it is, without a copy."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for line in lines:
        if len(line) <= _LARGE_BYTES:
            small.append(line)
            continue
        pieces.append(b"".join(small))
        small = []
        pieces.append(line)
    pieces.append(b"".join(small))
    return [piece for piece in pieces if piece]
