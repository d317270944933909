"""The replay of a device's records: what was flushed is there whatever happens, and nothing from behind the cut is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from crash.blockfile import FLUSH, WRITE, Record
from crash.blocks import Device

if TYPE_CHECKING:
    from pathlib import Path

SECTOR = 512
RECORDS = [
    Record(WRITE, 0, b"a" * SECTOR),
    Record(FLUSH, 0, b""),
    Record(WRITE, SECTOR, b"b" * 2 * SECTOR),
    Record(WRITE, 0, b"c" * SECTOR),
    Record(FLUSH, 0, b""),
    Record(WRITE, 0, b"d" * SECTOR),
]


def states(tmp_path: Path, moment: int) -> set[bytes]:
    """Return what is seen of the first sectors at a moment, over many tries."""
    chance, image = random.Random(1), tmp_path / "image"  # noqa: S311  # the same every time
    device = Device(tmp_path / f"durable {moment}", 1, RECORDS)
    found: set[bytes] = set()
    for _ in range(100):
        device.lay_out(moment, image, chance)
        assert image.stat().st_size == 1 << 20
        content = image.read_bytes()
        found.add(bytes(content[at] for at in range(0, 3 * SECTOR, SECTOR)))
    return found


def test_of_writes_that_were_not_flushed_any_are_there_and_some_are_torn(tmp_path: Path) -> None:
    first, torn, whole = b"\0\0", b"b\0", b"bb"
    assert states(tmp_path, 4) == {
        bytes([one]) + rest for one in b"ac" for rest in (first, torn, whole)
    }


def test_what_was_flushed_is_there(tmp_path: Path) -> None:
    assert states(tmp_path, 5) == {b"cbb"}
    assert states(tmp_path, 6) == {b"cbb", b"dbb"}
