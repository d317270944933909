"""What is made beside a log is whole and durable before it has its name, and leaves nothing open and nothing behind."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dshd.storage.files import RealDisk
from dshd.storage.jsonl.derived import DERIVED, Derived, Head, read_derived, write_derived
from dshd.storage.jsonl.index import Position
from dshd.storage.jsonl.repair import cut, set_aside, settle, sweep
from dshd.storage.jsonl.scan import Torn
from dshd.storage.jsonl.source import Source
from dshd.storage.jsonl.store import open_store
from storage.samples import batch, made

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Noting(RealDisk):
    """Notes what is made durable, and what is open.

    Attributes:
        steps: Each with what it was given: the file's name, or its length when it is synced.
        files: Open descriptors.
        failing: The step that fails.
    """

    def __init__(self, failing: str = "") -> None:
        self.steps: list[str] = []
        self.files: set[int] = set()
        self.failing = failing

    def _note(self, step: str, about: object) -> None:
        self.steps.append(f"{step} {about}")
        if step == self.failing:
            raise OSError(5, "Input/output error")

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        fd = super().open(path, flags, at=at)
        self.files.add(fd)
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self.files.discard(fd)

    def fsync(self, fd: int) -> None:
        found = os.fstat(fd)
        self._note("fsync", "names" if stat.S_ISDIR(found.st_mode) else found.st_size)

    def fdatasync(self, fd: int) -> None:
        self._note("fdatasync", os.fstat(fd).st_size)

    def truncate(self, fd: int, length: int) -> None:
        super().truncate(fd, length)
        self._note("truncate", length)

    def drop_cache(self, fd: int) -> None:
        self._note("drop_cache", os.fstat(fd).st_size)

    def rename(self, path: str, new: str, *, at: int) -> None:
        self._note("rename", new)
        super().rename(path, new, at=at)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "log").write_bytes(b"good" + b"torn" * 1000)
    fd = os.open(tmp_path / "log", os.O_RDWR)
    yield fd
    os.close(fd)


def test_a_tail_is_copied_and_synced_then_named_then_its_name_is_synced(
    tmp_path: Path, folder: int, log: int
) -> None:
    disk = Noting()
    source = Source(disk, log, "log", zstd=False)
    name = set_aside(folder, source, Torn(4, 4000, "torn"))
    assert disk.steps == ["fsync 4000", f"rename {name}", "fsync names"]
    assert (tmp_path / name).read_bytes() == b"torn" * 1000
    assert name == set_aside(folder, source, Torn(4, 4000, "torn"))
    assert sorted(os.listdir(folder)) == ["log", name]
    assert disk.files == set()
    assert set_aside(folder, source, Torn(4, 3999, "torn")) != name


class Holes(Noting):
    """Says that the first 4000 bytes are not stored."""

    def next_data(self, fd: int, offset: int) -> int | None:
        return max(offset, 4000)


def test_the_name_of_a_copy_tells_its_bytes_and_the_hole_before_them(
    tmp_path: Path, folder: int
) -> None:
    (tmp_path / "log").write_bytes(bytes(4000) + b"torn" * 250 + bytes(1000))
    for offset in (0, 10):
        with (tmp_path / "log").open("rb") as file:
            source = Source(Holes(), file.fileno(), "log", zstd=False)
            name = set_aside(folder, source, Torn(offset, 6000 - offset, "zeros"))
        told = b"%d zeros" % (4000 - offset) + b"torn" * 250 + bytes(1000)
        assert name == f"torn-{offset}-{hashlib.sha256(told).hexdigest()[:12]}.bin"
        assert (tmp_path / name).read_bytes() == (tmp_path / "log").read_bytes()[offset:]


@pytest.mark.parametrize("failing", ["fsync", "rename"])
def test_a_tail_that_could_not_be_set_aside_is_told_and_leaves_nothing(
    folder: int, log: int, failing: str
) -> None:
    disk = Noting(failing)
    with pytest.raises(OSError, match="Input/output error"):
        set_aside(folder, Source(disk, log, "log", zstd=False), Torn(4, 4000, "torn"))
    assert os.listdir(folder) == ["log"]
    assert disk.files == set()


def test_what_is_cut_off_stays_cut_off(tmp_path: Path, log: int) -> None:
    disk = Noting()
    cut(Source(disk, log, "log", zstd=False), Torn(4, 4000, "torn"))
    assert disk.steps == ["truncate 4", "fsync 4"]
    assert (tmp_path / "log").read_bytes() == b"good"


@pytest.mark.parametrize("failing", ["", "fdatasync", "drop_cache"])
def test_what_is_read_next_is_asked_of_the_disk_whatever_an_earlier_sync_tells(
    log: int, failing: str
) -> None:
    disk = Noting(failing)
    settle(disk, log)
    assert disk.steps == ["fdatasync 4004", "drop_cache 4004"]


def test_a_leftover_is_swept_when_it_is_older_than_that_and_no_sooner(
    tmp_path: Path, folder: int
) -> None:
    for name in ("a.tmp", "b.tmp"):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (1000, 1000))
    sweep(Noting(), folder, older_than=1000, names=["gone", "a.tmp"])
    assert sorted(os.listdir(folder)) == ["a.tmp", "b.tmp"]
    sweep(Noting(), folder, older_than=1001, names=["gone", "a.tmp"])
    assert os.listdir(folder) == ["b.tmp"]


DERIVATION = Derived(
    Head("00", 1, 2, 3, 4, "11", (1, 2, 3, 4, 5)), b"{}", (Position(1, 0), Position(2, 1)), b"state"
)


def test_a_derived_file_is_written_and_synced_then_named_then_its_name_is_synced(
    tmp_path: Path, folder: int
) -> None:
    disk = Noting()
    write_derived(disk, folder, DERIVATION)
    size = (tmp_path / DERIVED).stat().st_size
    assert disk.steps == [f"fsync {size}", f"rename {DERIVED}", "fsync names"]
    assert disk.files == set()
    found = read_derived(disk, folder, whole=True)
    assert found is not None
    assert found == DERIVATION._replace(written_ns=(tmp_path / DERIVED).stat().st_mtime_ns)
    front = read_derived(disk, folder, whole=False)
    assert front == found._replace(positions=(), state=b"")
    assert disk.files == set()


@pytest.mark.parametrize("failing", ["fsync", "rename"])
def test_a_derived_file_that_could_not_be_written_leaves_the_old_one(
    tmp_path: Path, folder: int, failing: str
) -> None:
    write_derived(RealDisk(), folder, DERIVATION)
    old = (tmp_path / DERIVED).read_bytes()
    disk = Noting(failing)
    with pytest.raises(OSError, match="Input/output error"):
        write_derived(disk, folder, DERIVATION._replace(summary=b"[]"))
    assert disk.files == set()
    assert os.listdir(folder) == [DERIVED]
    assert (tmp_path / DERIVED).read_bytes() == old


def test_opening_a_torn_log_sets_its_tail_aside_before_it_is_cut(tmp_path: Path) -> None:
    log = made(tmp_path)
    whole = log.read_bytes()
    log.write_bytes(whole + b"torn")
    disk = Noting()
    with closing(open_store(tmp_path, disk=disk).open("s1", "write")) as handle:
        assert list(handle.read()) == batch(0, 3)
    named = next(at for at, step in enumerate(disk.steps) if step.startswith("rename torn-"))
    cut_at = disk.steps.index(f"truncate {len(whole)}")
    assert disk.steps[named - 1] == "fsync 4"
    assert disk.steps[named + 1] == "fsync names"
    assert named < cut_at
    assert disk.steps[cut_at + 1] == f"fsync {len(whole)}"
