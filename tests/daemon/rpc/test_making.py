from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from dsh_protocol.errors import OverloadedError
from dsh_protocol.limits import Limits
from dshd.rpc.duplex import SocketDuplex
from dshd.rpc.making import (
    LONGEST_WAIT_S,
    MOST_BYTES,
    PLACES,
    PRESSED_S,
    SMALL_SHARE,
    STUCK_S,
    Making,
)
from dshd.rpc.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@pytest.fixture
async def stream() -> AsyncGenerator[trio.SocketStream, None]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003  # the standard library's signature
    yield trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    ours.close()
    theirs.close()


async def test_few_large_replies_are_made_at_a_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    making = Making()
    most = now = 0

    async def make() -> None:
        nonlocal most, now
        async with making.turn():
            now += 1
            most = max(most, now)
            await trio.sleep(STUCK_S / 2)
            now -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(make)
    assert most == PLACES


async def test_a_maker_whose_disk_does_not_answer_keeps_nobody_out_for_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    making = Making()
    async with AsyncExitStack() as stuck:
        for _ in range(PLACES):
            await stuck.enter_async_context(making.turn())
        with trio.fail_after(2 * STUCK_S + 0.1):
            async with making.turn():
                pass


async def test_with_too_much_unsent_nothing_large_is_made_and_who_waits_too_long_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    making = Making()
    making.count(MOST_BYTES + 1)
    began = trio.current_time()
    with pytest.raises(OverloadedError):
        async with making.turn():
            pytest.fail("made although there is no room")
    assert trio.current_time() - began >= LONGEST_WAIT_S
    making.count(-1)
    async with making.turn():
        pass


async def test_one_that_waits_for_room_without_end_keeps_no_other_of_its_connection_from_its_answer(
    stream: trio.SocketStream, autojump_clock: trio.testing.MockClock
) -> None:
    making = Making()
    making.count(MOST_BYTES + 1)
    outbox = Outbox(SocketDuplex(stream), Limits(), making)
    got: list[str] = []

    async def follow() -> None:
        async with outbox.large(refused=False):
            got.append("followed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(3 * LONGEST_WAIT_S), pytest.raises(OverloadedError):
            async with outbox.large():
                pytest.fail("made although there is no room")
        assert got == []
        making.count(-MOST_BYTES)
    assert got == ["followed"]


async def test_what_is_reserved_counts_until_it_is_given_back() -> None:
    making = Making()
    async with making.reserved(MOST_BYTES + 1), making.place():
        assert making.is_tight
    assert not making.is_tight


async def test_a_peer_that_takes_nothing_is_given_up_sooner_while_others_wait_for_room(
    stream: trio.SocketStream, autojump_clock: trio.testing.MockClock
) -> None:
    making = Making()
    outbox = Outbox(SocketDuplex(stream), Limits(), making)
    outbox.put(b"x" * 1_000_000)
    making.count(MOST_BYTES)
    assert not outbox.has_room
    began = trio.current_time()

    async def wait() -> None:
        async with making.turn():
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        with pytest.raises(trio.TooSlowError):
            await outbox.run()
        assert trio.current_time() - began < PRESSED_S * 2
        outbox.drop()
        making.count(-MOST_BYTES)
    assert not making.is_tight


async def test_while_all_hold_too_much_each_may_hold_little(stream: trio.SocketStream) -> None:
    making = Making()
    outbox = Outbox(SocketDuplex(stream), Limits(), making)
    outbox.put(b"x" * SMALL_SHARE)
    assert outbox.has_room
    making.count(MOST_BYTES)
    assert not outbox.has_room
    making.count(-MOST_BYTES)
    assert outbox.has_room
