"""One pass over logs that nobody means to write: rows that go on, frames without a checksum, very many events."""

from __future__ import annotations

import errno
import json
import os
import random
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

from dsh_protocol.errors import DshdError, LogCorruptError
from dsh_protocol.jsontext import encode
from dshd.storage.files import READ
from dshd.storage.jsonl.derived import DERIVED, parts_of, read_derived, sealed
from dshd.storage.jsonl.frames import MAX_PLAIN, FrameEncoder
from dshd.storage.jsonl.index import Position, SeqIndex
from dshd.storage.jsonl.repair import set_aside, sweep
from dshd.storage.jsonl.rows import RowDefectError, unpack
from dshd.storage.jsonl.scan import Torn, Walk
from dshd.storage.jsonl.source import Source, read_header
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from properties.mortal_disk import MortalDisk
from storage.failing import FailingDisk
from storage.samples import HEADER, batch

if TYPE_CHECKING:
    from properties.mortal_disk import Tree

ROOT = Path("/memory")  # of the disk in memory
PATH = f"--work--/s1/{DERIVED}"
frame = FrameEncoder().encode
LINE = b'{"type":"session","version":0,"id":"s1","createdAt":1}\n'


def unchecked(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=False).compress(plain)


def rows(first: int, count: int) -> bytes:
    return b"".join(encode(event) + b"\n" for event in batch(first, count))


def source_of(content: bytes, *, zstd: bool = True, disk: MortalDisk | None = None) -> Source:
    disk = disk or MortalDisk()
    disk.lay_out({"log": content})
    return Source(disk, disk.open("log", READ, at=disk.open_root("/memory")), "log", zstd)


class Holes(MortalDisk):
    """A file system that does not store zeros."""

    def next_data(self, fd: int, offset: int) -> int | None:
        whole = self.pread(fd, 2**40, 0)
        return next((at for at in range(offset, len(whole)) if whole[at]), None)


def walked(content: bytes, *, zstd: bool = True, holes: bool = False) -> tuple[list[int], str]:
    """Read a log without its header. Returns the sizes of what came, and what is told of the end."""
    source = source_of(content, zstd=zstd, disk=Holes() if holes else None)
    walk = Walk(source, SeqIndex(), Position(0, 0), len(content))
    sizes: list[int] = []
    try:
        sizes += (len(events) for events in walk.batches())
    except LogCorruptError as error:
        return sizes, str(error.facts["reason"])
    return sizes, f"torn: {walk.torn.reason}" if walk.torn is not None else ""


# ---------------------------------------------------------------------- the header


def test_a_first_frame_that_holds_more_or_less_than_a_line_is_no_header() -> None:
    for text in (LINE + rows(0, 1), LINE[:-1], LINE + LINE):
        content = frame(text)
        with pytest.raises(LogCorruptError, match="not exactly one header line"):
            read_header(source_of(content), len(content))
    with pytest.raises(LogCorruptError, match="header-less"):
        read_header(source_of(b""), 0)
    with pytest.raises(LogCorruptError, match="header frame: unfinished"):
        read_header(source_of(frame(LINE)[:-1]), len(frame(LINE)) - 1)


# ---------------------------------------------------------------------- very many, very long


def test_very_many_events_come_in_parts_of_some_thousands() -> None:
    many = rows(0, 9000)
    for content, zstd in ((frame(many), True), (many, False)):
        sizes, told = walked(content, zstd=zstd)
        assert sum(sizes) == 9000
        assert max(sizes) <= 4096 or not zstd
        assert told == ""
    members = {"turn": 1, "step": 1, "index": 0, "dt": [0] * 8999, "texts": ["a"] * 9000}
    packed = encode({"type": "text-chunks", "seq0": 0, "time0": 1, "data": members}) + b"\n"
    for content, zstd in ((frame(packed), True), (packed, False)):
        sizes, told = walked(content, zstd=zstd)
        assert (sizes[:2], sum(sizes), told) == ([4096, 4096], 9000, "")


def test_a_row_that_goes_on_beyond_64_mib_of_frames_is_corrupt() -> None:
    part = frame(b"x" * (MAX_PLAIN // 2 + 1))
    assert walked(frame(rows(0, 2)) + part + part)[1] == "a row is longer than 64 MiB"


def test_a_row_of_very_many_characters_need_not_have_very_many_values() -> None:
    (found,) = unpack(encode({"text": "a," * 1_100_000}))
    assert len(found["text"]) == 2_200_000
    (found,) = unpack(encode({"text": 'a,"' * 1_100_000}))
    assert len(found["text"]) == 3_300_000
    with pytest.raises(RowDefectError, match="more than two million values"):
        unpack(b"[" + b"0," * 2_100_000 + b"0]")


def test_a_whole_row_that_is_too_deep_is_corrupt_in_a_raw_log_and_no_tail() -> None:
    deep = b'{"a":' * 10_001 + b"0" + b"}" * 10_001 + b"\n"
    sizes, told = walked(rows(0, 2) + deep, zstd=False)
    assert (sum(sizes), told) == (2, "unreadable row: not JSON: too-deep")
    assert walked(b"{bad\n" + deep, zstd=False)[1] == "torn: unparsable row: not JSON: not-json"


def test_a_raw_log_that_is_cut_while_it_is_read_ends_there() -> None:
    content = rows(0, 2)
    walk = Walk(source_of(content, zstd=False), SeqIndex(), Position(0, 0), len(content) + 50)
    assert sum(len(events) for events in walk.batches()) == 2
    assert walk.torn == Torn(len(content), 50, "unfinished row")


def test_behind_a_row_with_a_nul_holes_are_passed_over_and_an_end_of_a_turn_is_still_found() -> (
    None
):
    ends = encode({"type": "turn/end", "seq": 3, "time": 1, "data": {}}) + b"\n"
    for behind, told in ((ends, "a turn ends behind it"), (rows(3, 1), "torn: a row longer")):
        content = rows(0, 2) + bytes(400_000) + b"\n" + behind
        assert told in walked(content, zstd=False, holes=True)[1]


# ---------------------------------------------------------------------- frames without a checksum


TORN = {
    "not-json": (b"{bad\n", "unparsable row: not JSON: not-json"),
    "gap": (rows(3, 1), "seq gap"),
    "unfinished": (rows(2, 1)[:-1], "unfinished row"),
}


@pytest.mark.parametrize("name", TORN)
def test_a_last_frame_without_a_checksum_that_is_not_right_is_a_tail(name: str) -> None:
    text, reason = TORN[name]
    sizes, told = walked(frame(rows(0, 2)) + unchecked(text))
    assert (sum(sizes), told) == (2, f"torn: frame without checksum: {reason}")


def test_frames_without_a_checksum_hold_rows_that_go_on_and_nothing() -> None:
    row = rows(2, 1)
    parts = [frame(rows(0, 2)), unchecked(b""), unchecked(row[:9]), unchecked(row[9:])]
    sizes, told = walked(b"".join(parts))
    assert (sum(sizes), told) == (3, "")


def test_a_row_that_ends_in_a_frame_that_is_bad_is_corrupt() -> None:
    sizes, told = walked(frame(rows(0, 2)) + frame(rows(2, 1)[:9]) + frame(rows(3, 1))[:-1])
    assert sum(sizes) == 2
    assert told == "a row begins in the frame before, and then: unfinished frame"


PROOFS = {
    "events that are still to come": (unchecked(rows(2, 1)), True),
    "a checksum": (frame(b"anything"), True),
    "no whole row": (unchecked(rows(2, 1)[:-1]), False),
    "no JSON": (unchecked(b"{bad\n"), False),
    "no event": (unchecked(b"5\n"), False),
    "no seq": (unchecked(b"{}\n"), False),
    "an earlier event": (unchecked(rows(1, 1)), False),
}


@pytest.mark.parametrize("name", PROOFS)
def test_a_bad_frame_is_corrupt_where_one_behind_it_proves_that_it_was_written(name: str) -> None:
    behind, proves = PROOFS[name]
    bad = bytearray(frame(rows(2, 3)))
    bad[-1] ^= 1
    _, told = walked(frame(rows(0, 2)) + bytes(bad) + behind)
    assert ("and a good frame follows" in told) == proves
    assert told.startswith("torn: ") != proves


# ---------------------------------------------------------------------- setting aside


class Longer(MortalDisk):
    """A file was longer a moment ago."""

    def next_data(self, fd: int, offset: int) -> int:
        return offset


def test_a_tail_that_is_gone_when_it_is_copied_is_copied_as_far_as_it_goes() -> None:
    source = source_of(b"good torn", disk=Longer())
    directory = source.disk.open_root("/memory")
    name = set_aside(directory, source, Torn(5, 1000, "cut"))
    assert name.startswith("torn-5-")
    fd = source.disk.open(name, READ, at=directory)
    assert source.disk.pread(fd, 100, 0) == b"torn"


def test_the_holes_of_a_tail_are_copied_as_holes() -> None:
    content = b"good" + bytes(5000) + b"torn" + bytes(300)
    source = source_of(content, disk=Holes())
    directory = source.disk.open_root("/memory")
    names = {set_aside(directory, source, Torn(4, len(content) - 4, "zeros")) for _ in range(2)}
    (name,) = names
    fd = source.disk.open(name, READ, at=directory)
    assert source.disk.pread(fd, 2**20, 0) == content[4:]


def test_what_a_dead_writer_left_is_swept_when_it_is_old() -> None:
    disk, directory, _ = kept_of()
    name = "torn.0123456789ab.tmp"
    disk.put(f"--work--/s1/{name}", b"half")
    sweep(disk, directory, older_than=0, names=[name, "gone"])
    assert name in disk.listdir(directory)
    sweep(disk, directory, older_than=10**9, names=[name, "gone"])
    assert name not in disk.listdir(directory)


def torn(root: Path) -> Path:
    """Make a torn log. Returns its directory."""
    with closing(open_store(root).create(HEADER)) as handle:
        handle.append(batch(0, 2))
    log = next(root.rglob("session.jsonl*"))
    with log.open("ab") as file:
        file.write(b"torn")
    return log.parent


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_copy_that_fails_leaves_the_log_and_nothing_beside_it(tmp_path: Path, call: str) -> None:
    whole = FailingDisk()
    torn(tmp_path / "whole")
    open_store(tmp_path / "whole", disk=whole).open("s1", "write").close()
    folder = torn(tmp_path / "failing")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    disk = FailingDisk(whole.calls.index(call) + 1, errno.EIO)
    with pytest.raises(DshdError):
        open_store(tmp_path / "failing", disk=disk).open("s1", "write")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# ---------------------------------------------------------------------- the derived file


def kept_of(state: bytes = b"state") -> tuple[MortalDisk, int, list[bytes]]:
    """Keep something beside a log. Returns the disk, the directory, and the parts of the derived file."""
    disk = MortalDisk()
    with closing(open_store(ROOT, disk=disk).create(HEADER)) as handle:
        handle.append(batch(0, 3))
        assert handle.keep(Snapshot(3, state, b"{}"))
    directory = disk.open_root("/memory/--work--/s1")
    derived = read_derived(disk, directory, whole=True)
    assert derived is not None
    return disk, directory, parts_of(derived)


def test_a_state_that_is_no_frame_is_none_and_the_rest_is_believed() -> None:
    disk, directory, parts = kept_of()
    for state in (b"", b"no frame", parts[3][:-1], parts[3][:-1] + b"x", parts[3] + b"x"):
        disk.put(PATH, sealed([*parts[:3], state]))
        found = read_derived(disk, directory, whole=True)
        assert found is not None
        assert found.known.events == 3
        assert found.snapshot is None


def test_counts_and_positions_that_cannot_be_are_none() -> None:
    disk, directory, parts = kept_of()
    head = json.loads(parts[0])
    wrong = [
        *([json.dumps({**head, "events": n}).encode(), *parts[1:]] for n in (-1, 2**53, 10**30)),
        [parts[0], parts[1], b"x" * 17, parts[3]],
        [parts[0], bytes(4 * 1024 * 1024 + 1), *parts[2:]],
        [b"{}", *parts[1:]],
    ]
    for one in wrong:
        disk.put(PATH, sealed(one))
        assert read_derived(disk, directory, whole=True) is None
        assert read_derived(disk, directory, whole=False) is None or one[0] == parts[0]


class Few(MortalDisk):
    """A read gives less than was asked for."""

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return super().pread(fd, size if offset == 0 else min(size, 1000), offset)


class Shorter(MortalDisk):
    """The file is cut behind its first page while it is read."""

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return super().pread(fd, size, offset) if offset == 0 else b""


class Broken(MortalDisk):
    """Nothing can be opened but directories."""

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def laid_out(disk: MortalDisk, tree: Tree) -> int:
    disk.lay_out(tree)
    return disk.open_root("/memory/--work--/s1")


def test_a_long_state_is_read_in_as_many_pieces_as_the_disk_gives() -> None:
    state = random.Random(1).randbytes(20_000)  # noqa: S311  # what does not compress
    tree = kept_of(state)[0].tree()
    few, shorter = Few(), Shorter()
    found = read_derived(few, laid_out(few, tree), whole=True)
    assert found is not None
    assert found.snapshot is not None
    assert found.snapshot.state == state
    assert read_derived(shorter, laid_out(shorter, tree), whole=True) is None


def test_a_derived_file_that_the_disk_does_not_give_is_no_missing_one() -> None:
    disk, directory, _ = kept_of()
    broken = Broken()
    with pytest.raises(OSError, match="Input/output error"):
        read_derived(broken, laid_out(broken, disk.tree()), whole=True)
    disk.put(PATH, None)
    assert read_derived(disk, directory, whole=True) is None
