"""Every call that touches a disk, behind one protocol, so that a test can fail, count or drop any of them.

The rule that holds here: a call does one thing and reports what the kernel said. Nothing is retried, least of all a
failed sync: after one, the page cache need not hold what the disk holds, and a second sync that says 0 proves nothing.

Paths are names relative to an open directory (`at`) wherever there is one, and a link is never followed in the last
part of a name, so that nothing below the root can lead out of it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
from contextlib import suppress
from typing import Protocol

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Of every open: not inherited, no link followed, and no waiting for the other end of a FIFO."""

READ = os.O_RDONLY
APPEND = os.O_RDWR | os.O_APPEND
CREATE = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
LOCK = os.O_RDWR | os.O_APPEND | os.O_CREAT
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY

BLOCK = 4096
"""Where both ends of a copy are as far from a multiple of this, file systems that can share what lies between."""
_CLONE_RANGE = 0x4020940D  # FICLONERANGE
_PIECE = 1024 * 1024
_NO_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF})
"""What `copy_file_range` says where there is no such thing."""


class Disk(Protocol):
    """The calls that the store makes. Every one raises OSError as the kernel gave it."""

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        """Open one of the kinds above; what it creates has mode 0600."""
        ...

    def open_root(self, path: str) -> int:
        """Open a directory by a path that a person gave: here alone, a link is followed."""
        ...

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        ...

    def mkdir(self, path: str, *, at: int | None = None) -> None:
        """Make one directory of mode 0700."""
        ...

    def fstat(self, fd: int) -> os.stat_result:
        """Look at what is open."""
        ...

    def lstat(self, path: str, *, at: int | None = None) -> os.stat_result:
        """Look at a name without following it."""
        ...

    def listdir(self, fd: int) -> list[str]:
        """Give the names in an open directory."""
        ...

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read at an offset; may give less than was asked for."""
        ...

    def next_data(self, fd: int, offset: int) -> int | None:
        """Return where, at or after `offset`, bytes are stored; None where a hole reaches to the end."""
        ...

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write at the end; may take less than was given."""
        ...

    def copy(self, source: int, offset: int, fd: int, size: int) -> int:
        """Copy bytes of one file to the end of another, sharing its blocks where possible; may copy less."""
        ...

    def shares(self, source: int, directory: int) -> bool:
        """Whether a file made in an open directory can share blocks with an open one."""
        ...

    def truncate(self, fd: int, length: int) -> None:
        """Cut an open file."""
        ...

    def fdatasync(self, fd: int) -> None:
        """Make a file's bytes and length durable."""
        ...

    def fsync(self, fd: int) -> None:
        """Make a file, or the names in a directory, durable."""
        ...

    def drop_cache(self, fd: int) -> None:
        """Ask that the next read comes from the disk. Dirty pages stay: sync first."""
        ...

    def link(self, path: str, new: str, *, at: int) -> None:
        """Give a file a second name; EEXIST where that name is taken."""
        ...

    def rename(self, path: str, new: str, *, at: int) -> None:
        """Replace a name."""
        ...

    def unlink(self, path: str, *, at: int) -> None:
        """Remove a name."""
        ...

    def rmdir(self, path: str, *, at: int) -> None:
        """Remove an empty directory."""
        ...

    def lock(self, fd: int) -> None:
        """Take the exclusive flock without waiting; BlockingIOError where another has it."""
        ...


class RealDisk:
    """The disk."""

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        """Open; see `Disk`."""
        return os.open(path, flags | _FLAGS, 0o600, dir_fd=at)

    def open_root(self, path: str) -> int:
        """Open a directory, following links; see `Disk`."""
        return os.open(path, DIRECTORY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Close; see `Disk`."""
        os.close(fd)

    def mkdir(self, path: str, *, at: int | None = None) -> None:
        """Make a directory; see `Disk`."""
        os.mkdir(path, 0o700, dir_fd=at)

    def fstat(self, fd: int) -> os.stat_result:
        """Look at what is open; see `Disk`."""
        return os.fstat(fd)

    def lstat(self, path: str, *, at: int | None = None) -> os.stat_result:
        """Look at a name; see `Disk`."""
        return os.stat(path, dir_fd=at, follow_symlinks=False)

    def listdir(self, fd: int) -> list[str]:
        """List; see `Disk`."""
        return os.listdir(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read; see `Disk`."""
        return os.pread(fd, size, offset)

    def next_data(self, fd: int, offset: int) -> int | None:
        """Skip a hole; see `Disk`. The descriptor's position moves, on which nothing here depends."""
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            return None if error.errno == errno.ENXIO else offset

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write; see `Disk`."""
        return os.write(fd, data)

    def copy(self, source: int, offset: int, fd: int, size: int) -> int:
        """Copy in the kernel, or through this process where that cannot be; see `Disk`."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        # the kernel refuses to copy to a file that appends
        fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_APPEND)
        try:
            end = os.lseek(fd, 0, os.SEEK_END)
            before = -offset % BLOCK
            if before == -end % BLOCK and before:
                size = min(size, before)  # from there on blocks can be shared
            elif before == 0 and size > BLOCK:
                size -= size % BLOCK
            return os.copy_file_range(source, fd, size, offset, end)
        except OSError as error:
            if error.errno not in _NO_COPY:
                raise
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        return os.write(fd, os.pread(source, min(size, _PIECE), offset))

    def shares(self, source: int, directory: int) -> bool:
        """Try with the first block, in a file without a name; see `Disk`."""
        try:
            fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
        except OSError:
            return False
        try:
            fcntl.ioctl(fd, _CLONE_RANGE, struct.pack("=qQQQ", source, 0, BLOCK, 0))
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def truncate(self, fd: int, length: int) -> None:
        """Cut; see `Disk`."""
        os.ftruncate(fd, length)

    def fdatasync(self, fd: int) -> None:
        """Sync bytes and length; see `Disk`."""
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """Sync; see `Disk`."""
        os.fsync(fd)

    def drop_cache(self, fd: int) -> None:
        """Drop clean pages; see `Disk`."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def link(self, path: str, new: str, *, at: int) -> None:
        """Link; see `Disk`."""
        os.link(path, new, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)

    def rename(self, path: str, new: str, *, at: int) -> None:
        """Rename; see `Disk`."""
        os.rename(path, new, src_dir_fd=at, dst_dir_fd=at)

    def unlink(self, path: str, *, at: int) -> None:
        """Unlink; see `Disk`."""
        os.unlink(path, dir_fd=at)

    def rmdir(self, path: str, *, at: int) -> None:
        """Remove a directory; see `Disk`."""
        os.rmdir(path, dir_fd=at)

    def lock(self, fd: int) -> None:
        """Lock; see `Disk`."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_all(disk: Disk, fd: int, data: bytes) -> None:
    """Write every byte; a short write is completed by another."""
    view = memoryview(data)
    while view:
        view = view[disk.write(fd, view) :]


def replace_file(disk: Disk, directory: int, name: str, data: bytes) -> None:
    """Replace a small file in an open directory, durable on return. Raises OSError; then the old one or the new stands.

    What a crash leaves is named `<name>.<twelve hex digits>.tmp`.
    """
    leftover = f"{name}.{secrets.token_hex(6)}.tmp"
    fd = disk.open(leftover, CREATE, at=directory)
    try:
        try:
            write_all(disk, fd, data)
            disk.fsync(fd)
        finally:
            disk.close(fd)
        disk.rename(leftover, name, at=directory)
    except BaseException:
        with suppress(OSError):
            disk.unlink(leftover, at=directory)
        raise
    disk.fsync(directory)
