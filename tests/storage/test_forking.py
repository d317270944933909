"""A session that begins with another's events: bytes are taken over, and only a row that is cut is written anew."""

from __future__ import annotations

import errno
import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as some

from dsh_protocol.errors import DshdError, LogCorruptError, SessionExistsError
from dsh_protocol.events import Header
from dshd.storage.files import BLOCK, RealDisk
from dshd.storage.jsonl.forking import padded
from dshd.storage.jsonl.frames import FrameEncoder, decode_frame, frames
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.verify import verify
from dshd.storage.store import Snapshot
from storage.failing import FailingDisk
from support import events
from support.events import stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.store import SessionStore

SOURCE = Header(id="source", created_at=1, cwd="/w")
CHILD = Header(id="child", created_at=2, cwd="/w", parent_session="source", seed_length=3)
ENCODINGS: list[Compression] = ["zstd", "none"]
Log = list[dict[str, Any]]


def log_of(root: Path, session_id: str, name: str) -> Path:
    return root / "--w--" / session_id / name


def name_of(compression: Compression) -> str:
    return "session.jsonl.zstd" if compression == "zstd" else "session.jsonl"


def end_mark(seq: int) -> dict[str, Any]:
    return {"type": "session/end-seed", "seq": seq, "time": 7, "data": {}}


def make(root: Path, batches: list[Log], compression: Compression = "zstd") -> SessionStore:
    store = open_store(root, compression=compression)
    handle = store.create(SOURCE)
    for batch in batches:
        handle.append(batch)
    handle.flush()
    handle.close()
    return store


def forked(store: SessionStore, end: int, header: Header = CHILD) -> Log:
    with closing(store.open("source", "read")) as source:
        store.fork(source, end, header, [end_mark(end)]).close()
    with closing(store.open(header.id, "read")) as child:
        assert child.header == header
        return list(child.read())


def batched(log: Log, *sizes: int) -> list[Log]:
    batches: list[Log] = []
    for size in sizes:
        batches.append(log[:size])
        log = log[size:]
    return [batch for batch in [*batches, log] if batch]


MIXED = stored(
    [
        events.turn_start(),
        events.step_start(),
        events.user(),
        *(events.chunk(text) for text in "a stream"),
        events.assistant(),
        events.step_end(),
        events.turn_end(),
        events.title("\u2028"),
    ]
)


@pytest.mark.parametrize("compression", ENCODINGS)
@pytest.mark.parametrize("sizes", [(), (1,), (5, 3), (4, 4, 4), (1,) * 20])
def test_a_fork_at_every_seq_has_the_events_up_to_there(
    tmp_path: Path, compression: Compression, sizes: tuple[int, ...]
) -> None:
    store = make(tmp_path, batched(MIXED, *sizes), compression)
    for end in range(len(MIXED) + 1):
        header = Header(id=f"child-{end}", created_at=2, cwd="/w", parent_session="source")
        assert forked(store, end, header) == [*MIXED[:end], end_mark(end)]
        report = verify(str(log_of(tmp_path, header.id, name_of(compression))), tmp_path)
        assert (report.whole, report.events) == (True, end + 1)
        with closing(store.open(header.id, "write")) as handle:
            handle.append(stored([events.title()], first_seq=end + 1))


@given(
    log=some.lists(some.sampled_from(["c", "t", "x"]), max_size=40),
    sizes=some.lists(some.integers(1, 9), max_size=8),
    end=some.integers(0, 40),
    written_as=some.tuples(some.sampled_from(ENCODINGS), some.booleans()),
)
@settings(max_examples=150, deadline=None)
def test_a_fork_of_any_stream_in_any_batches_equals_the_list(
    tmp_path_factory: pytest.TempPathFactory,
    log: list[str],
    sizes: list[int],
    end: int,
    written_as: tuple[Compression, bool],
) -> None:
    compression, packs = written_as
    made = {"c": events.chunk(), "t": events.title(), "x": events.chunk("\ud800", step=2)}
    written = stored([made[kind] for kind in log])
    root = tmp_path_factory.mktemp("fork")
    store = open_store(root, compression=compression, pack_chunks=packs)
    with closing(store.create(SOURCE)) as handle:
        handle.flush()
        for batch in batched(written, *sizes):
            handle.append(batch)
        end = min(end, len(written))
        store.fork(handle, end, CHILD, [end_mark(end)]).close()
    with closing(store.open("child", "read")) as child:
        assert list(child.read()) == [*written[:end], end_mark(end)]
        assert list(child.read(end)) == [end_mark(end)]


def test_frames_in_front_of_the_cut_are_the_same_bytes(tmp_path: Path) -> None:
    store = make(tmp_path, batched(MIXED, 4, 4, 4))
    forked(store, 13)
    source = log_of(tmp_path, "source", "session.jsonl.zstd").read_bytes()
    child = log_of(tmp_path, "child", "session.jsonl.zstd").read_bytes()
    starts = [at for at in range(len(source)) if source[at : at + 4] == b"\x28\xb5\x2f\xfd"]
    whole = source[starts[1] : starts[4]]  # the three frames of 4 events
    assert whole in child


def test_a_row_that_goes_on_in_the_next_frame_is_cut_with_both(tmp_path: Path) -> None:
    make(tmp_path, [MIXED[:1]])
    path = log_of(tmp_path, "source", "session.jsonl.zstd")
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=False)

    def frame(text: bytes) -> bytes:
        stream = compressor.compressobj()
        return stream.compress(text) + stream.flush()

    row = b'{"type":"session/title","seq":1,"time":1,"data":{"title":"x"}}\n'
    after = row.replace(b'"seq":1', b'"seq":2')
    path.write_bytes(path.read_bytes() + frame(row[:20]) + frame(row[20:] + after))
    for end in range(4):
        header = Header(id=f"child-{end}", created_at=2, cwd="/w")
        assert [event["seq"] for event in forked(open_store(tmp_path), end, header)] == list(
            range(end + 1)
        )


@pytest.mark.parametrize("compression", ENCODINGS)
def test_a_fork_keeps_the_encoding_of_its_source(tmp_path: Path, compression: Compression) -> None:
    make(tmp_path, [MIXED], compression)
    other: Compression = "none" if compression == "zstd" else "zstd"
    assert forked(open_store(tmp_path, compression=other), len(MIXED))
    assert log_of(tmp_path, "child", name_of(compression)).exists()


def test_a_fork_beyond_what_is_there_leaves_nothing(tmp_path: Path) -> None:
    store = make(tmp_path, [MIXED])
    with closing(store.open("source", "read")) as source, pytest.raises(LogCorruptError):
        store.fork(source, len(MIXED) + 1, CHILD, [])
    assert not log_of(tmp_path, "child", "session.jsonl.zstd").parent.exists()
    forked(store, 1)
    with closing(store.open("source", "read")) as source, pytest.raises(SessionExistsError):
        store.fork(source, 1, CHILD, [])


class CountingDisk(RealDisk):
    """Counts the bytes that are read."""

    read = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        found = super().pread(fd, size, offset)
        self.read += len(found)
        return found


class OldKernelDisk(RealDisk):
    """Has no copying in the kernel, and short writes."""

    def copy(self, source: int, offset: int, fd: int, size: int) -> int:
        return os.write(fd, os.pread(source, min(size, 1000), offset))


def large(root: Path, disk: RealDisk, frames: int = 200) -> tuple[SessionStore, int]:
    """A source of some MB in frames of 20 events, with its derived file."""
    store = open_store(root, compression="zstd", disk=disk)
    total = 0
    with closing(store.create(SOURCE)) as handle:
        for _ in range(frames):
            noise = [events.title(os.urandom(500).hex()) for _ in range(20)]
            handle.append(stored(noise, first_seq=total))
            total += len(noise)
        assert handle.keep(Snapshot(total, b"{}", b"{}"))
    return store, total


def test_history_is_neither_read_nor_decoded(tmp_path: Path) -> None:
    disk = CountingDisk()
    store, total = large(tmp_path, disk)
    size = log_of(tmp_path, "source", "session.jsonl.zstd").stat().st_size
    assert size > 2_000_000
    with closing(store.open("source", "read")) as source:
        disk.read = 0
        with closing(store.fork(source, total, CHILD, [end_mark(total)])) as child:
            assert child.keep(Snapshot(total + 1, b"{}", b"{}"))
    assert disk.read < 300_000
    disk.read = 0
    with closing(store.open("child", "write")) as child:
        assert [event["seq"] for event in child.read(total - 1)] == [total - 1, total]
    assert disk.read < 600_000, "the child's positions were lost"


def test_a_disk_that_cannot_copy_in_the_kernel_copies_all_the_same(tmp_path: Path) -> None:
    store, total = large(tmp_path, OldKernelDisk(), frames=3)
    assert [event["seq"] for event in forked(store, total - 7)] == list(range(total - 6))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_fork_whose_every_call_fails_once_is_whole_or_is_not_there(
    tmp_path: Path, error: int
) -> None:
    make(tmp_path, [MIXED[:6], MIXED[6:]])
    disk = FailingDisk()
    store = open_store(tmp_path, disk=disk)
    with closing(store.open("source", "read")) as source:
        begun = len(disk.calls)
        store.fork(source, 8, CHILD, [end_mark(8)]).close()
        needed = len(disk.calls) - begun
        assert "copy" in disk.calls
        for number in range(1, needed + 1):
            header = Header(id=f"child-{number}", created_at=2, cwd="/w")
            disk.at, disk.error = len(disk.calls) + number, error
            try:
                store.fork(source, 8, header, [end_mark(8)]).close()
            except (DshdError, OSError):
                made = log_of(tmp_path, header.id, "session.jsonl.zstd").exists()
                assert not made, "an error was told and the session is there"
            disk.at = 0
            with suppress(
                SessionExistsError
            ):  # a failure that matters to nobody made it all the same
                store.fork(source, 8, header, [end_mark(8)]).close()
            with closing(store.open(header.id, "read")) as child:
                assert list(child.read()) == [*MIXED[:8], end_mark(8)]


class SharingDisk(RealDisk):
    """Says that blocks can be shared, whatever the file system says."""

    def shares(self, source: int, directory: int) -> bool:
        return source >= 0 <= directory


@pytest.mark.parametrize("compression", ENCODINGS)
def test_where_blocks_can_be_shared_the_history_stands_where_it_stood_in_a_block(
    tmp_path: Path, compression: Compression
) -> None:
    store = open_store(tmp_path, compression=compression, disk=SharingDisk())
    with closing(store.create(SOURCE)) as handle:
        handle.append(stored([events.title(os.urandom(500).hex()) for _ in range(3000)]))
        for number in range(5):
            header = Header(id="x" * (number + 1), created_at=2, cwd="/w", parent_session="source")
            store.fork(handle, 3000, header, [end_mark(3000)]).close()
            with closing(store.open(header.id, "write")) as child:
                assert child.header == header
                assert [event["seq"] for event in child.read(2998)] == [2998, 2999, 3000]
            name = name_of(compression)
            source = log_of(tmp_path, "source", name).read_bytes()
            copied = log_of(tmp_path, header.id, name).read_bytes()
            middle = source[len(source) // 2 :][:100]
            assert (copied.index(middle) - source.index(middle)) % BLOCK == 0
            assert verify(str(log_of(tmp_path, header.id, name)), tmp_path).whole


def test_a_header_of_any_length_means_the_same_and_ends_where_it_is_wanted() -> None:
    for size in (90, 300, 5000):
        line = b'{"type":"session","cwd":"/%b"}\n' % (b"w" * size)
        frame = FrameEncoder().encode(line)
        for wanted in range(0, BLOCK, 7):
            made = padded(frame, wanted, zstd=True)
            assert len(made) % BLOCK == wanted
            assert zstandard.ZstdDecompressor().decompressobj().decompress(made) == line
            assert decode_frame(next(frames(_reader(made), 0, len(made), ahead=8192))) == line
            assert len(padded(line, wanted, zstd=False)) % BLOCK == wanted


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda size, offset: data[offset : offset + size]
