"""What waits for watchers is bounded in bytes, held and encoded once for all, and nobody misses an event by it."""

from __future__ import annotations

import json

import msgspec
import pytest
import trio

from dshd.sessions.blocks import MOST_BLOCKS, Block, Blocks
from dshd.sessions.watchers import (
    MAX_BEHIND_EVENTS,
    MAX_HELD_BYTES,
    MAX_QUEUED_BYTES,
    Watcher,
    Watchers,
)
from support import events

SIZE = MAX_QUEUED_BYTES // 4


def batch(first: int, count: int = 1) -> list[events.Event]:
    return [{**events.chunk(), "seq": first + at, "time": 1} for at in range(count)]


def joined(watchers: Watchers, session_id: str = "s", from_seq: int = 0) -> Watcher:
    watcher = Watcher(session_id, from_seq)
    watchers.add(watcher)
    watchers.join(watcher)
    return watcher


def seqs(watcher: Watcher) -> list[int]:
    return [json.loads(line)["seq"] for line in watcher.take()]


def test_a_watcher_that_does_not_take_reads_on_from_the_disk_where_it_stands() -> None:
    watchers = Watchers()
    slow = joined(watchers)
    for seq in range(4):
        watchers.publish("s", batch(seq), SIZE)
    assert slow.joined
    assert watchers.queued_bytes == MAX_QUEUED_BYTES
    watchers.publish("s", batch(4), SIZE)
    assert (slow.joined, slow.missed, slow.lagged, slow.queued) == (False, True, False, False)
    assert slow.next_seq == 0
    assert watchers.queued_bytes == 0


def test_a_batch_that_no_queue_has_room_for_is_read_from_the_disk() -> None:
    watchers = Watchers()
    quick = joined(watchers)
    watchers.publish("s", batch(0, 3), MAX_QUEUED_BYTES + 1)
    assert (quick.joined, quick.missed, quick.next_seq) == (False, True, 0)


def test_what_waits_for_many_is_counted_once_and_gone_when_the_last_has_it() -> None:
    watchers = Watchers()
    many = [joined(watchers) for _ in range(20)]
    watchers.publish("s", batch(0, 2), SIZE)
    assert watchers.queued_bytes == SIZE
    for watcher in many[:-1]:
        assert seqs(watcher) == [0, 1]
    assert watchers.queued_bytes == SIZE
    watchers.remove(many[-1])
    assert watchers.queued_bytes == 0


def test_all_queues_together_are_bounded() -> None:
    watchers = Watchers()
    sessions = [str(number) for number in range(2 * MAX_HELD_BYTES // MAX_QUEUED_BYTES)]
    followers = [joined(watchers, session_id) for session_id in sessions]
    for session_id in sessions:
        watchers.publish(session_id, batch(0), MAX_QUEUED_BYTES)
    assert watchers.queued_bytes == MAX_HELD_BYTES
    assert [one.joined for one in followers].count(False) == len(sessions) // 2


def test_one_that_was_joined_and_is_far_behind_is_told_so() -> None:
    watchers = Watchers()
    slow = joined(watchers)
    watchers.publish("s", batch(0, MAX_BEHIND_EVENTS), MAX_QUEUED_BYTES + 1)
    assert not slow.lagged
    watchers.publish("s", batch(MAX_BEHIND_EVENTS), SIZE)
    assert slow.lagged
    assert slow.next_seq == 0


def test_one_that_has_only_begun_to_read_does_not_lag_however_much_comes() -> None:
    watchers = Watchers()
    begun = Watcher("s", 0)
    watchers.add(begun)
    watchers.publish("s", batch(2 * MAX_BEHIND_EVENTS), SIZE)
    assert (begun.missed, begun.lagged) == (True, False)


def test_a_watcher_gets_only_what_it_is_owed_of_a_batch() -> None:
    watchers = Watchers()
    later, now = joined(watchers, from_seq=2), joined(watchers)
    watchers.publish("s", batch(0, 4), SIZE)
    assert seqs(later) == [2, 3]
    assert seqs(now) == [0, 1, 2, 3]
    beyond = joined(watchers, from_seq=10)
    watchers.publish("s", batch(4), SIZE)
    assert seqs(beyond) == []
    assert beyond.next_seq == 10


async def changes(watcher: Watcher) -> bool:
    with trio.move_on_after(0.01) as waited:
        await watcher.wait_change()
    return not waited.cancelled_caught


def test_a_watcher_waits_only_while_there_is_nothing_for_it() -> None:
    async def go() -> None:
        watchers = Watchers()
        watcher = joined(watchers)
        assert not await changes(watcher)
        watchers.publish("s", batch(0), SIZE)
        assert await changes(watcher)
        watcher.take()
        assert not await changes(watcher)
        watchers.publish("s", batch(1), MAX_QUEUED_BYTES + 1)
        assert await changes(watcher)
        watchers.join(watcher)
        watchers.end("s", "the session was deleted")
        assert await changes(watcher)

    trio.run(go)


# ---------------------------------------------------------------------- blocks


def block(session_id: str, first: int, count: int = 3) -> Block:
    return Block(session_id, first, [msgspec.Raw(b"x" * 9)] * count)


@pytest.mark.parametrize(
    ("offset", "budget", "found"),
    [(4, 100, 0), (5, 100, 3), (6, 100, 2), (7, 100, 1), (8, 100, 0), (5, 20, 2), (5, 1, 1)],
)
def test_a_block_gives_what_it_has_within_the_budget_and_one_event_at_least(
    offset: int, budget: int, found: int
) -> None:
    blocks = Blocks()
    blocks.keep(block("s", 5), blocks.drops)
    assert len(blocks.find("s", offset, budget)) == found
    assert blocks.find("other", offset, budget) == []


def test_the_blocks_used_least_recently_make_room() -> None:
    blocks = Blocks()
    for number in range(MOST_BLOCKS):
        blocks.keep(block(str(number), 0), blocks.drops)
    assert blocks.find("0", 0, 100)
    blocks.keep(block("new", 0), blocks.drops)
    assert blocks.count == MOST_BLOCKS
    assert blocks.find("0", 0, 100)
    assert not blocks.find("1", 0, 100)


def test_what_was_read_while_a_session_went_away_is_not_kept() -> None:
    blocks = Blocks()
    since = blocks.drops
    blocks.drop("s")
    blocks.keep(block("s", 0), since)
    assert blocks.count == 0


def test_blocks_go_when_nobody_behind_follows_their_session() -> None:
    watchers = Watchers()
    behind, other = Watcher("s", 0), Watcher("s", 0)
    watchers.add(behind)
    watchers.add(other)
    watchers.blocks.keep(block("s", 0), watchers.blocks.drops)
    watchers.join(behind)
    assert watchers.blocks.count == 1
    watchers.remove(other)
    assert watchers.blocks.count == 0
