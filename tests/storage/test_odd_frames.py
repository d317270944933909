"""Frames that nobody means to write: too long, of too many blocks, cut meanwhile; and the search for good ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dshd.storage.jsonl import frames as under_test
from dshd.storage.jsonl.frames import (
    MAGIC,
    MAX_PLAIN,
    FrameDefectError,
    FrameEncoder,
    decode_frame,
    frames,
    good_frame_after,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dshd.storage.jsonl.frames import Frame

HEAD = MAGIC + b"\x04\x58"  # a checksum, no size, a window of 2 MiB
GOOD = FrameEncoder().encode(b"content\n")


def block(size: int, kind: int = 0, *, last: bool = False) -> bytes:
    return (size << 3 | kind << 1 | last).to_bytes(3, "little")


def reader(content: bytes) -> Callable[[int, int], bytes]:
    return lambda size, offset: content[offset : offset + size]


def defect(pread: Callable[[int, int], bytes], limit: int, ahead: int = 64) -> FrameDefectError:
    found = frames(pread, 0, limit, ahead=ahead)
    with pytest.raises(FrameDefectError) as caught:
        list(map(decode_frame, found))
    return caught.value


class Bytes:
    """A file with holes."""

    def __init__(self, content: bytes, holes: range = range(0)) -> None:
        self.content = content
        self.holes = holes

    def pread(self, size: int, offset: int) -> bytes:
        return self.content[offset : offset + size]

    def next_data(self, offset: int) -> int | None:
        if offset in self.holes:
            offset = self.holes.stop
        return offset if offset < len(self.content) else None


def nothing(_frame: Frame, _text: bytes) -> bool:
    return False


def anything(_frame: Frame, _text: bytes) -> bool:
    return True


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


def test_a_good_frame_is_found_behind_what_only_looks_like_one() -> None:
    content = MAGIC * 3 + b"noise" + MAGIC + b"\xff" + GOOD
    source = Bytes(content)
    assert good_frame_after(source, 0, len(content), anything) == len(content) - len(GOOD)
    assert good_frame_after(source, 0, len(content) - 1, anything) is None


def test_a_good_frame_that_proves_nothing_is_passed_over() -> None:
    content = GOOD + GOOD
    found = good_frame_after(Bytes(content), 0, len(content), lambda frame, _text: frame.offset > 0)
    assert found == len(GOOD)
    assert good_frame_after(Bytes(content), 0, len(content), nothing) is None


def test_a_good_frame_behind_a_hole_is_found_and_the_hole_is_not_read() -> None:
    holes = range(100, 10_000_000)
    content = b"x" * 100 + bytes(len(holes)) + GOOD
    assert good_frame_after(Bytes(content, holes), 0, len(content), anything) == holes.stop
    assert good_frame_after(Bytes(content[: holes.stop], holes), 0, holes.stop, anything) is None


def test_a_file_that_is_cut_meanwhile_has_no_good_frame() -> None:
    source = Bytes(b"noise")
    source.next_data = lambda offset: offset  # type: ignore[method-assign]  # as it was before the cut
    assert good_frame_after(source, 0, 1000, anything) is None


def test_among_very_many_that_look_like_frames_none_is_thrown_away_on_a_guess() -> None:
    content = MAGIC * 300
    assert good_frame_after(Bytes(content), 0, len(content), anything) == 256 * len(MAGIC)
