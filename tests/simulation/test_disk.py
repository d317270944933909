"""The disk in memory: what was synced stays, what was not may go, and a failed sync is the end of what it was for."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from dshd.storage.files import CREATE, READ
from simulation.disk import Fault, PowerCutError, VirtualDisk


def made(seed: int = 0) -> tuple[VirtualDisk, int, Random]:
    disk = VirtualDisk(lambda: 0)
    disk.mkdir("/disk")
    return disk, disk.open_root("/disk"), Random(seed)  # noqa: S311  # the same every time


def content(disk: VirtualDisk, path: str) -> bytes | None:
    try:
        fd = disk.open(path, READ)
    except FileNotFoundError:
        return None
    try:
        return disk.pread(fd, 1000, 0)
    finally:
        disk.close(fd)


def test_what_was_not_synced_may_go_and_what_was_stays() -> None:
    seen: set[bytes | None] = set()
    for seed in range(200):
        disk, root, chance = made(seed)
        fd = disk.open("a", CREATE, at=root)
        disk.write(fd, b"kept")
        disk.fdatasync(fd)
        disk.write(fd, b"lost")
        disk.fsync(root)
        top = disk.open_root("/")
        disk.fsync(top)
        disk.stop(chance, power=True)
        found = content(disk, "/disk/a")
        assert found is not None
        assert found[:4] == b"kept"
        seen.add(found)
    assert {b"kept", b"keptlost", b"keptlo", b"keptlo\0\0"} <= seen


def test_a_name_that_was_not_synced_may_go_and_the_end_of_a_process_loses_nothing() -> None:
    seen: set[bytes | None] = set()
    for seed in range(20):
        disk, root, chance = made(seed)
        disk.fsync(disk.open_root("/"))
        fd = disk.open("a", CREATE, at=root)
        disk.write(fd, b"x")
        disk.fsync(fd)
        disk.stop(chance, power=False)
        assert content(disk, "/disk/a") == b"x"
        disk.stop(chance, power=True)
        seen.add(content(disk, "/disk/a"))
    assert seen == {None, b"x"}


def test_a_failed_sync_loses_the_bytes_while_the_cache_goes_on_showing_them() -> None:
    disk, root, _ = made()
    fd = disk.open("a", CREATE, at=root)
    disk.write(fd, b"lost")
    disk.faults = (Fault(disk.changes + 1, disk.changes + 1, errno.EIO),)
    with pytest.raises(OSError, match="Input/output"):
        disk.fdatasync(fd)
    disk.fdatasync(fd)
    assert content(disk, "/disk/a") == b"lost"
    disk.drop_cache(fd)
    assert content(disk, "/disk/a") == bytes(4)


def test_once_the_power_is_off_every_call_fails() -> None:
    disk, root, chance = made()
    fd = disk.open("a", CREATE, at=root)
    disk.cut_at = disk.changes + 1
    with pytest.raises(PowerCutError):
        disk.write(fd, b"x")
    with pytest.raises(PowerCutError):
        disk.close(fd)
    with pytest.raises(PowerCutError):
        disk.listdir(root)
    disk.stop(chance, power=False)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        disk.fstat(fd)
