"""The outbox: what a connection still has to send, and the one task that sends it.

A line is sent whole or the connection is closed: after a send that was cut short nothing more is written. A peer that
does not read costs the bytes of its budget and then its connection.
"""

from __future__ import annotations

import trio

_SEND_LIMIT_S = 10.0
_ROOM_BYTES = 1024 * 1024


class Outbox:
    """Lines to send on one stream, in order."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._lines: list[bytes] = []
        self._size = 0
        self._wake = trio.Event()
        self._room = trio.Event()
        self._finished = False

    def put(self, line: bytes) -> None:
        """Queue one line; the newline is added here."""
        if self._finished:
            return
        self._lines.append(line)
        self._lines.append(b"\n")
        self._size += len(line) + 1
        self._wake.set()

    def finish(self) -> None:
        """Send what is queued, then end `run`."""
        self._finished = True
        self._wake.set()

    @property
    def has_room(self) -> bool:
        """Whether what is queued is within the budget."""
        return self._size <= _ROOM_BYTES

    async def wait_room(self) -> None:
        """Wait until what is queued is within the budget: a caller that makes more waits here first."""
        while self._size > _ROOM_BYTES:
            self._room = trio.Event()
            await self._room.wait()

    async def run(self) -> None:
        """Send until finished.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: The peer is gone.
            trio.TooSlowError: It did not read for too long.
        """
        while True:
            while self._lines:
                lines, self._lines = self._lines, []
                size, data = self._size, b"".join(lines)
                with trio.fail_after(_SEND_LIMIT_S):
                    await self._stream.send_all(data)
                self._size -= size
                self._room.set()
            if self._finished:
                return
            self._wake = trio.Event()
            if not self._lines and not self._finished:
                await self._wake.wait()
