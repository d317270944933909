"""The places at which reading can begin: evenly thinned, and never behind what is asked for."""

from __future__ import annotations

from dshd.storage.jsonl.index import MOST, Position, SeqIndex


def test_an_index_is_thinned_evenly_and_still_finds_every_seq() -> None:
    index, count = SeqIndex(), 50_000
    for number in range(count):
        index.add(100 + number * 1000, number * 3)
    assert len(index) <= MOST
    assert index.last() == (100 + (count - 1) * 1000, (count - 1) * 3)
    farthest = 0
    for seq in range(0, count * 3, 7):
        found = index.locate(seq)
        assert found.seq <= seq
        assert found.offset == 100 + found.seq // 3 * 1000
        farthest = max(farthest, 100 + seq // 3 * 1000 - found.offset)
    assert farthest < 4 * count * 1000 // MOST
    again = SeqIndex(index.before(2**62))
    assert [again.locate(seq) for seq in (0, 777, 9999)] == [
        index.locate(seq) for seq in (0, 777, 9999)
    ]


def test_a_place_that_is_known_is_not_noted_again_and_without_any_reading_begins_at_the_front() -> (
    None
):
    index = SeqIndex()
    assert index.locate(5) == Position(0, 0)
    for offset in (10, 10, 5):
        index.add(offset, 3)
    assert index.before(100) == [Position(10, 3)]
    assert index.locate(2) == Position(0, 0)
    assert index.locate(3) == index.last() == Position(10, 3)
