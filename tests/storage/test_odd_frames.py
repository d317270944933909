"""Frames that nobody means to write: too long, of too many blocks, cut meanwhile, or just as long as may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import zstandard

from dshd.storage.jsonl import frames as under_test
from dshd.storage.jsonl.frames import (
    LEVEL,
    MAGIC,
    MAX_PLAIN,
    MAX_WINDOW,
    FrameDefectError,
    FrameEncoder,
    decode_frame,
    frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dshd.storage.jsonl.frames import Frame

HEAD = MAGIC + b"\x04\x58"  # a checksum, no size, a window of 2 MiB
GOOD = FrameEncoder().encode(b"content\n")


def block(size: int, kind: int = 0, *, last: bool = False) -> bytes:
    return (size << 3 | kind << 1 | last).to_bytes(3, "little")


def reader(content: bytes, most: int = 2**40) -> Callable[[int, int], bytes]:
    """Return what reads a file, not more at once than that."""

    def pread(size: int, offset: int) -> bytes:
        assert size >= 0
        return content[offset : offset + min(size, most)]

    return pread


def defect(pread: Callable[[int, int], bytes], limit: int, ahead: int = 64) -> FrameDefectError:
    found = frames(pread, 0, limit, ahead=ahead)
    with pytest.raises(FrameDefectError) as caught:
        list(map(decode_frame, found))
    return caught.value


def test_a_frame_longer_than_65_mib_is_refused_before_it_is_read() -> None:
    step = 128 * 1024
    count = MAX_PLAIN // step + 10
    asked: list[int] = []

    def pread(size: int, offset: int) -> bytes:
        asked.append(size)
        if offset < len(HEAD):
            return (HEAD + block(step) + bytes(size))[offset : offset + size]
        number, within = divmod(offset - len(HEAD), step + 3)
        return (block(step, last=number == count) + bytes(size))[within : within + size]

    found = defect(pread, 2 * MAX_PLAIN)
    assert (found.kind, found.reason) == ("refused", "frame longer than 65 MiB")
    assert found.end == len(HEAD) + (count + 1) * (step + 3) + 4
    assert max(asked) <= 4096


def test_a_frame_of_more_than_a_million_blocks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_MAX_BLOCKS", 1000)  # a million take a second
    content = HEAD + (block(1, kind=1) + b"a") * 1002
    found = defect(reader(content), len(content))
    assert (found.kind, found.reason) == ("refused", "frame of more than a million blocks")


def test_a_file_that_is_cut_while_a_long_frame_is_read_ends_inside_it() -> None:
    content = HEAD + block(200, last=True) + bytes(200) + bytes(4)
    asked: list[int] = []

    def pread(size: int, offset: int) -> bytes:
        asked.append(size)
        return content[offset : offset + size] if len(asked) < 3 else b""

    assert defect(pread, len(content)).kind == "incomplete"


def test_a_file_that_is_cut_while_it_is_scanned_ends_inside_a_frame() -> None:
    found = defect(reader(GOOD), len(GOOD) + 100)
    assert (found.kind, found.offset) == ("incomplete", len(GOOD))


def test_very_many_blocks_without_content_are_no_frame() -> None:
    content = HEAD + block(0) * 1100 + block(1, last=True) + b"a" + bytes(4)
    found = defect(reader(content), len(content))
    assert (found.kind, found.reason) == ("garbage", "a run of empty blocks")


def test_a_frame_that_states_more_than_its_blocks_can_hold_is_no_good() -> None:
    stated = (MAX_PLAIN - 1).to_bytes(4, "little")
    content = MAGIC + b"\x84\x58" + stated + block(3, last=True) + b"abc" + bytes(4)
    found = defect(reader(content), len(content))
    assert (found.kind, found.reason) == ("invalid", "frame states more than its blocks hold")
    assert found.end == len(content)


def test_a_frame_that_does_not_decode_within_the_bound_is_refused() -> None:
    content = HEAD + (block(128 * 1024, kind=1) + b"a") * 600 + block(0, last=True) + bytes(4)
    found = defect(reader(content), len(content))
    assert (found.kind, found.reason) == ("refused", "frame does not decode within 64 MiB")


# ---------------------------------------------------------------------- the last that is taken, the first that is not


def framed(*blocks: bytes, descriptor: int = 0, window: int = 0x58) -> bytes:
    return MAGIC + bytes([descriptor, window]) + b"".join(blocks)


def cut_out(content: bytes, ahead: int) -> list[Frame]:
    return list(frames(reader(content), 0, len(content), ahead=ahead))


@pytest.mark.parametrize("ahead", [8, 2**20], ids=["measured first", "in one read"])
def test_a_block_holds_128_kib_and_no_byte_more(ahead: int) -> None:
    most = 128 * 1024
    content = framed(block(most, last=True) + bytes(most))
    assert [(one.end, one.blocks) for one in cut_out(content, ahead)] == [(len(content), 1)]
    with pytest.raises(FrameDefectError, match="block longer than 128 KiB"):
        cut_out(framed(block(most + 1, last=True) + bytes(most + 1)), ahead)
    with pytest.raises(FrameDefectError, match="reserved block type"):
        cut_out(framed(block(1, kind=3, last=True) + b"a"), ahead)


def test_a_frame_of_any_header_ends_where_its_last_block_does() -> None:
    for descriptor in range(256):
        if descriptor & 0x18:
            with pytest.raises(FrameDefectError, match="reserved frame-header bit"):
                cut_out(MAGIC + bytes([descriptor]) + bytes(20), 2**20)
            continue
        window = not descriptor & 0x20
        dictionary = (0, 1, 2, 4)[descriptor & 3]
        size = (0 if window else 1, 2, 4, 8)[descriptor >> 6]
        checksum = bytes(4 if descriptor & 4 else 0)
        head = MAGIC + bytes([descriptor]) + bytes(window + dictionary + size)
        ends_with_its_blocks(head + block(5) + b"abcde" + block(9, 1, last=True) + b"a" + checksum)


def ends_with_its_blocks(content: bytes) -> None:
    for ahead in (5, 64):
        one, other = cut_out(content + GOOD, ahead)
        assert (one.offset, one.end, one.blocks) == (0, len(content), 2)
        assert (other.offset, other.end, other.blocks) == (len(content), len(content + GOOD), 1)
        assert one.content == content
        assert one.checksummed == bool(content[4] & 4)
        for length in range(1, len(content)):
            assert defect(reader(content[:length]), length, ahead).kind == "incomplete"


@pytest.mark.parametrize("before", [b"", GOOD], ids=["first", "behind another"])
def test_what_stands_where_a_frame_should_is_judged_as_soon_as_it_can_be(before: bytes) -> None:
    for noise, kind, reason in (
        (b"noi", "incomplete", "unfinished frame"),
        (b"nois", "garbage", "invalid frame magic"),
        (GOOD[:3] + b"\xfe" + GOOD[4:], "garbage", "invalid frame magic"),
        (MAGIC, "incomplete", "unfinished frame"),
        (MAGIC + b"\x08", "garbage", "reserved frame-header bit"),
        (MAGIC + b"\x10", "garbage", "reserved frame-header bit"),
        (MAGIC + b"\x00\x58\x07", "incomplete", "unfinished frame"),
        (MAGIC + b"\x00\x58\x07\x00", "incomplete", "unfinished frame"),
        (MAGIC + b"\x00\x58\x07\x00\x00", "garbage", "reserved block type"),
        *((GOOD[:length], "incomplete", "unfinished frame") for length in range(1, len(GOOD))),
    ):
        found = defect(reader(before + noise), len(before + noise), 2**20)
        assert (found.kind, found.reason, found.offset) == (kind, reason, len(before))
        assert found.end is None


def test_frames_are_cut_out_the_same_however_much_is_read_ahead() -> None:
    encode = FrameEncoder().encode
    empty = framed(block(0, last=True))
    each = [encode(b"content %d\n" % number * number) for number in range(1, 30)] + [empty] * 3
    ends = [sum(map(len, each[: number + 1])) for number in range(len(each))]
    content = b"".join(each)
    reads = [(ahead, 2**20) for ahead in (*range(1, 70), 2**20)]
    for ahead, most in (*reads, (65, 7), (69, 7), (2**20, 7)):
        found = list(frames(reader(content, most), 0, len(content), ahead=ahead))
        assert [one.content for one in found] == each
        assert [one.end for one in found] == ends


def test_nothing_is_read_behind_the_limit() -> None:
    for cut in (len(HEAD) + 2, len(HEAD) + 3, len(HEAD) + 60, len(HEAD) + 63, len(HEAD) + 66):
        content = GOOD + (HEAD + (block(60) + bytes(60)) * 3)[:cut]
        asked: list[int] = []

        def pread(size: int, offset: int, held: bytes = content, asked: list[int] = asked) -> bytes:
            asked.append(offset + size if size else 0)
            return reader(held)(size, offset)

        with pytest.raises(FrameDefectError, match=f"unfinished frame at byte {len(GOOD)}"):
            list(frames(pread, 0, len(content), ahead=6))
        assert max(asked) <= len(content)


def test_a_frame_may_be_as_long_as_65_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vars(under_test)["_MAX_FRAME"] == 65 * 1024 * 1024
    content = framed(*[block(50, last=number == 9) + bytes(50) for number in range(10)])
    monkeypatch.setattr(under_test, "_MAX_FRAME", len(content))
    assert [one.content for one in cut_out(content, 16)] == [content]
    assert [one.content for one in cut_out(GOOD + content, 16)] == [GOOD, content]
    monkeypatch.setattr(under_test, "_MAX_FRAME", len(content) - 1)
    with pytest.raises(FrameDefectError, match="frame longer than 65 MiB at byte 0"):
        cut_out(content, 16)


def test_a_long_frame_behind_another_is_measured_and_read_in_the_pieces_that_the_disk_gives() -> (
    None
):
    long = framed(
        *[block(3000, last=number == 9) + b"%d" % number * 3000 for number in range(10)],
        bytes(4),
        descriptor=4,
    )
    content = GOOD + long + GOOD
    asked: list[tuple[int, int]] = []

    def pread(size: int, offset: int) -> bytes:
        asked.append((size, offset))
        return content[offset : offset + min(size, 7000)]

    whole = list(frames(pread, 0, len(content), ahead=64))
    assert [one.content for one in whole] == [GOOD, long, GOOD]
    assert [one.blocks for one in whole] == [1, 10, 1]
    assert all(size > 0 and offset + size <= len(content) for size, offset in asked)
    assert sum(size for size, offset in asked if offset < len(GOOD)) <= 64
    with pytest.raises(FrameDefectError, match=f"unfinished frame at byte {len(GOOD)}"):
        list(frames(pread, 0, len(GOOD + long) - 1, ahead=64))


def test_a_frame_may_have_a_million_blocks_and_a_thousand_empty_ones_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert vars(under_test)["_MAX_BLOCKS"] == 1 << 20
    monkeypatch.setattr(under_test, "_MAX_BLOCKS", 100)
    byte = block(1, kind=1) + b"a"
    assert cut_out(framed(byte * 100, block(0, last=True)), 16)[0].blocks == 101
    with pytest.raises(FrameDefectError, match="a million blocks"):
        cut_out(framed(byte * 101, block(0, last=True)), 16)
    monkeypatch.undo()
    empty = block(0) * 1024
    assert cut_out(framed(empty, byte, empty, byte, block(0, last=True)), 16)[0].blocks == 2051
    with pytest.raises(FrameDefectError, match="a run of empty blocks"):
        cut_out(framed(empty, block(0), byte, block(0, last=True)), 16)
    with pytest.raises(FrameDefectError, match="a run of empty blocks"):
        cut_out(framed(byte, empty, block(0), byte, block(0, last=True)), 16)
    for shift in range(8):  # a block's header stands across the end of what is read of them
        step = [block(shift) + bytes(shift), byte * 1021, block(70_000) + bytes(70_000)]
        content = framed(*step, block(0, last=True))
        (found,) = cut_out(content, 16)
        assert (found.end, found.blocks) == (len(content), 1024)


def test_a_window_may_be_of_8_mib_and_of_64_where_the_size_is_stated() -> None:
    assert MAX_WINDOW == 8 * 1024 * 1024
    text = block(3, last=True) + b"abc"

    def kind(content: bytes) -> str:
        try:
            (found,) = cut_out(content, 2**20)
            return decode_frame(found).decode()
        except FrameDefectError as error:
            return error.reason

    assert kind(framed(text, window=13 << 3)) == "abc"
    assert kind(framed(text, window=255)).startswith("frame header: ")
    assert kind(framed(text, window=13 << 3 | 1)) == "frame window over 8 MiB"
    stated = (3).to_bytes(4, "little")
    assert kind(framed(stated, text, descriptor=0x80, window=16 << 3)) == "abc"
    assert (
        kind(framed(stated, text, descriptor=0x80, window=16 << 3 | 1)) == "frame window over 8 MiB"
    )


def test_a_frame_may_state_64_mib_and_as_much_as_its_blocks_hold() -> None:
    step = 128 * 1024
    full = block(step, kind=1) + b"a"

    def stating(size: int, *blocks: bytes) -> bytes:
        return framed(size.to_bytes(4, "little"), *blocks, descriptor=0x80)

    (found,) = cut_out(stating(MAX_PLAIN, full * 512, block(0, last=True)), 2**20)
    assert decode_frame(found) == b"a" * MAX_PLAIN
    over = cut_out(stating(MAX_PLAIN + 1, full * 512, block(1, kind=1, last=True), b"a"), 2**20)
    with pytest.raises(FrameDefectError, match="states more than 64 MiB") as caught:
        decode_frame(over[0])
    assert (caught.value.kind, caught.value.end) == ("refused", over[0].end)
    exactly = cut_out(stating(step, block(step, kind=1, last=True), b"a"), 2**20)
    assert decode_frame(exactly[0]) == b"a" * step
    (more,) = cut_out(stating(step + 1, block(step, kind=1, last=True), b"a"), 2**20)
    with pytest.raises(FrameDefectError, match="more than its blocks hold"):
        decode_frame(more)


def test_a_frame_that_needs_a_dictionary_is_refused_and_one_of_too_many_blocks_is_not_invalid() -> (
    None
):
    content = framed(b"\x07", block(3, last=True), b"abc", descriptor=1)
    found = defect(reader(content), len(content))
    assert (found.kind, found.reason) == ("refused", "frame needs a dictionary")
    bad = GOOD[:-1] + bytes([GOOD[-1] ^ 1])
    many = framed(block(0) * 512, block(3, last=True), b"abc", bytes(4), descriptor=4)
    few = framed(block(0) * 511, block(3, last=True), b"abc", bytes(4), descriptor=4)
    for damaged, told in ((bad, "invalid"), (many, "refused"), (few, "invalid")):
        assert defect(reader(damaged), len(damaged), 2**20).kind == told


def test_an_encoder_makes_the_same_frame_again_and_keeps_one_compressor() -> None:
    encoder = FrameEncoder()
    plain = b"".join(b"content %d\n" % (number * number % 977) for number in range(5000))
    made = {encoder.encode(plain) for _ in range(3)}
    assert LEVEL == 3
    usual = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=False)
    stream = usual.compressobj()
    assert made == {stream.compress(plain) + stream.flush()}
    (found,) = cut_out(made.pop(), 2**20)
    assert found.checksummed
    assert found.content[4] == 0x04, "a checksum, and no size of the content"
    assert len(vars(encoder)["_idle"]) == 1


def test_a_few_decompressors_are_kept_and_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (frame,) = frames(reader(GOOD), 0, len(GOOD))
    idle: list[zstandard.ZstdDecompressor] = []
    monkeypatch.setattr(under_test, "_idle", idle)
    assert decode_frame(frame) == decode_frame(frame) == b"content\n"
    assert len(idle) == 1
    idle += [zstandard.ZstdDecompressor() for _ in range(4)]
    before = list(idle)
    assert decode_frame(frame) == b"content\n"
    assert idle == before[:4], "more are kept than ever work at once, each with its window"
    assert decode_frame(frame) == b"content\n"
    assert idle == before[:4]


def test_no_decompressor_is_kept_that_met_a_bad_frame_or_a_large_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(under_test, "_idle", [zstandard.ZstdDecompressor()])
    bad = GOOD[:-1] + bytes([GOOD[-1] ^ 1])
    assert defect(reader(bad), len(bad)).kind == "invalid"
    assert under_test.__dict__["_idle"] == []
    (frame,) = frames(reader(GOOD), 0, len(GOOD))
    assert decode_frame(frame) == b"content\n"
    large = MAGIC + b"\x04\x59" + GOOD[6:]  # a window of 2.25 MiB
    (frame,) = frames(reader(large), 0, len(large))
    assert decode_frame(frame) == b"content\n"
    assert under_test.__dict__["_idle"] == []
