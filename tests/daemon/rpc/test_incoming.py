from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from dsh_protocol.errors import FrameTooLargeError
from dsh_protocol.framing import CutLine
from dsh_protocol.limits import Limits
from dshd.rpc.duplex import SocketDuplex
from dshd.rpc.incoming import Incoming, OverdueError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LIMITS = Limits(max_line_bytes=100)


class Peer:
    """The two ends of one connection; `owed` says what the daemon would lose with it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003  # the standard library's signature
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        self.socket = theirs
        self.owed = False

    def incoming(self) -> Incoming:
        return Incoming(SocketDuplex(self.stream), LIMITS, lambda: self.owed)


@pytest.fixture
async def peer() -> AsyncGenerator[Peer, None]:
    made = Peer()
    yield made
    made.socket.close()
    made.stream.socket.close()


async def test_lines_come_as_their_bytes_complete_them(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    incoming = peer.incoming()
    peer.socket.sendall(b"one\ntw")
    assert await incoming.next_lines() == [b"one"]
    peer.socket.sendall(b"o\n")
    assert await incoming.next_lines() == [b"two"]
    peer.socket.shutdown(socket.SHUT_WR)
    assert await incoming.next_lines() is None


async def test_a_peer_that_says_nothing_is_given_up_at_the_hello_deadline(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    incoming, began = peer.incoming(), trio.current_time()
    with pytest.raises(OverdueError) as caught:
        await incoming.next_lines()
    assert caught.value.deadline == "hello"
    assert trio.current_time() - began == pytest.approx(LIMITS.hello_seconds, abs=0.1)


@pytest.mark.parametrize("interval", [0.4, 1, 4.5])
async def test_a_peer_that_does_not_end_its_line_is_given_up_at_the_frame_deadline(
    peer: Peer, interval: float, autojump_clock: trio.testing.MockClock
) -> None:
    incoming, began = peer.incoming(), trio.current_time()

    async def drip() -> None:
        while True:
            await trio.sleep(interval)
            peer.socket.sendall(b"x")

    async def receive() -> None:
        while True:
            assert await incoming.next_lines() == []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        with pytest.raises(OverdueError) as caught:
            await receive()
        nursery.cancel_scope.cancel()
    assert caught.value.deadline == "frame"
    assert trio.current_time() - began == pytest.approx(LIMITS.frame_seconds, abs=5)


async def test_a_peer_that_spoke_may_be_silent_between_two_lines_for_ever(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    incoming = peer.incoming()
    peer.socket.sendall(b"hello\n")
    assert await incoming.next_lines() == [b"hello"]
    with trio.move_on_after(5_000) as scope:
        await incoming.next_lines()
    assert scope.cancelled_caught
    peer.socket.sendall(b"again\n")
    assert await incoming.next_lines() == [b"again"]


async def test_the_time_of_a_line_begins_with_the_line_not_with_the_one_before(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    incoming = peer.incoming()
    for _ in range(10):
        peer.socket.sendall(b"beg")
        assert await incoming.next_lines() == []
        await trio.sleep(LIMITS.frame_seconds - 1)
        peer.socket.sendall(b"un\nbeg")
        assert await incoming.next_lines() == [b"begun"]
        await trio.sleep(LIMITS.frame_seconds - 1)
        peer.socket.sendall(b"un\n")
        assert await incoming.next_lines() == [b"begun"]


@pytest.mark.parametrize("said", [b"", b"spoken\nbegun"])
async def test_a_connection_that_is_owed_something_is_never_given_up(
    peer: Peer, said: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    incoming = peer.incoming()
    peer.owed = True
    if said:
        peer.socket.sendall(said)
        assert await incoming.next_lines() == [b"spoken"]
    with trio.move_on_after(5_000) as scope:
        await incoming.next_lines()
    assert scope.cancelled_caught
    peer.socket.sendall(b" line\n")
    assert await incoming.next_lines() is not None


async def test_bytes_that_came_while_the_daemon_stood_still_count_as_in_time(
    peer: Peer, mock_clock: trio.testing.MockClock
) -> None:
    incoming = peer.incoming()

    async def stand_still() -> None:
        await trio.testing.wait_all_tasks_blocked()
        peer.socket.sendall(b"in time\n")
        mock_clock.jump(3600)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stand_still)
        assert await incoming.next_lines() == [b"in time"]


class StoodStill(SocketDuplex):
    """A stream whose peer sends while the daemon stands still between its look and its clock."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer.stream)
        self._peer = peer

    async def receive_some(self, max_bytes: int) -> bytes:
        try:
            return await super().receive_some(max_bytes)
        except trio.Cancelled:
            self._peer.socket.sendall(b"in time\n")
            raise


async def test_bytes_that_came_between_the_last_look_and_the_deadline_count_as_in_time(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    incoming = Incoming(StoodStill(peer), LIMITS, lambda: False)
    assert await incoming.next_lines() == [b"in time"]


async def test_the_rest_of_a_line_that_was_on_its_way_when_the_daemon_stood_still_has_its_whole_time(
    peer: Peer, mock_clock: trio.testing.MockClock
) -> None:
    incoming = peer.incoming()

    async def stand_still_twice() -> None:
        await trio.testing.wait_all_tasks_blocked()
        peer.socket.sendall(b"on ")
        mock_clock.jump(3600)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(3600)
        peer.socket.sendall(b"its way\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stand_still_twice)
        assert await incoming.next_lines() == []
        assert await incoming.next_lines() == [b"on its way"]


async def test_the_time_that_the_daemon_takes_between_two_looks_is_not_the_peers(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    incoming = peer.incoming()
    peer.socket.sendall(b"one\ntw")
    assert await incoming.next_lines() == [b"one"]
    await trio.sleep(3600)
    peer.socket.sendall(b"o\n")
    assert await incoming.next_lines() == [b"two"]


async def test_a_line_without_an_end_is_refused_at_the_cap(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    peer.socket.sendall(b"x" * 101)
    with pytest.raises(FrameTooLargeError):
        await peer.incoming().next_lines()


class ScarceDuplex:
    """A stream that has some pieces; where one is None, there is no memory for the next."""

    def __init__(self, *pieces: bytes | None) -> None:
        self.pieces = list(pieces)

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        piece = self.pieces.pop(0)
        if piece is None:
            raise MemoryError
        return piece

    async def send_some(self, data: bytes | memoryview) -> int:
        raise NotImplementedError

    def send_nowait(self, data: bytes | memoryview) -> int:
        raise NotImplementedError

    def hung_up(self) -> bool:
        return False

    async def aclose(self) -> None:
        pass


async def test_a_line_gives_its_memory_back_where_there_is_none_and_the_next_one_is_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    stream = ScarceDuplex(b"one\nbeg", b"inning", None, b"end\n", b"next\n")
    incoming = Incoming(stream, LIMITS, lambda: False)
    lines: list[bytes] = []
    while stream.pieces:
        lines += await incoming.next_lines() or []
    assert lines == [b"one", b"beginning", b"next"]
    assert [type(line) for line in lines] == [bytes, CutLine, bytes]


async def test_no_memory_between_two_lines_is_told(autojump_clock: trio.testing.MockClock) -> None:
    incoming = Incoming(ScarceDuplex(b"one\n", None), LIMITS, lambda: False)
    assert await incoming.next_lines() == [b"one"]
    with pytest.raises(MemoryError):
        await incoming.next_lines()
