"""A pass over a log to the byte: what is proven at the bound, where reading can begin, and what is still a tail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

import pytest
import zstandard

from dsh_protocol.errors import LogCorruptError
from dsh_protocol.jsontext import encode
from dshd.storage.jsonl import scan as under_test
from dshd.storage.jsonl.frames import MAGIC, MAX_PLAIN, FrameEncoder
from dshd.storage.jsonl.index import Position, SeqIndex
from dshd.storage.jsonl.scan import Known, Torn, Walk
from dshd.storage.jsonl.source import Source, read_header
from storage.samples import batch, event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dshd.storage.files import Disk

frame = FrameEncoder().encode
HEADER = b'{"type":"session","version":0,"id":"s1","createdAt":1,"delegationDepth":0%s}\n'
PATH = "a log"
FRONT = Position(0, 0)


class Bytes:
    """The part of a disk that reading needs, over one file."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []

    def pread(self, _fd: int, size: int, offset: int) -> bytes:
        self.asked.append((size, offset))
        return self.content[offset : offset + size]

    def next_data(self, _fd: int, offset: int) -> int | None:
        return offset if offset < len(self.content) else None


def source_of(content: bytes, *, zstd: bool) -> Source:
    return Source(cast("Disk", Bytes(content)), 3, PATH, zstd)


def rows(first: int, count: int) -> bytes:
    return b"".join(encode(one) + b"\n" for one in batch(first, count))


def unchecked(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=False).compress(plain)


ENCODINGS = pytest.mark.parametrize("zstd", [True, False], ids=["zstd", "raw"])


class Passed:
    """One pass, and what came of it."""

    def __init__(  # noqa: PLR0913  # all that a pass can be given
        self,
        content: bytes,
        *,
        zstd: bool,
        start: Position = FRONT,
        limit: int | None = None,
        known: Known | None = None,
        crc: int | None = None,
    ) -> None:
        self.index = SeqIndex()
        source = source_of(content, zstd=zstd)
        limit = len(content) if limit is None else limit
        self.walk = Walk(source, self.index, start, limit, known, crc=crc)
        self.seqs: list[int] = []
        self.refusal: LogCorruptError | None = None
        try:
            self.seqs += self._seqs()
        except LogCorruptError as error:
            self.refusal = error

    def _seqs(self) -> Iterator[int]:
        for events in self.walk.batches():
            yield from (one["seq"] for one in events)

    @property
    def reason(self) -> str:
        assert self.refusal is not None
        assert self.refusal.facts["path"] == PATH
        return str(self.refusal.facts["reason"])

    @property
    def place(self) -> tuple[Any, Any]:
        """Where it was refused, and which seq was to come."""
        assert self.refusal is not None
        return self.refusal.facts["offset"], self.refusal.facts["expected"]


# ---------------------------------------------------------------------- the header


def test_a_raw_header_may_be_a_mebibyte_long_and_what_is_behind_it_is_the_next_row() -> None:
    most = 1024 * 1024 + 8192 - 1
    for length in (100, 8191, 8192, 20_000, most):
        filler = b"x" * (length - len(HEADER % b',"cwd":"/"') + 1)
        line = HEADER % (b',"cwd":"/' + filler + b'"')
        content = line + rows(0, 3)
        header, end = read_header(source_of(content, zstd=False), len(content))
        assert (header.id, len(header.cwd or ""), end) == ("s1", len(filler) + 1, length + 1)
        with pytest.raises(LogCorruptError, match="header-less"):
            read_header(source_of(content, zstd=False), length)
    content = HEADER % (b',"cwd":"/' + b"x" * most + b'"')
    with pytest.raises(LogCorruptError, match="header-less") as caught:
        read_header(source_of(content, zstd=False), len(content))
    assert caught.value.facts["offset"] == 0


def test_a_framed_header_ends_with_its_frame() -> None:
    content = frame(HEADER % b"") + frame(rows(0, 3))
    header, end = read_header(source_of(content, zstd=True), len(content))
    assert (header.id, end) == ("s1", len(frame(HEADER % b"")))
    with pytest.raises(LogCorruptError, match="header frame: unfinished frame") as caught:
        read_header(source_of(content, zstd=True), end - 1)
    assert caught.value.facts["offset"] == 0
    for content in (frame(b"\n" + HEADER % b""), b""):
        with pytest.raises(LogCorruptError) as caught:
            read_header(source_of(content, zstd=True), len(content))
        assert caught.value.facts["offset"] == 0


# ---------------------------------------------------------------------- the bound


def halves(*, zstd: bool) -> tuple[bytes, bytes]:
    one, other = rows(0, 4), rows(4, 5)
    return (frame(one), frame(other)) if zstd else (one, other)


@ENCODINGS
def test_a_pass_tells_how_far_it_came_and_where_reading_can_begin(*, zstd: bool) -> None:
    one, other = halves(zstd=zstd)
    done = Passed(b"head" + one + other, zstd=zstd, start=Position(4, 0), crc=0)
    assert done.seqs == [*range(9)]
    assert (done.walk.offset, done.walk.seq) == (4 + len(one + other), 9)
    assert done.walk.crc == crc32(one + other)
    assert done.walk.torn is None
    assert (done.walk.frames, done.walk.unchecked_frames) == ((2, 0) if zstd else (0, 0))
    places = [Position(4, 0), Position(4 + len(one), 4)]
    assert done.index.before(2**40) == (places if zstd else places[:1])
    again = Passed(b"head" + one + other, zstd=zstd, start=Position(4 + len(one), 4))
    assert (again.seqs, again.walk.crc) == ([*range(4, 9)], None)


@ENCODINGS
def test_at_the_bound_what_was_acknowledged_is_proven(*, zstd: bool) -> None:
    one, other = halves(zstd=zstd)
    whole, bound = one + other, len(one)
    good = Known(bound, 4, crc32(one))
    assert Passed(whole, zstd=zstd, known=good, crc=0).refusal is None
    for wrong in (good._replace(events=3), good._replace(events=5), good._replace(crc=7)):
        found = Passed(whole, zstd=zstd, known=wrong, crc=0)
        assert found.reason == (
            f"the bytes before are not the ones that were acknowledged ({wrong.events} events)"
        )
        assert found.place == (bound, 4)
        assert Passed(whole, zstd=zstd, known=wrong).seqs == [*range(9)], "without a sum no proof"
        assert (
            Passed(whole, zstd=zstd, known=wrong, start=Position(bound, 4), crc=0).refusal is None
        )
    inside = Passed(whole, zstd=zstd, known=Known(bound - 1, 4, crc32(one)), crc=0)
    assert "not the ones that were acknowledged" in inside.reason


@ENCODINGS
def test_what_ends_below_the_bound_is_lost_and_at_the_bound_it_is_a_tail(*, zstd: bool) -> None:
    one, other = halves(zstd=zstd)
    cut = one + other[:-1]
    at_bound = Passed(cut, zstd=zstd, known=Known(len(one), 4, 0))
    told = "unfinished frame" if zstd else "unfinished row"
    end = len(one) if zstd else len(one) + other[:-1].rindex(b"\n") + 1
    assert at_bound.walk.torn == Torn(end, len(cut) - end, told)
    assert (at_bound.seqs, at_bound.walk.offset) == ([*range(4 if zstd else 8)], end)
    above = Passed(cut, zstd=zstd, known=Known(len(cut), 9, 0))
    assert above.place == (end, 4 if zstd else 8)
    assert above.reason == f"{told}, below the {len(cut)} bytes that were acknowledged"
    short = Passed(cut, zstd=zstd, known=Known(len(cut) + 1, 9, 0))
    assert short.reason == (
        f"{told}: the log is shorter than acknowledged ({len(cut)} of {len(cut) + 1} bytes)"
    )
    ends = Passed(one, zstd=zstd, known=Known(len(one) + 1, 9, 0))
    assert ends.reason.startswith("it ends there: the log is shorter than acknowledged")
    assert Passed(one, zstd=zstd, known=Known(len(one), 4, 0)).refusal is None


@ENCODINGS
def test_a_pass_looks_at_nothing_behind_its_limit(*, zstd: bool) -> None:
    one, other = halves(zstd=zstd)
    limited = Passed(one + other, zstd=zstd, limit=len(one))
    assert (limited.seqs, limited.walk.torn) == ([*range(4)], None)
    more = frame(rows(9, 9)) if zstd else rows(9, 9)
    start, limit = Position(len(one), 4), len(one + other)
    later = Passed(one + other + more, zstd=zstd, start=start, limit=limit)
    assert later.seqs == [*range(4, 9)]
    inside = Passed(one + other, zstd=zstd, limit=len(one) + 5)
    assert inside.walk.torn is not None
    assert inside.walk.torn[:2] == (len(one), 5)


# ---------------------------------------------------------------------- seqs


@ENCODINGS
@pytest.mark.parametrize("seq", ["true", '"1"', "null", "0", "2", "1.5"])
def test_a_seq_is_the_number_that_is_next_and_nothing_else(seq: str, *, zstd: bool) -> None:
    def made(text: str) -> bytes:
        line = b'{"type":"llm/retry","seq":%s,"time":1,"data":{}}\n' % text.encode()
        return frame(rows(0, 1)) + frame(line) if zstd else rows(0, 1) + line

    assert Passed(made("1.0"), zstd=zstd).seqs == [0, 1]
    odd = Passed(made(seq), zstd=zstd)
    assert odd.seqs == [0]
    if zstd:
        assert (odd.reason, odd.place) == ("seq gap in a frame", (len(frame(rows(0, 1))), 1))
    else:
        assert odd.walk.torn == Torn(len(rows(0, 1)), len(made(seq)) - len(rows(0, 1)), "seq gap")


def test_rows_in_front_of_a_defect_in_a_frame_are_given_and_none_behind_it() -> None:
    text = rows(0, 3) + b"{bad\n" + rows(3, 2)
    found = Passed(frame(rows(0, 0)) + frame(text), zstd=True)
    assert (found.seqs, found.place) == ([0, 1, 2], (len(frame(b"")), 3))
    assert found.reason == "unparsable row: not JSON: not-json"
    for value in (b"5", b"[]", b"null"):
        odd = Passed(frame(value + b"\n"), zstd=True)
        assert odd.reason == "seq gap in a frame"


@ENCODINGS
def test_events_come_in_parts_of_4096(*, zstd: bool) -> None:
    members = {"turn": 1, "step": 1, "index": 0, "dt": [0] * 4095, "texts": ["a"] * 4096}
    packed = encode({"type": "text-chunks", "seq0": 0, "time0": 1, "data": members}) + b"\n"
    content = frame(packed + rows(4096, 2)) if zstd else packed + rows(4096, 2)
    walk = Walk(source_of(content, zstd=zstd), SeqIndex(), FRONT, len(content))
    assert [len(events) for events in walk.batches()] == [4096, 2]
    assert (walk.seq, walk.offset) == (4098, len(content))
    if zstd:
        single = frame(rows(0, 5000))
        walk = Walk(source_of(single, zstd=True), SeqIndex(), FRONT, len(single))
        assert [len(events) for events in walk.batches()] == [4096, 904]


# ---------------------------------------------------------------------- frames that go on, frames without a checksum


def test_reading_begins_only_where_no_row_reaches_into_a_frame() -> None:
    row = rows(2, 1)
    parts = [frame(rows(0, 2)), frame(row[:5]), frame(row[5:9]), frame(row[9:] + rows(3, 1)), b""]
    ends = [sum(map(len, parts[:number])) for number in range(5)]
    done = Passed(b"x" + b"".join(parts), zstd=True, start=Position(1, 0), crc=0)
    assert (done.seqs, done.walk.offset) == ([0, 1, 2, 3], 1 + ends[4])
    assert done.index.before(2**40) == [Position(1, 0), Position(1 + ends[1], 2)]
    assert done.walk.crc == crc32(b"".join(parts))
    open_end = Passed(b"".join(parts[:3]), zstd=True)
    assert open_end.reason == "complete frames end in an unfinished row"
    assert open_end.place == (ends[1], 2)


def test_a_row_of_frames_may_be_64_mib_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_PLAIN == 64 * 1024 * 1024
    row = encode(event(0, text="x" * 1000)) + b"\n"
    content = frame(row[:-1]) + frame(b"\n")
    monkeypatch.setattr(under_test, "MAX_PLAIN", len(row) - 1)
    assert Passed(content, zstd=True).seqs == [0]
    monkeypatch.setattr(under_test, "MAX_PLAIN", len(row) - 2)
    found = Passed(content, zstd=True)
    assert (found.reason, found.place) == ("a row is longer than 64 MiB", (0, 0))


def test_frames_without_a_checksum_are_counted_and_must_hold_what_they_should() -> None:
    one, other = unchecked(rows(0, 2)), unchecked(rows(2, 2))
    done = Passed(one + frame(rows(2, 1)) + unchecked(rows(3, 1)), zstd=True)
    assert (done.walk.frames, done.walk.unchecked_frames) == (3, 2)
    assert Passed(one + other, zstd=True).seqs == [0, 1, 2, 3]
    members = {"turn": 1, "step": 1, "index": 0, "dt": [0, 0], "texts": ["a", "b", "c"]}
    packed = encode({"type": "text-chunks", "seq0": 0, "time0": 1, "data": members}) + b"\n"
    assert Passed(unchecked(packed + rows(3, 1)), zstd=True).seqs == [0, 1, 2, 3]
    torn = Passed(one + unchecked(rows(2, 1) + rows(4, 1) + b"{bad\n"), zstd=True).walk.torn
    assert torn is not None
    assert torn.reason == "frame without checksum: seq gap"


def test_a_row_may_go_on_behind_a_frame_without_a_checksum_only_in_a_frame() -> None:
    row = rows(0, 1)
    first = unchecked(row[:9])
    assert Passed(first + unchecked(row[9:]), zstd=True).seqs == [0]
    for behind in (b"", MAGIC[:3], b"noise"):
        torn = Passed(first + behind, zstd=True).walk.torn
        assert torn == Torn(0, len(first + behind), "frame without checksum: unfinished row")
    beyond = Passed(first + unchecked(row[9:]), zstd=True, limit=len(first))
    assert beyond.walk.torn == Torn(0, len(first), "frame without checksum: unfinished row")


# ---------------------------------------------------------------------- tails


REFUSED = MAGIC + b"\x00" + bytes([14 << 3]) + (3 << 3 | 1).to_bytes(3, "little") + b"abc"
"""A frame with a window of 16 MiB."""


def test_a_frame_that_is_refused_is_a_tail_only_when_something_else_follows_it() -> None:
    good = frame(rows(0, 2))
    for behind in (b"", frame(rows(2, 1))):
        found = Passed(good + REFUSED + behind, zstd=True)
        assert (found.reason, found.place) == ("frame window over 8 MiB", (len(good), 2))
    tail = Passed(good + REFUSED + b"noise", zstd=True)
    assert tail.walk.torn == Torn(len(good), len(REFUSED) + 5, "frame window over 8 MiB")
    assert Passed(good + REFUSED[:-1], zstd=True).walk.torn is not None


def test_a_tail_that_holds_a_good_frame_is_none() -> None:
    good, behind = frame(rows(0, 2)), frame(rows(2, 1))
    for noise in (b"n", b"noise", MAGIC + b"\xff"):
        found = Passed(good + noise + behind, zstd=True)
        assert found.place == (len(good), 2)
        assert found.reason.endswith(f", and a good frame follows at byte {len(good + noise)}")
        assert Passed(good + noise + behind[:-1], zstd=True).walk.torn is not None
        with_limit = Passed(good + noise + behind, zstd=True, limit=len(good + noise + behind) - 1)
        assert with_limit.walk.torn is not None


@pytest.mark.parametrize(("seq", "proves"), [(1, False), (2, True), (3, True)])
def test_a_frame_without_a_checksum_proves_by_its_first_seq(seq: int, *, proves: bool) -> None:
    good = frame(rows(0, 2))
    for text in (rows(seq, 1), rows(seq, 1) + b"half a row", rows(seq, 2)):
        found = Passed(good + b"noise" + unchecked(text), zstd=True)
        assert (found.refusal is not None) == proves
    for text in (rows(seq, 1)[:-1], b"\n" + rows(seq, 1), b"[]\n" + rows(seq, 1), b"{bad\n"):
        assert Passed(good + b"noise" + unchecked(text), zstd=True).walk.torn is not None


def test_in_a_raw_log_the_first_defect_is_the_tail_and_an_end_of_a_turn_behind_it_is_corruption() -> (
    None
):
    good, ends = rows(0, 2), encode(event(3, "turn/end")) + b"\n"
    for bad, told in ((b"{bad\n", "unparsable row: not JSON: not-json"), (rows(5, 1), "seq gap")):
        tail = Passed(good + bad + rows(2, 2) + b"{bad\n", zstd=False)
        assert tail.seqs == [0, 1]
        assert tail.walk.torn == Torn(len(good), len(bad + rows(2, 2)) + 5, told)
        corrupt = Passed(good + bad + rows(2, 1) + ends, zstd=False)
        assert (corrupt.seqs, corrupt.place) == ([0, 1], (len(good), 2))
        assert corrupt.reason == f"{told}, and a turn ends behind it"
    alone = Passed(good + encode(event(7, "turn/end")) + b"\n", zstd=False)
    assert alone.reason == "seq gap, and a turn ends behind it"


def test_raw_rows_are_read_on_however_long_they_are() -> None:
    piece = 128 * 1024
    texts = ["x" * size for size in (piece - 1, 10, piece, 3 * piece, 1)]
    content = b"".join(encode(event(seq, text=text)) + b"\n" for seq, text in enumerate(texts))
    done = Passed(content, zstd=False, crc=0)
    assert (done.seqs, done.walk.crc) == ([*range(5)], crc32(content))
    assert done.walk.torn is None
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    places = done.index.before(2**40)
    assert places[:1] != []
    assert {place.offset for place in places} <= {0, *ends}
    assert all(content[: place.offset].count(b"\n") == place.seq for place in places)


@pytest.mark.parametrize("bad", [b"a\0b" + b"x" * 100, b"x" * 5000], ids=["with a NUL", "too long"])
def test_a_raw_row_that_can_be_none_hides_what_is_behind_it_but_not_the_end_of_a_turn(
    monkeypatch: pytest.MonkeyPatch, bad: bytes
) -> None:
    monkeypatch.setattr(under_test, "MAX_PLAIN", 2000)
    monkeypatch.setattr(under_test, "_PIECE", 50)
    good, ends = rows(0, 2), encode(event(3, "turn/end")) + b"\n"
    told = "a row longer than 64 MiB, or with a NUL"
    tail = Passed(good + bad + b"\n" + rows(2, 1), zstd=False)
    assert tail.seqs == [0, 1]
    assert tail.walk.torn == Torn(len(good), len(bad + rows(2, 1)) + 1, told)
    found = Passed(good + bad + b"\n" + ends, zstd=False)
    assert (found.reason, found.place) == (f"{told}, and a turn ends behind it", (len(good), 2))
    long = encode(event(2, text="x" * (2000 - len(encode(event(2, text=""))))))
    assert Passed(good + long + b"\n", zstd=False).seqs == [0, 1, 2]
    monkeypatch.setattr(under_test, "_PIECE", 2000)
    alone = Passed(long + b"\n", zstd=False, start=Position(0, 2))
    assert (alone.seqs, alone.walk.torn) == ([2], None)


def test_a_raw_row_below_the_bound_that_is_bad_is_lost_at_once() -> None:
    content = rows(0, 2) + b"{bad\n" + rows(3, 2)
    for bound in (len(rows(0, 2)) + 1, len(content)):
        found = Passed(content, zstd=False, known=Known(bound, 3, 0))
        assert (found.seqs, found.place) == ([0, 1], (len(rows(0, 2)), 2))
        assert found.reason == (
            f"unparsable row: not JSON: not-json, below the {bound} bytes that were acknowledged"
        )
    assert Passed(content, zstd=False, known=Known(len(rows(0, 2)), 2, 0)).walk.torn is not None
