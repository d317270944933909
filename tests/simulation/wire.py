"""Connections in memory: two queues of bytes of limited size, and a daemon's end that the daemon takes for a socket.

The rule that holds here: a line counts as sent when its last byte is in the queue, because then the other end may
have acted on it whatever happens to the daemon. Bytes come in pieces of any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import trio

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from simulation.disk import VirtualDisk

CAPACITY = 64 * 1024
_RELUCTANT = 0.1


class Flow:
    """One direction."""

    def __init__(self, chance: Random, capacity: int = CAPACITY) -> None:
        self._chance = chance
        self._capacity = capacity
        self._held = bytearray()
        self._moved = trio.lowlevel.ParkingLot()
        self.ended = False
        self.deaf = False

    def end(self) -> None:
        """Let the reader come to the end of what is held."""
        self.ended = True
        self._moved.unpark_all()

    def stop_listening(self) -> None:
        """Let the writer find out that nobody reads."""
        self.deaf = True
        self._held.clear()
        self._moved.unpark_all()

    def put_nowait(self, data: bytes) -> int:
        """Take as much as there is room for, which may be nothing; now and then less."""
        if self.deaf or self.ended:
            raise trio.BrokenResourceError
        room = self._capacity - len(self._held)
        if self._chance.random() < _RELUCTANT:
            room = min(room, self._chance.randint(0, len(data)))
        taken = data[: max(room, 0)]
        self._held += taken
        if taken:
            self._moved.unpark_all()
        return len(taken)

    async def put_some(self, data: bytes | memoryview) -> int:
        """Take as much as there is room for."""
        await trio.lowlevel.checkpoint()
        while True:
            if self.deaf or self.ended:
                raise trio.BrokenResourceError
            room = self._capacity - len(self._held)
            if room > 0:
                break
            await self._moved.park()
        taken = data[:room]
        self._held += taken
        self._moved.unpark_all()
        return len(taken)

    async def take_some(self, most: int) -> bytes:
        """Give what is held, or a part of it; nothing at the end."""
        if self._held or self.ended or self.deaf:
            await trio.lowlevel.checkpoint()
        while not self._held:
            if self.ended or self.deaf:
                return b""
            await self._moved.park()
        count = min(most, len(self._held))
        if count > 1 and self._chance.random() < 0.1:
            count = self._chance.randint(1, count)
        taken = bytes(self._held[:count])
        del self._held[:count]
        self._moved.unpark_all()
        return taken


class DaemonEnd:
    """A connection as the daemon has it; see `dshd.rpc.duplex.Duplex`.

    Args:
        incoming: What the client sends.
        outgoing: What the daemon sends.
        disk: Of the daemon's machine: once it is off, nothing is sent.
        sent: Told of every whole line that was sent.
    """

    def __init__(
        self, incoming: Flow, outgoing: Flow, disk: VirtualDisk, sent: Callable[[bytes], None]
    ) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self._disk = disk
        self._sent = sent
        self._part = bytearray()
        self.half = False

    async def receive_some(self, max_bytes: int) -> bytes:
        found = await self.incoming.take_some(max_bytes)
        return b"" if self._disk.off else found

    async def send_some(self, data: bytes | memoryview) -> int:
        if self._disk.off:
            raise trio.BrokenResourceError
        count = await self.outgoing.put_some(data)
        if not self._disk.off:  # only while it waited: nobody is told of what was taken then
            self._note_sent(data[:count])
        return count

    def send_nowait(self, data: bytes) -> int:
        if self._disk.off:
            raise trio.BrokenResourceError
        count = self.outgoing.put_nowait(data)
        self._note_sent(data[:count])
        return count

    def _note_sent(self, data: bytes | memoryview) -> None:
        self._part += data
        *lines, rest = self._part.split(b"\n")
        self._part = bytearray(rest)
        for line in lines:
            self._sent(bytes(line))

    def hung_up(self) -> bool:
        return self.incoming.ended and self.outgoing.deaf

    async def aclose(self) -> None:
        self.incoming.stop_listening()
        self.outgoing.end()
        await trio.lowlevel.checkpoint()


class LostError(Exception):
    """The connection has ended."""


class ClientEnd:
    """A connection as a client has it. One task at a time uses it.

    Args:
        number: Names it.
        outgoing: What the client sends.
        incoming: What the daemon sends.
        asked: Told of every call before it is sent.
    """

    def __init__(
        self,
        number: int,
        outgoing: Flow,
        incoming: Flow,
        asked: Callable[[int, dict[str, Any]], None],
    ) -> None:
        self.number = number
        self.outgoing = outgoing
        self.incoming = incoming
        self._asked = asked
        self._last_id = 0
        self._rest = b""
        self._kept: dict[Any, dict[str, Any]] = {}
        self.told: list[dict[str, Any]] = []

    def request(self, method: str, /, *, notify: bool = False, **params: Any) -> dict[str, Any]:
        """Return a call under the next id, or a notification."""
        made: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if not notify:
            self._last_id += 1
            made["id"] = self._last_id
        return made

    async def send(self, *requests: dict[str, Any], batch: bool = False) -> list[int | None]:
        """Send messages in one piece, each a line or all of them one, and return their ids."""
        for request in requests:
            self._asked(self.number, request)
        if batch:
            data = msgspec.json.encode(requests) + b"\n"
        else:
            data = b"".join(msgspec.json.encode(request) + b"\n" for request in requests)
        await self.send_bytes(data)
        return [request.get("id") for request in requests]

    async def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        left = memoryview(data)
        try:
            while left:
                left = left[await self.outgoing.put_some(left) :]
        except trio.BrokenResourceError as error:
            raise LostError from error

    async def answer(self, wanted: int | None) -> dict[str, Any]:
        """Return the answer to a call; what else comes is kept."""
        while wanted not in self._kept:
            await self._receive()
        return self._kept.pop(wanted)

    async def _receive(self) -> None:
        piece = await self.incoming.take_some(CAPACITY)
        if not piece:
            raise LostError
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            found: Any = msgspec.json.decode(line)
            messages: list[Any] = [found] if isinstance(found, dict) else found
            for message in messages:
                if "method" in message:
                    self.told.append(message)
                else:
                    self._kept[message["id"]] = message

    def close(self) -> None:
        """Close both directions."""
        self.outgoing.end()
        self.incoming.stop_listening()

    def half_close(self) -> None:
        """Send nothing more."""
        self.outgoing.end()
