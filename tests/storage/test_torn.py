"""Unfinished last writes, cut at every byte, and defects that are none."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from dsh_protocol.errors import DshdError, FormatUnsupportedError, LogCorruptError
from dsh_protocol.jsontext import encode
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.verify import verify
from storage.failing import HastyDisk
from storage.samples import HEADER, batch, event, log_of

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.jsonl.store import JsonlStore

SIZES = (2, 1, 4)
TORN_NAME = re.compile(r"torn-[0-9]+-[0-9a-f]{12}\.bin")


def made(root: Path, compression: Compression) -> tuple[Path, list[int]]:
    """Make a small log. Returns it and its length after every batch, the header alone first."""
    handle = open_store(root, compression=compression, disk=HastyDisk()).create(HEADER)
    handle.flush()
    ends = [handle.size_bytes]
    first = 0
    for size in SIZES:
        handle.append(batch(first, size))
        first += size
        ends.append(handle.size_bytes)
    handle.close()
    return log_of(root, "session.jsonl.zstd" if compression == "zstd" else "session.jsonl"), ends


def set_aside(log: Path) -> list[bytes]:
    return [p.read_bytes() for p in log.parent.iterdir() if TORN_NAME.fullmatch(p.name)]


def good_end(content: bytes, ends: list[int], compression: Compression) -> int:
    if compression == "none":
        return content.rfind(b"\n") + 1
    return max(end for end in ends if end <= len(content))


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_log_cut_at_any_byte_opens_and_keeps_what_was_acknowledged(
    tmp_path: Path, compression: Compression
) -> None:
    log, ends = made(tmp_path / "whole", compression)
    whole = log.read_bytes()
    for cut in range(len(whole) + 1):
        root = tmp_path / str(cut)
        shutil.copytree(tmp_path / "whole", root)
        mine = root / log.relative_to(tmp_path / "whole")
        mine.write_bytes(whole[:cut])
        store = open_store(root, compression=compression, disk=HastyDisk())
        if cut < ends[0]:
            with pytest.raises(LogCorruptError):
                store.open("s1", "write")
            assert mine.read_bytes() == whole[:cut]
            continue
        acknowledged = sum(size for size, end in zip(SIZES, ends[1:], strict=True) if end <= cut)
        end = good_end(whole[:cut], ends, compression)
        before, _ = read(store)
        assert mine.read_bytes() == whole[:cut]
        assert set_aside(mine) == []
        handle = store.open("s1", "write")
        events = list(handle.read())
        assert events == before == batch(0, len(events))
        assert len(events) >= acknowledged
        assert handle.size_bytes == end == mine.stat().st_size
        assert set_aside(mine) == ([whole[end:cut]] if cut > end else [])
        handle.append(batch(len(events), 2))
        handle.close()
        assert read(store) == (batch(0, len(events) + 2), False)
        shutil.rmtree(root)


GARBAGE = [b"\0", b"\0" * 3, b"\0" * 4096, b"garbage!" * 64, b"\x50\x2a\x4d\x18\4\0\0\0abcd"]


@pytest.mark.parametrize("tail", GARBAGE, ids=["1", "3", "zeros", "garbage", "skippable"])
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_garbage_behind_the_last_good_batch_is_set_aside(
    tmp_path: Path, compression: Compression, tail: bytes
) -> None:
    log, ends = made(tmp_path, compression)
    with log.open("ab") as file:
        file.write(tail)
    handle = open_store(tmp_path).open("s1", "write")
    assert handle.size_bytes == ends[-1] == log.stat().st_size
    assert set_aside(log) == [tail]
    assert list(handle.read()) == batch(0, 7)
    handle.close()


def test_a_last_frame_that_fails_its_checksum_is_a_tail_and_an_earlier_one_is_corruption(
    tmp_path: Path,
) -> None:
    log, ends = made(tmp_path, "zstd")
    whole = bytearray(log.read_bytes())
    for number in range(1, len(ends)):
        mine = whole.copy()
        mine[ends[number] - 1] ^= 0x01  # in the checksum of that frame
        log.write_bytes(mine)
        store = open_store(tmp_path)
        if number == len(ends) - 1:
            handle = store.open("s1", "write")
            assert list(handle.read()) == batch(0, 3)
            assert set_aside(log) == [bytes(mine[ends[-2] :])]
            handle.close()
            continue
        with pytest.raises(LogCorruptError) as caught:
            store.open("s1", "write")
        assert caught.value.facts["offset"] == ends[number - 1]
        assert caught.value.facts["expected"] == sum(SIZES[: number - 1])
        assert log.read_bytes() == mine
        assert set_aside(log) == []
        assert read(store) == (batch(0, sum(SIZES[: number - 1])), True)


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_one_sector_of_zeros_in_the_last_batch_never_costs_an_earlier_one(
    tmp_path: Path, compression: Compression
) -> None:
    handle = open_store(tmp_path, compression=compression).create(HEADER)
    handle.append(batch(0, 5))
    start = handle.size_bytes
    handle.append([event(seq, text=f"{seq * 7919:x}" * 40) for seq in range(5, 60)])
    handle.close()
    log = next(p for p in tmp_path.rglob("*") if p.name in {"session.jsonl.zstd", "session.jsonl"})
    whole = log.read_bytes()
    for at in range(start, len(whole), 512):
        log.write_bytes(whole[:at] + b"\0" * len(whole[at : at + 512]) + whole[at + 512 :])
        again = open_store(tmp_path).open("s1", "write")
        assert again.next_seq >= 5
        assert list(again.read(0, 5)) == batch(0, 5)
        again.close()


def test_every_flipped_bit_is_refused_or_changes_nothing_that_is_read(tmp_path: Path) -> None:
    log, ends = made(tmp_path, "zstd")
    whole = log.read_bytes()
    store = open_store(tmp_path, disk=HastyDisk())
    for bit in range(len(whole) * 8):
        mine = bytearray(whole)
        mine[bit // 8] ^= 1 << bit % 8
        log.write_bytes(mine)
        events, raised = read(store)
        assert events == batch(0, len(events)), bit
        assert raised or len(events) in {3, 7}, bit
        if bit // 8 < ends[-2] and not raised:
            assert len(events) == 7, bit  # the window's size, say: the content is the same


def read(store: JsonlStore) -> tuple[list[Any], bool]:
    """Read as far as it goes. Returns the events, and whether the log was refused there."""
    events: list[Any] = []
    try:
        with closing(store.open("s1", "read")) as handle:
            events += handle.read()
    except (LogCorruptError, FormatUnsupportedError):
        return events, True
    return events, False


def frame(text: bytes, *, checksum: bool = True, sized: bool = False) -> bytes:
    compressor = zstandard.ZstdCompressor(
        level=3, write_checksum=checksum, write_content_size=sized
    )
    return compressor.compress(text)


def rows(first: int, count: int) -> bytes:
    return b"".join(encode(e) + b"\n" for e in batch(first, count))


ACCEPTED = {
    "without-checksum": frame(rows(7, 2), checksum=False),
    "with-content-size": frame(rows(7, 2), sized=True),
    "row-across-frames": frame(rows(7, 2)[:40]) + frame(rows(7, 2)[40:]),
    "empty-frame-between": frame(b"") + frame(rows(7, 2)),
    "carriage-returns": frame(rows(7, 2).replace(b"\n", b"\r\n")),
    "floats-that-are-whole": frame(rows(7, 2).replace(b'"seq":7', b'"seq":7.0')),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_frames_that_others_may_write_are_read(tmp_path: Path, name: str) -> None:
    log, _ = made(tmp_path, "zstd")
    with log.open("ab") as file:
        file.write(ACCEPTED[name])
    handle = open_store(tmp_path).open("s1", "write")
    assert list(handle.read()) == batch(0, 9)
    assert list(handle.read(8)) == batch(8, 1)
    handle.append(batch(9, 1))
    assert list(handle.read(7)) == batch(7, 3)
    handle.close()


def window_frame() -> bytes:
    """A frame whose header asks for a window of 128 MiB."""
    plain = frame(rows(7, 2))
    return plain[:5] + bytes([(27 - 10) << 3]) + plain[6:]


def dictionary_frame() -> bytes:
    plain = frame(rows(7, 2))
    return plain[:4] + bytes([plain[4] | 0x01]) + plain[5:6] + b"\7" + plain[6:]


REFUSED = {
    "bad-json": frame(rows(7, 1) + b"{bad\n" + rows(8, 1)),
    "blank-line": frame(rows(7, 1) + b"\n" + rows(8, 1)),
    "null-line": frame(b"null\n"),
    "number-line": frame(b"5\n"),
    "seq-gap": frame(rows(8, 1)),
    "seq-repeated": frame(rows(6, 1)),
    "seq-as-string": frame(rows(7, 1).replace(b'"seq":7', b'"seq":"7"')),
    "seq-true": frame(rows(7, 1).replace(b'"seq":7', b'"seq":true')),
    "no-final-newline": frame(rows(7, 2)[:-1]),
    "not-utf8": frame(rows(7, 1).replace(b"retry", b"ret\xffy")),
    "bomb": frame(b"\0" * (65 << 20)),
    "bomb-with-size": frame(b"\0" * (65 << 20), sized=True),
    "window": window_frame(),
    "dictionary": dictionary_frame(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_whole_frame_that_is_wrong_is_corruption_and_left_alone(
    tmp_path: Path, name: str
) -> None:
    log, ends = made(tmp_path, "zstd")
    with log.open("ab") as file:
        file.write(REFUSED[name])
    before = log.read_bytes()
    store = open_store(tmp_path)
    with pytest.raises(LogCorruptError) as caught:
        store.open("s1", "write")
    assert caught.value.facts["offset"] == ends[-1]
    assert caught.value.facts["expected"] in {7, 8}
    assert log.read_bytes() == before
    assert set_aside(log) == []
    report = verify(str(log), tmp_path)
    assert not report.whole
    assert report.findings[0].offset == ends[-1]
    assert store.stat("s1").problem is None  # seen by reading, not by looking


RAW_TAILS = {
    "blank line": (b"\n", True),
    "bad line, then good rows": (b"{bad\n" + rows(7, 2), True),
    "number line": (b"5\n", True),
    "gap": (rows(9, 1), True),
    "unfinished though it is JSON": (rows(7, 1)[:-1], True),
    "bad line, then a turn ends": (
        b'{bad\n{"type":"turn/end","seq":8,"time":1,"data":{}}\n',
        False,
    ),
    "a turn ends in the gap": (b'{"type":"turn/end","seq":8,"time":1,"data":{}}\n', False),
}


def test_a_repair_that_is_run_again_leaves_one_copy_of_the_tail(tmp_path: Path) -> None:
    log, _ = made(tmp_path, "none")
    with log.open("ab") as file:
        file.write(b"half")
    torn = log.read_bytes()
    for _ in range(2):
        log.write_bytes(torn)  # as if the cut had not reached the disk
        open_store(tmp_path).open("s1", "write").close()
    assert set_aside(log) == [b"half"]
    log.write_bytes(torn[:-4] + b"HALF")
    open_store(tmp_path).open("s1", "write").close()
    assert sorted(set_aside(log)) == [b"HALF", b"half"]


@pytest.mark.parametrize("name", RAW_TAILS)
def test_in_a_raw_log_only_a_turn_that_ended_behind_a_defect_makes_it_corruption(
    tmp_path: Path, name: str
) -> None:
    tail, torn = RAW_TAILS[name]
    log, ends = made(tmp_path, "none")
    with log.open("ab") as file:
        file.write(tail)
    store = open_store(tmp_path)
    if torn:
        handle = store.open("s1", "write")
        assert list(handle.read()) == batch(0, 7)
        assert set_aside(log) == [tail]
        handle.close()
    else:
        with pytest.raises(LogCorruptError) as caught:
            store.open("s1", "write")
        assert caught.value.facts["offset"] == ends[-1]
        assert log.stat().st_size == ends[-1] + len(tail)


def test_a_refused_log_keeps_its_torn_tail(tmp_path: Path) -> None:
    log, _ = made(tmp_path, "none")
    with log.open("ab") as file:
        file.write(b'{"type":"no/such","seq":7,"time":1,"data":{}}\nhalf')
    before = log.read_bytes()
    with pytest.raises(DshdError):
        open_store(tmp_path).open("s1", "write")
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        (b'{"type":"session","version":1,"id":"s1"}', "FORMAT_UNSUPPORTED"),
        (b'{"type":"session","version":1e30,"id":"s1"}', "FORMAT_UNSUPPORTED"),
        (b'{"type":"session","version":-1,"id":"s1"}', "FORMAT_UNSUPPORTED"),
        (b'{"type":"session","version":"0","id":"s1"}', "LOG_CORRUPT"),
        (b'{"type":"session","id":"s1","createdAt":1,"delegationDepth":0}', "LOG_CORRUPT"),
        (b'{"type":"session","version":0,"id":"s1","createdAt":1}', "LOG_CORRUPT"),
        (b"\xef\xbb\xbf{}", "LOG_CORRUPT"),
        (b"[]", "LOG_CORRUPT"),
        (b"", "LOG_CORRUPT"),
    ],
)
def test_a_header_of_another_version_is_told_from_one_that_is_none(
    tmp_path: Path, header: bytes, kind: str
) -> None:
    log, _ = made(tmp_path, "none")
    log.write_bytes(header + b"\n")
    store = open_store(tmp_path)
    problem = store.stat("s1").problem
    assert problem is not None
    assert problem.kind == kind
    assert [found.problem for found in store.list()] == [problem]
    for access in ("read", "write"):
        with pytest.raises(DshdError) as caught:
            store.open("s1", access)
        assert caught.value.kind == kind
