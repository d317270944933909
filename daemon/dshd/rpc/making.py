"""Large replies, over all connections: few are made at a time, and none while too much of them waits to be taken.

The interpreter does one thing at a time, so that more makers would only keep everybody else from their turn. The rule
that holds here: nobody waits for ever. A maker whose disk does not answer keeps others out for a second only, a peer
that takes nothing is given up sooner while others wait, and who has waited as long as such a peer may is refused.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import trio

from dsh_protocol.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

MOST_BYTES = 80 * 1024 * 1024
"""Of replies that are made and not taken, over all connections; then no large one is made."""
PLACES = 1
STUCK_S = 0.25
PRESSED_S = 0.5
"""How long a peer may take nothing while others wait for room."""
LONGEST_WAIT_S = 10.0
SMALL_SHARE = 64 * 1024
"""What a connection may have unsent while there is no room, before it is not read."""


class Making:
    """Who makes a large reply, and how much of what was made is still here."""

    def __init__(self) -> None:
        self._unsent = 0
        self._waiting = 0
        self._since: dict[object, float] = {}
        self._lot = trio.lowlevel.ParkingLot()

    @property
    def is_tight(self) -> bool:
        """Whether too much waits to be taken."""
        return self._unsent > MOST_BYTES

    @property
    def is_pressed(self) -> bool:
        """Whether it does, and somebody waits for room."""
        return self.is_tight and self._waiting > 0

    def count(self, size: int) -> None:
        """Count so many bytes more (or fewer, where negative) that are made and not taken."""
        self._unsent += size
        if size < 0:
            self._lot.unpark()

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None, None]:
        """Wait for room and for a place; inside, the reply is made.

        Raises:
            OverloadedError: There was no room for too long.
        """
        await self._wait(place=True, room=True)
        with self._in_place():
            yield

    @asynccontextmanager
    async def reserved(self, size: int) -> AsyncGenerator[None, None]:
        """Wait for room for what grows piece by piece, each made in a `place`; nothing where `size` is 0.

        Raises:
            OverloadedError: There was no room for too long.
        """
        if size:
            await self._wait(room=True)
        self.count(size)
        try:
            yield
        finally:
            self.count(-size)

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None, None]:
        """Wait for a place alone: there is room."""
        await self._wait(place=True)
        with self._in_place():
            yield

    @contextmanager
    def _in_place(self) -> Generator[None, None, None]:
        me = object()
        self._since[me] = trio.current_time()
        try:
            yield
        finally:
            del self._since[me]
            self._lot.unpark()

    async def _wait(self, *, place: bool = False, room: bool = False) -> None:
        until = trio.current_time() + LONGEST_WAIT_S
        self._waiting += 1
        try:
            while (room and self.is_tight) or (place and self._taken() >= PLACES):
                if room and trio.current_time() > until:
                    raise OverloadedError(
                        "the daemon holds as many replies as it may that clients have not read; try again",
                        limit="unsentReplies",
                        maximum=MOST_BYTES,
                    )
                with trio.move_on_after(STUCK_S):
                    await self._lot.park()
        finally:
            self._waiting -= 1

    def _taken(self) -> int:
        """How many places are taken by those who have not been at it for too long."""
        stuck = trio.current_time() - STUCK_S
        return sum(since > stuck for since in self._since.values())
