"""The derived file beside a log: what it is believed, and that nothing but time is lost without it."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.errors import LogCorruptError, NoSpaceError, WriteFailedError
from dsh_protocol.events import Header
from dshd.storage.jsonl.derived import DERIVED
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from storage.failing import FailingDisk, HastyDisk
from storage.samples import HEADER, batch, log_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.store import StoredSession

NAMES: dict[Compression, str] = {"zstd": "session.jsonl.zstd", "none": "session.jsonl"}
ENCODINGS = pytest.mark.parametrize("compression", ["zstd", "none"])


def wait_a_tick() -> None:
    """Wait until the file system's clock has moved on: no change can hide within one step of it."""
    until = time.monotonic() + 0.06
    while time.monotonic() < until:
        os.sched_yield()


def snapshot(next_seq: int) -> Snapshot:
    return Snapshot(next_seq, b"state of %d" % next_seq, b'"%d"' % next_seq)


def made(root: Path, compression: Compression = "zstd", header: Header = HEADER) -> Path:
    """Make a log of three batches, level with its derived file. Returns it."""
    store = open_store(root, compression=compression, disk=HastyDisk())
    with closing(store.create(header)) as handle:
        for first in (0, 3, 6):
            handle.append(batch(first, 3))
        assert handle.keep(snapshot(9))
    return log_of(root, NAMES[compression])


def opened(root: Path) -> tuple[int, int | None]:
    """Open for writing. Returns the number of events, and of those that a snapshot was kept of."""
    with closing(open_store(root, disk=HastyDisk()).open("s1", "write")) as handle:
        assert list(handle.read()) == batch(0, handle.next_seq)
        kept = handle.snapshot()
        return handle.next_seq, None if kept is None else kept.next_seq


def refused(root: Path) -> LogCorruptError:
    """Open for writing, which is refused and changes nothing. Returns the refusal."""
    log = next(root.rglob("session.jsonl*"))
    before = {path.name: path.read_bytes() for path in log.parent.iterdir()}
    with pytest.raises(LogCorruptError) as caught:
        open_store(root, disk=HastyDisk()).open("s1", "write")
    assert {path.name: path.read_bytes() for path in log.parent.iterdir()} == before
    return caught.value


@ENCODINGS
def test_what_is_kept_is_given_back_and_the_log_goes_on(
    tmp_path: Path, compression: Compression
) -> None:
    log = made(tmp_path, compression)
    store = open_store(tmp_path, disk=HastyDisk())
    for access in ("read", "write"):
        with closing(store.open("s1", access)) as handle:
            assert handle.next_seq == 9
            assert list(handle.read(7)) == batch(7, 2)
    for _ in range(2):
        with closing(store.open("s1", "write")) as handle:
            assert handle.snapshot() == snapshot(handle.next_seq)
            handle.append(batch(handle.next_seq, 2))
            assert handle.snapshot() == snapshot(handle.next_seq - 2)
            assert not handle.keep(snapshot(handle.next_seq - 1)), "of another length"
            assert handle.keep(snapshot(handle.next_seq))
    assert opened(tmp_path) == (13, 13)
    assert (log.parent / DERIVED).stat().st_mode & 0o777 == 0o600


def damage(derived: Path, how: str) -> None:
    """Do something to a derived file that makes it say nothing."""
    whole = derived.read_bytes()
    derived.unlink()
    if how == "linked":
        derived.symlink_to("/etc/passwd")
    elif how == "a directory":
        derived.mkdir()
    elif how == "a pipe":
        os.mkfifo(derived)
    elif how != "missing":
        content = {
            "empty": b"",
            "torn": whole[: len(whole) // 2],
            "zeros": bytes(len(whole)),
            "longer": whole + b"\0",
            "newer": whole[:8] + b"\2" + whole[9:],
            "text": b"{}\n" * 100,
        }[how]
        derived.write_bytes(content)


DAMAGES = (
    *("missing", "empty", "torn", "zeros", "longer", "newer", "text"),
    *("linked", "a pipe"),
)


@pytest.mark.parametrize("how", DAMAGES)
def test_without_a_derived_file_that_is_whole_nothing_is_lost_and_it_is_made_anew(
    tmp_path: Path, how: str
) -> None:
    log = made(tmp_path)
    damage(log.parent / DERIVED, how)
    store = open_store(tmp_path, disk=HastyDisk())
    assert [one.problem for one in store.list()] == [None]
    with closing(store.open("s1", "read")) as handle:
        assert (handle.next_seq, handle.snapshot()) == (9, None)
    with closing(store.open("s1", "write")) as handle:
        assert (handle.next_seq, handle.snapshot()) == (9, None)
        assert handle.keep(snapshot(9))
    assert opened(tmp_path) == (9, 9)
    assert not (log.parent / DERIVED).is_symlink()


@ENCODINGS
def test_every_bit_of_the_derived_file_flipped_costs_nothing(
    tmp_path: Path, compression: Compression
) -> None:
    log = made(tmp_path, compression)
    whole = (log.parent / DERIVED).read_bytes()
    each = 1 if compression == "zstd" else 9  # of the other one, a bit of every byte
    for bit in range(0, len(whole) * 8, each):
        mine = bytearray(whole)
        mine[bit // 8] ^= 1 << bit % 8
        (log.parent / DERIVED).write_bytes(mine)
        assert opened(tmp_path) == (9, None), bit


def test_a_derived_file_of_another_session_or_of_one_of_that_name_before_says_nothing(
    tmp_path: Path,
) -> None:
    other = Header(id="s1", created_at=999, cwd="/work")
    made(tmp_path / "before", header=other)
    log = made(tmp_path / "now")
    shutil.copy(log_of(tmp_path / "before").parent / DERIVED, log.parent / DERIVED)
    assert opened(tmp_path / "now") == (9, None)


@ENCODINGS
def test_a_derived_file_that_lags_behind_gives_what_it_knows(
    tmp_path: Path, compression: Compression
) -> None:
    log = made(tmp_path, compression)
    old = (log.parent / DERIVED).read_bytes()
    with closing(open_store(tmp_path, disk=HastyDisk()).open("s1", "write")) as handle:
        handle.append(batch(9, 2))
        assert handle.keep(snapshot(11))
    (log.parent / DERIVED).write_bytes(old)
    assert opened(tmp_path) == (11, 9)


@ENCODINGS
def test_a_log_that_is_copied_with_its_directory_keeps_what_is_known(
    tmp_path: Path, compression: Compression
) -> None:
    made(tmp_path / "one", compression)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    assert opened(tmp_path / "other") == (9, 9)


@ENCODINGS
def test_a_log_that_is_shorter_than_acknowledged_is_corrupt(
    tmp_path: Path, compression: Compression
) -> None:
    log = made(tmp_path, compression)
    whole = log.read_bytes()
    first = whole.index(b"\n") + 1 if compression == "none" else header_end()
    for length in range(first, len(whole)):
        log.write_bytes(whole[:length])
        refusal = refused(tmp_path)
        assert "shorter than acknowledged" in refusal.message
        assert first <= refusal.facts["offset"] <= length
        (listed,) = open_store(tmp_path).list()
        assert listed.problem is not None
        assert "shorter than acknowledged" in listed.problem.message
        events, told = shown(tmp_path)
        assert told
        assert events == batch(0, len(events))
    log.write_bytes(whole)
    assert opened(tmp_path)[0] == 9


def header_end() -> int:
    """Return where the header's frame ends."""
    with (
        TemporaryDirectory() as empty,
        closing(open_store(Path(empty), disk=HastyDisk()).create(HEADER)) as handle,
    ):
        handle.flush()
        return handle.size_bytes


def shown(root: Path) -> tuple[list[Any], bool]:
    """Read as far as it goes. Returns the events, and whether a defect was told."""
    events: list[Any] = []
    try:
        with closing(open_store(root, disk=HastyDisk()).open("s1", "read")) as handle:
            events += handle.read()
    except LogCorruptError:
        return events, True
    return events, False


Damage = "Callable[[bytes, int], bytes]"
BELOW: dict[str, Callable[[bytes, int], bytes]] = {
    "a sector of zeros": lambda log, at: log[: at - 60] + bytes(60) + log[at:],
    "one bit": lambda log, at: log[: at - 1] + bytes([log[at - 1] ^ 4]) + log[at:],
    "zeros to the end": lambda log, at: log[: at - 20] + bytes(20 + len(log) - at),
    "garbage to the end": lambda log, at: log[: at - 20] + b"\xa7" * (20 + len(log) - at),
    "a stretch taken out": lambda log, at: log[: at - 20] + log[at:],
    "a stretch put in": lambda log, at: log[: at - 20] + b"\n" * 20 + log[at - 20 :],
}


@ENCODINGS
@pytest.mark.parametrize("how", BELOW)
@pytest.mark.parametrize("beyond", [0, 2], ids=["level", "lagging"])
def test_a_defect_below_the_bound_is_corruption_whatever_it_looks_like(
    tmp_path: Path, compression: Compression, how: str, beyond: int
) -> None:
    log = made(tmp_path, compression)
    bound = log.stat().st_size
    if beyond:
        with closing(open_store(tmp_path, disk=HastyDisk()).open("s1", "write")) as handle:
            handle.append(batch(9, beyond))
    log.write_bytes(BELOW[how](log.read_bytes(), bound))
    refusal = refused(tmp_path)
    assert 0 < refusal.facts["offset"] <= bound
    assert refusal.facts["path"] == str(log)
    events, told = shown(tmp_path)
    assert told
    assert events[:6] == batch(0, 6)


@ENCODINGS
@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\xa7" * 700, b"\x28\xb5\x2f\xfd\x04X12"])
def test_a_defect_above_the_bound_to_the_end_is_a_tail(
    tmp_path: Path, compression: Compression, tail: bytes
) -> None:
    log = made(tmp_path, compression)
    whole = log.read_bytes()
    log.write_bytes(whole + tail)
    assert shown(tmp_path) == (batch(0, 9), False)
    assert opened(tmp_path) == (9, 9)
    assert log.read_bytes() == whole
    assert [p.read_bytes() for p in log.parent.glob("torn-*.bin")] == [tail]


def test_a_bad_frame_above_the_bound_with_a_good_one_behind_it_is_corruption(
    tmp_path: Path,
) -> None:
    log = made(tmp_path)
    bound = log.stat().st_size
    with closing(open_store(tmp_path, disk=HastyDisk()).open("s1", "write")) as handle:
        handle.append(batch(9, 2))
        end = handle.size_bytes
        handle.append(batch(11, 2))
    mine = bytearray(log.read_bytes())
    mine[end - 1] ^= 1
    log.write_bytes(mine)
    refusal = refused(tmp_path)
    assert (refusal.facts["offset"], refusal.facts["expected"]) == (bound, 9)


def test_in_a_raw_log_a_number_that_changed_below_the_bound_is_noticed(tmp_path: Path) -> None:
    log = made(tmp_path, "none")
    log.write_bytes(log.read_bytes().replace(b'"n":4', b'"n":5', 1))
    assert "not the ones that were acknowledged" in refused(tmp_path).message
    assert shown(tmp_path)[1]


def test_a_header_that_changed_is_corruption_and_no_other_session(tmp_path: Path) -> None:
    log = made(tmp_path, "none")
    log.write_bytes(log.read_bytes().replace(b'"createdAt":1000', b'"createdAt":1001', 1))
    refusal = refused(tmp_path)
    assert refusal.facts["offset"] == 0
    assert "its header" in refusal.message


@pytest.mark.parametrize("call", ["open", "pread", "write", "fsync", "rename"])
@pytest.mark.parametrize(("number", "kind"), [(28, NoSpaceError), (5, WriteFailedError)])
def test_a_disk_that_fails_keeps_the_old_file_and_the_session_goes_on(
    tmp_path: Path, call: str, number: int, kind: type[Exception]
) -> None:
    log = made(tmp_path)
    old = (log.parent / DERIVED).read_bytes()
    disk = FailingDisk()
    handle = open_store(tmp_path, disk=disk).open("s1", "write")
    handle.append(batch(9, 1))
    seen = len(disk.calls)
    assert handle.keep(snapshot(10))
    calls = disk.calls[seen:]
    at = calls.index(call) if call != "open" else len(calls) - 1 - calls[::-1].index(call)
    (log.parent / DERIVED).write_bytes(old)
    handle.append(batch(10, 1))
    disk.at, disk.error = len(disk.calls) + at + 1, number
    with pytest.raises(kind):
        handle.keep(snapshot(11))
    disk.at = 0
    assert (log.parent / DERIVED).read_bytes() == old
    assert not list(log.parent.glob("*.tmp"))
    handle.append(batch(11, 1))
    assert handle.keep(snapshot(12))
    handle.close()
    assert opened(tmp_path) == (12, 12)


def test_nothing_is_kept_of_a_log_that_is_not_ours_any_more(tmp_path: Path) -> None:
    log = made(tmp_path)
    handle = open_store(tmp_path, disk=HastyDisk()).open("s1", "write")
    handle.append(batch(9, 1))
    log.rename(log.with_name("elsewhere"))
    log.write_bytes(b"")
    assert not handle.keep(snapshot(10))
    handle.close()


def test_an_append_makes_four_calls_and_none_for_what_is_derived(tmp_path: Path) -> None:
    made(tmp_path)
    disk = FailingDisk()
    with closing(open_store(tmp_path, disk=disk).open("s1", "write")) as handle:
        seen = len(disk.calls)
        handle.append(batch(9, 4))
        assert disk.calls[seen:] == ["fstat", "lstat", "write", "fdatasync"]


class CountingDisk(HastyDisk):
    """Counts the bytes that are read."""

    read = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        found = super().pread(fd, size, offset)
        self.read += len(found)
        return found


def long_log(root: Path, compression: Compression) -> tuple[Path, int]:
    """Make a log of some megabytes, level with its derived file. Returns it and the number of events."""
    store = open_store(root, compression=compression, disk=HastyDisk())
    with closing(store.create(HEADER)) as handle:
        for first in range(0, 400, 10):
            texts = [os.urandom(4000).hex() for _ in range(10)]
            rows = zip(batch(first, 10), texts, strict=True)
            handle.append([{**one, "data": {"text": text}} for one, text in rows])
        assert handle.keep(snapshot(400))
    return log_of(root, NAMES[compression]), 400


@ENCODINGS
def test_a_log_is_not_read_again_when_its_derived_file_is_good(
    tmp_path: Path, compression: Compression
) -> None:
    log, count = long_log(tmp_path, compression)
    size = log.stat().st_size
    for lagging in (False, True):
        disk = CountingDisk()
        store = open_store(tmp_path, disk=disk)
        with closing(store.open("s1", "write")) as handle:
            assert handle.next_seq == count
            if lagging:
                handle.append(batch(count, 1))
                count += 1
        with closing(store.open("s1", "read")) as reader:
            assert reader.next_seq == count
            last = list(reader.read(count - 2))
            assert [one["seq"] for one in last] == [count - 2, count - 1]
        store.stat("s1")
        assert disk.read < size // 3, "it has read what it knew"
    assert size > 1024 * 1024, "a small log that was touched is read from its beginning"


@ENCODINGS
def test_a_small_log_is_read_again_only_when_it_was_touched(
    tmp_path: Path, compression: Compression
) -> None:
    store = open_store(tmp_path, compression=compression, disk=HastyDisk())
    with closing(store.create(HEADER)) as handle:
        handle.append([{**one, "data": {"text": os.urandom(400).hex()}} for one in batch(0, 200)])
        wait_a_tick()
        assert handle.keep(snapshot(200))
    log = log_of(tmp_path, NAMES[compression])
    size = log.stat().st_size
    for touched in (False, True):
        if touched:
            os.utime(log)
        for access in ("read", "write"):
            disk = CountingDisk()
            with closing(open_store(tmp_path, disk=disk).open("s1", access)) as handle:
                assert handle.next_seq == 200
                assert (handle.snapshot() is None) == (touched and access == "read")
            assert (disk.read > size) == touched


def listed(store: Any) -> list[StoredSession]:
    return sorted(store.list(), key=lambda one: one.session_id)


def test_a_list_looks_again_at_nothing_that_has_not_changed(tmp_path: Path) -> None:
    for name in ("s1", "s2", "s3"):
        made_as(tmp_path, name)
    wait_a_tick()
    disk = CountingDisk()
    store = open_store(tmp_path, disk=disk)
    first = listed(store)
    assert [one.summary for one in first] == [b'"9"'] * 3
    disk.read = 0
    assert listed(store) == first
    assert disk.read == 0, "nothing had changed"
    with closing(store.open("s2", "write")) as handle:
        handle.append(batch(9, 1))
    disk.read = 0
    second = listed(store)
    assert disk.read > 0
    assert [one.summary for one in second] == [b'"9"', None, b'"9"']
    assert second[1].revision != first[1].revision
    shutil.rmtree(tmp_path / "--work--" / "s3")
    assert [one.session_id for one in listed(store)] == ["s1", "s2"]
    made_as(tmp_path, "s3")
    assert [one.session_id for one in listed(store)] == ["s1", "s2", "s3"]
    newer = tmp_path / "--work--" / "s1" / "session.v1.jsonl"
    newer.write_bytes(b'{"type":"session","version":1,"id":"s1"}\n')
    problem = listed(store)[0].problem
    assert problem is not None
    assert problem.kind == "FORMAT_UNSUPPORTED"


def made_as(root: Path, name: str) -> None:
    store = open_store(root, disk=HastyDisk())
    with closing(store.create(Header(id=name, created_at=1000, cwd="/work"))) as handle:
        handle.append(batch(0, 9))
        assert handle.keep(snapshot(9))
