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


def offsets(index: SeqIndex) -> list[int]:
    return [place.offset for place in index.before(2**62)]


def test_an_index_holds_4096_places_and_is_thinned_by_the_next() -> None:
    assert MOST == 4096
    assert len(SeqIndex((at * 1000, at) for at in range(1, MOST + 1))) == MOST
    index = SeqIndex((at, at) for at in range(1, MOST + 1))
    assert offsets(index) == [*range(1, MOST + 1)]
    index.add(MOST + 1, MOST + 1)
    assert offsets(index) == [*range(1, MOST + 2, 2)]
    assert index.locate(MOST) == Position(MOST - 1 | 1, MOST - 1 | 1)
    for at in (MOST + 2, MOST + 3):
        index.add(at, at)
        assert index.last() == index.locate(at) == index.locate(2**40) == Position(at, at)
    assert offsets(index)[-2:] == [MOST + 1, MOST + 3], "the gap stays, and a place at it is held"


def test_the_gap_grows_with_the_log_and_not_with_where_it_begins() -> None:
    for front in (1, 10**12):
        sparse = SeqIndex((front + at * 1000, at) for at in range(MOST + 1))
        assert offsets(sparse)[:2] == [front, front + 2000], "4 MB in 2048 parts"
        assert len(sparse) == MOST // 2 + 1
        grown = SeqIndex((front + at, at) for at in range(2 * MOST + 1))
        assert offsets(grown)[:3] == [front, front + 4, front + 8]


def test_places_before_an_offset_do_not_hold_the_one_at_it() -> None:
    index = SeqIndex([(10, 1), (20, 4), (30, 9)])
    assert index.before(20) == [Position(10, 1)]
    assert index.before(21) == [Position(10, 1), Position(20, 4)]
    assert index.before(10) == []
    assert len(index) == 3
    assert [index.locate(seq).offset for seq in (0, 1, 3, 4, 8, 9, 10)] == [
        0,
        10,
        10,
        20,
        20,
        30,
        30,
    ]


def test_the_first_byte_is_no_place_of_its_own() -> None:
    index = SeqIndex([(0, 0)])
    assert (len(index), index.last(), index.locate(7)) == (0, Position(0, 0), Position(0, 0))
    index.add(1, 0)
    assert index.before(9) == [Position(1, 0)]
