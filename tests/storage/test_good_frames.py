"""The search for a good frame behind a bad place: what only looks like one, holes, and where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dshd.storage.jsonl import frames as under_test
from dshd.storage.jsonl.frames import MAGIC, FrameEncoder, good_frame_after

if TYPE_CHECKING:
    import pytest

    from dshd.storage.jsonl.frames import Frame

GOOD = FrameEncoder().encode(b"content\n")


class Bytes:
    """A file with holes."""

    def __init__(self, content: bytes, holes: range = range(0)) -> None:
        self.content = content
        self.holes = holes

    def pread(self, size: int, offset: int) -> bytes:
        assert size >= 0
        return self.content[offset : offset + size]

    def next_data(self, offset: int) -> int | None:
        if offset in self.holes:
            offset = self.holes.stop
        return offset if offset < len(self.content) else None


def nothing(_frame: Frame, _text: bytes) -> bool:
    return False


def anything(_frame: Frame, _text: bytes) -> bool:
    return True


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


def test_a_good_frame_is_found_wherever_the_search_reads_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(under_test, "_READ_AHEAD", 50)
    for before in range(90, 110):
        content = b"x" * before + GOOD
        source = Bytes(content)
        assert good_frame_after(source, 0, len(content), anything) == before
        assert good_frame_after(source, before, len(content), anything) == before
        assert good_frame_after(source, before + 1, len(content), anything) is None
        asked: list[int] = []

        def proves(frame: Frame, _text: bytes, asked: list[int] = asked) -> bool:
            asked.append(frame.offset)
            return False

        assert good_frame_after(source, 0, len(content), proves) is None
        assert asked == [before]


def test_no_good_frame_is_looked_for_behind_the_limit() -> None:
    content = b"x" * 50 + bytes(950) + GOOD
    for limit in (50, 500, 1000):
        assert good_frame_after(Bytes(content, range(60, 1000)), 0, limit, anything) is None
        assert good_frame_after(Bytes(content), 0, limit, anything) is None
        assert good_frame_after(Bytes(GOOD + GOOD), 5, len(GOOD), anything) is None


def test_the_256th_that_looks_like_a_frame_is_still_looked_at() -> None:
    content = MAGIC * 255 + GOOD
    assert good_frame_after(Bytes(content), 0, len(content), nothing) is None
    content = MAGIC * 256 + GOOD
    assert good_frame_after(Bytes(content), 0, len(content), nothing) == 256 * len(MAGIC)
