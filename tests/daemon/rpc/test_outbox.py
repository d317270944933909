from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from dsh_protocol.limits import Limits
from dshd.rpc.duplex import SocketDuplex
from dshd.rpc.making import PRESSED_S
from dshd.rpc.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LIMITS = Limits(max_unsent_bytes=400_000)
LARGE = b"x" * 1_000_000


class Peer:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        for one in (ours, theirs):
            one.setblocking(False)  # noqa: FBT003  # the standard library's signature
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        self.socket = trio.socket.from_stdlib_socket(theirs)
        self.outbox = Outbox(SocketDuplex(self.stream), LIMITS)

    async def read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += await self.socket.recv(count - len(found))
        return found


@pytest.fixture
async def peer() -> AsyncGenerator[Peer, None]:
    made = Peer()
    yield made
    made.socket.close()
    made.stream.socket.close()


async def test_lines_of_all_sizes_come_whole_and_in_order(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    lines = [b"1", LARGE, b"2", b"3", LARGE, b"4"]
    for line in lines:
        peer.outbox.put(line)
    peer.outbox.finish()
    peer.outbox.put(b"too late")
    whole = b"".join(line + b"\n" for line in lines)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.outbox.run)
        assert await peer.read(len(whole)) == whole
    assert peer.outbox.has_room


async def test_a_peer_that_does_not_read_is_given_up_after_its_time(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    peer.outbox.put(LARGE)
    began = trio.current_time()
    with pytest.raises(trio.TooSlowError):
        await peer.outbox.run()
    assert trio.current_time() - began == pytest.approx(LIMITS.unsent_seconds, abs=0.5)


async def test_a_peer_that_reads_at_all_is_kept_however_slow(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    peer.outbox.put(LARGE)
    peer.outbox.finish()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.outbox.run)
        left = len(LARGE) + 1
        while left:
            await trio.sleep(LIMITS.unsent_seconds - 1)
            left -= len(await peer.read(min(left, 200_000)))


class StoodStill(SocketDuplex):
    """A stream whose peer reads while the daemon stands still, at each end of its patience."""

    def __init__(self, peer: Peer, clock: trio.testing.MockClock) -> None:
        super().__init__(peer.stream)
        self._peer = peer
        self._clock = clock
        self.rounds = 3
        self.done = trio.Event()

    async def send_some(self, data: bytes | memoryview) -> int:
        try:
            return await super().send_some(data)
        except trio.Cancelled:
            if self.rounds:
                self.rounds -= 1
                self._clock.jump(LIMITS.unsent_seconds)
                with trio.CancelScope(shield=True):
                    await self._peer.read(50_000)
                if not self.rounds:
                    self.done.set()
            raise


async def test_what_was_read_between_the_last_look_and_the_deadline_counts_as_in_time(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    stood_still = StoodStill(peer, autojump_clock)
    outbox = Outbox(stood_still, LIMITS)
    outbox.put(LARGE)
    outbox.finish()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        await stood_still.done.wait()
        await peer.read(len(LARGE) + 1 - 3 * 50_000)


async def test_everybody_who_waits_for_room_is_let_go_when_there_is(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    peer.outbox.put(LARGE)
    peer.outbox.hold(10)
    freed: list[str] = []

    async def wait(name: str) -> None:
        await peer.outbox.wait_room()
        freed.append(name)

    async def wait_idle() -> None:
        await peer.outbox.wait_idle()
        freed.append("idle")

    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(wait, name)
            nursery.start_soon(wait_idle)
            nursery.start_soon(peer.outbox.run)
            await trio.testing.wait_all_tasks_blocked()
            assert not freed
            await peer.read(len(LARGE) + 1)
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(freed) == ["a", "b", "c", "idle"]
            nursery.cancel_scope.cancel()


async def test_a_reply_that_is_held_back_counts_for_a_moment_for_it_may_wait_for_the_one_to_be_made(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    peer.outbox.hold(len(LARGE))
    assert peer.outbox.has_room
    began = trio.current_time()
    with trio.fail_after(5):
        async with peer.outbox.large():
            assert trio.current_time() - began >= PRESSED_S
    peer.outbox.release(len(LARGE))
    began = trio.current_time()
    await peer.outbox.wait_idle()
    assert trio.current_time() == began


async def test_a_peer_that_is_gone_is_told_as_gone(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    peer.socket.close()
    peer.outbox.put(LARGE)
    with pytest.raises(trio.BrokenResourceError):
        await peer.outbox.run()


async def test_a_line_goes_out_at_once_where_nothing_waits_before_it(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.outbox.run)
        await trio.testing.wait_all_tasks_blocked()
        peer.outbox.put(b"now")
        assert os.read(peer.socket.fileno(), 100) == b"now\n"  # without a turn of the loop
        nursery.cancel_scope.cancel()


async def test_what_the_kernel_does_not_take_at_once_follows_whole_and_in_order(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    lines = [str(number).encode() * 20_000 for number in range(10, 60)]
    whole = b"".join(line + b"\n" for line in lines)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.outbox.run)
        await trio.testing.wait_all_tasks_blocked()
        for line in lines:
            peer.outbox.put(line)
        assert not peer.outbox.has_room
        assert await peer.read(len(whole)) == whole
        await trio.testing.wait_all_tasks_blocked()
        assert peer.outbox.has_room
        peer.outbox.put(b"last")
        assert await peer.read(5) == b"last\n"
        nursery.cancel_scope.cancel()


async def test_a_line_for_a_peer_that_has_gone_meanwhile_ends_the_sending(
    peer: Peer, autojump_clock: trio.testing.MockClock
) -> None:
    with pytest.RaisesGroup(trio.BrokenResourceError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.outbox.run)
            await trio.testing.wait_all_tasks_blocked()
            peer.socket.close()
            peer.outbox.put(b"nobody hears it")
