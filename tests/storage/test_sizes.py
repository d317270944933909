"""Logs that are larger than memory should be, and roots with more sessions than anybody looks at."""

from __future__ import annotations

import tracemalloc
from contextlib import closing, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.events import Header
from dshd.storage.jsonl.frames import FrameEncoder
from dshd.storage.jsonl.rows import pack
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from storage.failing import HastyDisk
from storage.samples import HEADER, batch, log_of
from support.logs import read_frames

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression

MIB = 1024 * 1024
GIB = 1024 * MIB
MEMBERS = 60_000


class CountingDisk(HastyDisk):
    """Counts the bytes that are read, and the descriptors that are opened."""

    read = 0
    opened = 0

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        self.opened += 1
        return super().open(path, flags, at=at)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        found = super().pread(fd, size, offset)
        self.read += len(found)
        return found


@contextmanager
def bounded(limit: int) -> Generator[None]:
    """Fail where more than `limit` bytes are held at once."""
    tracemalloc.start()
    try:
        yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < limit, f"{most} bytes were held at once"


def chunk(seq: int) -> dict[str, Any]:
    piece = {"type": "text-delta", "index": 0, "text": f"word {seq * 7919 % 1000} "}
    data = {"turn": 1, "step": 1, "chunk": piece}
    return {"type": "assistant/chunk", "seq": seq, "time": 1000 + seq, "data": data}


@pytest.mark.parametrize("half", [b"", b"\x28\xb5\x2f\xfd\x04X", b'{"type":'], ids=["-", "z", "r"])
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_sparse_file_of_20_gb_is_told_and_cut_without_reading_it(
    tmp_path: Path, compression: Compression, half: bytes
) -> None:
    disk = CountingDisk()
    store = open_store(tmp_path, compression=compression, disk=disk)
    with closing(store.create(HEADER)) as handle:
        handle.append(batch(0, 3))
        size = handle.size_bytes
    log = log_of(tmp_path, "session.jsonl.zstd" if compression == "zstd" else "session.jsonl")
    with log.open("ab") as file:
        file.write(half)
        file.truncate(20 * GIB)
    with bounded(4 * MIB):
        assert store.stat("s1").size_bytes == 20 * GIB
        with closing(store.open("s1", "read")) as handle:
            assert list(handle.read()) == batch(0, 3)
        with closing(store.open("s1", "write")) as handle:
            assert handle.size_bytes == size
    (copy,) = log.parent.glob("torn-*.bin")
    assert copy.stat().st_size == 20 * GIB - size
    assert copy.stat().st_blocks * 512 < 2 * MIB, "the holes were filled"
    assert disk.read < 8 * MIB


@pytest.mark.slow
def test_a_log_of_1_3_million_events_is_read_by_the_page(tmp_path: Path) -> None:
    count, each = 1_300_000, 5000
    with closing(open_store(tmp_path, disk=HastyDisk()).create(HEADER)) as handle:
        handle.flush()
    encoder = FrameEncoder()
    (row,) = pack(
        [chunk(seq) for seq in range(each)]
    )  # what it says comes again with every thousand
    with log_of(tmp_path).open("ab") as file:
        for first in range(0, count, each):
            later = row.replace(
                b'"seq0":0,"time0":1000,', b'"seq0":%d,"time0":%d,' % (first, 1000 + first)
            )
            file.write(encoder.encode(later + b"\n"))
    with closing(open_store(tmp_path, disk=HastyDisk()).open("s1", "write")) as handle:
        assert handle.keep(Snapshot(count, b"state", b"{}"))
    disk = CountingDisk()
    store = open_store(tmp_path, disk=disk)
    with bounded(24 * MIB):  # a page of 10,000 events is about 12
        with closing(store.open("s1", "write")) as handle:
            assert handle.next_seq == count
        with closing(store.open("s1", "read")) as handle:
            assert list(handle.read(count - 3)) == [chunk(seq) for seq in range(count - 3, count)]
        assert disk.read < 2 * MIB
        with closing(store.open("s1", "read")) as handle:
            assert len(list(islice(handle.read(count // 2), 10_000))) == 10_000


def test_a_row_of_very_many_members_is_read_by_the_page(tmp_path: Path) -> None:
    texts, gaps = ",".join(['""'] * MEMBERS), ",".join(["0"] * (MEMBERS - 1))
    data = f'{{"turn":1,"step":1,"index":0,"dt":[{gaps}],"texts":[{texts}]}}'
    with closing(open_store(tmp_path, compression="none").create(HEADER)) as handle:
        handle.flush()
    with log_of(tmp_path, "session.jsonl").open("a") as file:
        file.write(f'{{"type":"text-chunks","seq0":0,"time0":5,"data":{data}}}\n')
    with bounded(32 * MIB), closing(open_store(tmp_path).open("s1", "read")) as handle:
        found = list(islice(handle.read(), 100))
        assert [one["seq"] for one in found] == list(range(100))
        assert sum(1 for _ in handle.read()) == MEMBERS


@pytest.mark.slow
def test_a_list_of_10_000_sessions_reads_their_headers_once(tmp_path: Path) -> None:
    store = open_store(tmp_path, disk=HastyDisk())
    with closing(store.create(Header(id="s0", created_at=1, cwd="/work"))) as handle:
        handle.append(batch(0, 1))
    first = next(tmp_path.rglob("session.jsonl.zstd"))
    encoder, texts = FrameEncoder(), read_frames(first)
    for number in range(1, 10_000):
        folder = first.parent.with_name(f"s{number}")
        folder.mkdir(mode=0o700)
        frames = [encoder.encode(text.replace(b'"s0"', b'"s%d"' % number)) for text in texts]
        (folder / first.name).write_bytes(b"".join(frames))
    disk = CountingDisk()
    store = open_store(tmp_path, disk=disk)
    with bounded(64 * MIB):
        assert sum(1 for _ in store.list()) == 10_000
    assert disk.read < 10_000 * 9 * 1024
    disk.read = disk.opened = 0
    assert sum(one.problem is None for one in store.list()) == 10_000
    assert disk.read == 0
    assert disk.opened < 10
