"""Every call of the disk fails once, and from then on: what was acknowledged stays, and nothing comes twice."""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.errors import (
    DshdError,
    NoSpaceError,
    SessionNotFoundError,
    SessionSealedError,
    WriteFailedError,
)
from dshd.storage.jsonl.store import open_store
from simulation.disk import Fault, VirtualDisk
from storage.failing import FailingDisk, ShortDisk
from storage.samples import HEADER, HOLDER, batch, log_of

if TYPE_CHECKING:
    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.store import SessionHandle

SIZES = (2, 1, 3, 1)


def run(root: Path, disk: FailingDisk, compression: Compression) -> int:
    """Create a session, append, close, open it again, append. Returns how many events were acknowledged."""
    store = open_store(root, compression=compression, disk=disk)
    acknowledged = 0
    handle: SessionHandle | None = None
    for step, size in enumerate(SIZES):
        if step == 2 and handle is not None:
            handle.close()
            handle = None
        if handle is None:
            handle = opened(store, create=acknowledged == 0)
            if handle is None:
                return acknowledged
        if handle.next_seq > acknowledged:
            assert step == 2  # a sealed append that reached the disk after all
            acknowledged = handle.next_seq
        events = batch(acknowledged, size)
        for _ in range(2):
            with suppress(DshdError):
                handle.append(events, HOLDER if step in {0, 2} else None)
                acknowledged += size
                break
        assert handle.next_seq == acknowledged
    if handle is not None:
        with suppress(DshdError):
            handle.clear_holder()
        handle.close()
    return acknowledged


def opened(store: Any, *, create: bool) -> SessionHandle | None:
    for attempt in range(2):
        with suppress(DshdError):
            handle: SessionHandle = (
                store.create(HEADER) if create and not attempt else store.open("s1", "write")
            )
            return handle
    return None


def stored(root: Path) -> list[dict[str, Any]]:
    try:
        handle = open_store(root).open("s1", "write")
    except SessionNotFoundError:
        return []
    events = list(handle.read())
    handle.append(batch(len(events), 1))
    assert list(handle.read()) == [*events, *batch(len(events), 1)]
    handle.close()
    return events


def calls_of_a_good_run(root: Path, compression: Compression) -> list[str]:
    disk = FailingDisk()
    assert run(root, disk, compression) == sum(SIZES)
    return disk.calls


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "sticky"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_wherever_the_disk_fails_nothing_acknowledged_is_missing(
    tmp_path: Path, compression: Compression, error: int, *, sticky: bool
) -> None:
    calls = calls_of_a_good_run(tmp_path / "good", compression)
    assert {"mkdir", "link", "fsync", "fdatasync", "write", "rename", "unlink"} <= set(calls)
    before = descriptors()
    for at in range(1, len(calls) + 1):
        root = tmp_path / str(at)
        disk = FailingDisk(at, error, sticky=sticky, half=bool(at % 2))
        acknowledged = run(root, disk, compression)
        events = stored(root)
        assert events == batch(0, len(events)), (at, calls[at - 1])
        assert len(events) >= acknowledged, (at, calls[at - 1])
        assert len(events) - acknowledged in {0, *SIZES}, (at, calls[at - 1])
        assert descriptors() == before, (at, calls[at - 1])


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def live(root: Path, compression: Compression = "zstd") -> tuple[FailingDisk, SessionHandle]:
    disk = FailingDisk(sticky=False)
    handle = open_store(root, compression=compression, disk=disk).create(HEADER)
    handle.append(batch(0, 2))
    return disk, handle


def fail_next(disk: FailingDisk, name: str, error: int, *, sticky: bool = False) -> None:
    """Let the next call of that name fail, given what an append calls in order."""
    order = ["fstat", "lstat", "write", "fdatasync", "truncate", "fsync"]
    disk.at = len(disk.calls) + order.index(name) + 1
    disk.error = error
    disk.sticky = sticky


@pytest.mark.parametrize("name", ["write", "fdatasync"])
def test_a_failed_append_leaves_the_file_as_it_was_and_may_be_tried_again(
    tmp_path: Path, name: str
) -> None:
    disk, handle = live(tmp_path)
    before = log_of(tmp_path).read_bytes()
    disk.half = True
    fail_next(disk, name, errno.EIO)
    with pytest.raises(WriteFailedError) as caught:
        handle.append(batch(2, 2))
    assert caught.value.facts["errno"] == errno.EIO
    assert log_of(tmp_path).read_bytes() == before
    assert list(handle.read()) == batch(0, 2)
    handle.append(batch(2, 2))
    assert list(handle.read()) == batch(0, 4)
    handle.close()


def test_a_failed_sync_is_never_followed_by_another_of_the_same_bytes(tmp_path: Path) -> None:
    disk, handle = live(tmp_path)
    fail_next(disk, "fdatasync", errno.EIO)
    made = len(disk.calls)
    with pytest.raises(WriteFailedError):
        handle.append(batch(2, 1))
    after = disk.calls[made:]
    assert after == ["fstat", "lstat", "write", "fdatasync", "truncate", "fsync"]
    handle.close()


def test_an_append_that_cannot_be_undone_seals_the_session_for_all_but_reading(
    tmp_path: Path,
) -> None:
    disk, handle = live(tmp_path)
    fail_next(disk, "fdatasync", errno.EIO, sticky=True)
    with pytest.raises(SessionSealedError):
        handle.append(batch(2, 1))
    disk.at = 0
    for _ in range(2):
        with pytest.raises(SessionSealedError):
            handle.append(batch(2, 1))
    assert list(handle.read()) == batch(0, 2)
    handle.close()


@pytest.mark.parametrize("error", [errno.EROFS, errno.EPERM])
def test_a_write_refused_before_its_first_byte_does_not_seal(tmp_path: Path, error: int) -> None:
    disk, handle = live(tmp_path)
    fail_next(disk, "write", error)
    made = len(disk.calls)
    with pytest.raises(WriteFailedError):
        handle.append(batch(2, 1))
    assert "truncate" not in disk.calls[made:]
    handle.append(batch(2, 1))
    handle.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_or_quota_is_told_as_no_space(tmp_path: Path, error: int) -> None:
    disk, handle = live(tmp_path)
    fail_next(disk, "write", error)
    with pytest.raises(NoSpaceError) as caught:
        handle.append(batch(2, 1))
    assert str(log_of(tmp_path)) in caught.value.message
    handle.close()


def test_short_writes_are_completed(tmp_path: Path) -> None:
    handle = open_store(tmp_path, disk=ShortDisk()).create(HEADER)
    handle.append(batch(0, 3))
    handle.append(batch(3, 3))
    handle.close()
    assert list(open_store(tmp_path).open("s1", "read").read()) == batch(0, 6)


def test_an_append_looks_once_writes_once_and_syncs_once(tmp_path: Path) -> None:
    disk, handle = live(tmp_path)
    made = len(disk.calls)
    handle.append(batch(2, 5))
    assert disk.calls[made:] == ["fstat", "lstat", "write", "fdatasync"]
    handle.close()


def test_a_first_batch_is_synced_name_by_name_from_the_root_down(tmp_path: Path) -> None:
    disk = FailingDisk()
    handle = open_store(tmp_path / "a" / "root", disk=disk).create(HEADER)
    made = len(disk.calls)
    handle.append(batch(0, 1), HOLDER)
    calls = [call for call in disk.calls[made:] if call not in {"open", "open_root", "fstat"}]
    missing = ["mkdir", "mkdir", "fsync", "mkdir", "fsync"]  # the root, found to lack its parent
    above = list(takewhile(lambda call: call != "mkdir", calls[len(missing) + 1 :]))
    assert above[:4] == ["lstat", "fsync", "lstat", "fsync"]  # the root's name, and its parent's
    assert above[-1] == "fsync"  # the project's
    assert calls == [
        *missing,
        "mkdir",
        *above,
        "mkdir",
        "fsync",  # the session's
        "lock",
        "lstat",
        "write",
        "fsync",
        "rename",
        "fsync",  # the holder record
        "write",
        "fsync",
        "link",
        "fsync",  # the log
        "unlink",
    ]
    handle.close()


def test_a_publication_that_could_not_be_withdrawn_seals_its_handle_and_blames_nobody_else() -> (
    None
):
    seen: list[int] = []
    for first in range(
        1, 40
    ):  # from some call on everything fails: somewhere between the name and its sync
        disk = VirtualDisk(lambda: 0)
        handle = open_store(Path("/root"), disk=disk).create(HEADER)
        disk.faults = (Fault(first, 1000, errno.EIO),)
        with suppress(WriteFailedError):
            try:
                handle.append(batch(0, 1))
            except SessionSealedError:
                seen.append(first)
                disk.faults = ()
                with pytest.raises(SessionSealedError):
                    handle.append(batch(0, 1))
                with pytest.raises(SessionSealedError):
                    handle.flush()
        disk.faults = ()
        handle.close()
    assert len(seen) == 1
