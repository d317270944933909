"""One open log: appending to it, undoing what failed, publishing a new one.

The rule that holds here: only bytes that were synced are left in the file. An append that fails is cut away again and
the cut is synced; where even that fails the log is sealed. A failed sync is never tried again, and nothing is ever
written over: bytes go to the end or not at all.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from dshd.storage.files import CREATE, write_all
from dshd.storage.jsonl.faults import changed, sealed, write_error
from dshd.storage.store import HandleClosedError

if TYPE_CHECKING:
    from collections.abc import Generator

    from dsh_protocol.errors import DshdError
    from dshd.storage.files import Disk

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class OpenFile:
    """A descriptor that stays open until it was closed and the last borrower is done.

    Without that, a read that another thread runs could go on with a number that now means another file.
    """

    def __init__(self, disk: Disk, fd: int) -> None:
        self.disk = disk
        self.fd = fd
        self._borrowers = 0
        self._closed = False
        self._lock = Lock()

    @contextmanager
    def borrowed(self) -> Generator[int]:
        """Give the descriptor, and keep it open meanwhile.

        Raises:
            HandleClosedError: The file was closed.
        """
        with self._lock:
            if self._closed:
                raise HandleClosedError("read of a closed session handle")
            self._borrowers += 1
        try:
            yield self.fd
        finally:
            with self._lock:
                self._borrowers -= 1
                last = self._closed and self._borrowers == 0
            if last:
                self.disk.close(self.fd)

    def close(self) -> None:
        """Close now, or with the last borrower. Idempotent."""
        with self._lock:
            now = not self._closed and self._borrowers == 0
            self._closed = True
        if now:
            self.disk.close(self.fd)


class LogFile:
    """A log open for appending.

    Attributes:
        size: The acknowledged length: everything below it is durable, nothing above it counts.
        crc: CRC-32 of the bytes from behind the header up to there.
    """

    def __init__(self, file: OpenFile, path: str, size: int, crc: int) -> None:
        self.file = file
        self.path = path
        self.size = size
        self.crc = crc
        self._disk = file.disk
        self._fd = file.fd
        self._seal: OSError | str | None = None

    def require_writable(self) -> None:
        """Raise the seal's error, where the log is sealed against appends."""
        if isinstance(self._seal, OSError):
            raise sealed(self.path, self._seal)
        if self._seal is not None:
            raise changed(self.path, self._seal)

    def append(self, *pieces: bytes) -> None:
        """Make `pieces` durable at the end, each before the next. One look at the file; one write, one sync for each.

        Raises:
            NoSpaceError, WriteFailedError: It failed and the file is as it was.
            LogChangedError: The file is not as we left it. Nothing was written, and nothing will be.
            SessionSealedError: It failed and could not be undone.
        """
        self.require_writable()
        self._require_unchanged()
        synced = False
        try:
            for piece in pieces:
                write_all(self._disk, self._fd, piece)
                synced = True
                self._disk.fdatasync(self._fd)
        except OSError as error:
            raise self._undone(error, sync_failed=synced) from error
        for piece in pieces:
            self.size += len(piece)
            self.crc = crc32(piece, self.crc)

    def is_ours(self) -> bool:
        """Whether the path still names the open file, and nothing keeps it from being continued."""
        try:
            ours, named = self._disk.fstat(self._fd), self._disk.lstat(self.path)
        except OSError:
            return False
        return self._seal is None and os.path.samestat(ours, named) and ours.st_size >= self.size

    def _require_unchanged(self) -> None:
        """Raise, and seal, where the file is not the one that its path names or not of the length we left it at."""
        try:
            ours, named = self._disk.fstat(self._fd), self._disk.lstat(self.path)
        except FileNotFoundError:
            self._seal = "it is gone"
        except OSError as error:
            raise write_error(error, self.path) from error
        else:
            if not os.path.samestat(ours, named):
                self._seal = "another file stands in its place"
            elif ours.st_uid != os.geteuid():
                self._seal = f"it belongs to user {ours.st_uid} now"
            elif ours.st_size != self.size:
                self._seal = f"it has {ours.st_size} bytes, and {self.size} were written"
        self.require_writable()

    def _undone(self, error: OSError, *, sync_failed: bool) -> DshdError:
        """Cut a failed append away and return its error; seal the log where that fails."""
        try:
            if sync_failed or self._disk.fstat(self._fd).st_size != self.size:
                self._disk.truncate(self._fd, self.size)
                self._disk.fsync(self._fd)
        except OSError as failure:
            self._seal = failure
            return sealed(self.path, failure)
        return write_error(error, self.path)


class Taken(NamedTuple):
    """Bytes of another log that a new one begins with, behind its header, and their CRC-32."""

    fd: int
    offset: int
    size: int
    crc: int


class Start(NamedTuple):
    """What a log is created with: its header, what is taken over from another, its own first frames or lines."""

    header: bytes
    rest: bytes
    taken: Taken | None = None


def publish(disk: Disk, directory: int, path: str, start: Start) -> LogFile:
    """Create a log with its first bytes, all or nothing, and return it open.

    Under its name it is never seen unfinished: it is written and synced as a temporary file first, then linked.

    Raises:
        OSError: As the kernel gave it; the log does not exist.
        LogChangedError: Another program made one meanwhile.
        SessionSealedError: It failed, and what stands under its name could not be removed.
    """
    name = os.path.basename(path)  # noqa: PTH119  # a Path would be made to be thrown away
    leftover = f"{name}.{secrets.token_hex(6)}.tmp"
    fd = disk.open(leftover, CREATE, at=directory)
    try:
        _write_start(disk, fd, start)
        disk.fsync(fd)
        _name(disk, directory, leftover, name)
        try:
            disk.fsync(directory)
        except OSError as error:
            _withdraw(disk, directory, name, path)
            raise error from None
    except BaseException as error:
        with suppress(OSError):
            disk.unlink(leftover, at=directory)
        with suppress(OSError):
            disk.close(fd)
        if isinstance(error, FileExistsError):
            raise changed(path, "it exists already") from error
        raise
    with suppress(OSError):
        disk.unlink(leftover, at=directory)
    copied = start.taken or Taken(fd, 0, 0, 0)
    size = len(start.header) + copied.size + len(start.rest)
    return LogFile(OpenFile(disk, fd), path, size, crc32(start.rest, copied.crc))


def _write_start(disk: Disk, fd: int, start: Start) -> None:
    if start.taken is None:
        write_all(disk, fd, start.header + start.rest)
        return
    write_all(disk, fd, start.header)
    _take_over(disk, start.taken, fd)
    write_all(disk, fd, start.rest)


def _take_over(disk: Disk, taken: Taken, fd: int) -> None:
    """Copy bytes to the end of a new log, in the kernel where it can."""
    at, end = taken.offset, taken.offset + taken.size
    while at < end:
        count = disk.copy(taken.fd, at, fd, end - at)
        if not count:
            raise OSError(errno.EIO, "the log that is copied ends too soon")
        at += count


def _name(disk: Disk, directory: int, leftover: str, name: str) -> None:
    """Give the finished file its name, without ever replacing one.

    Where the file system has no links the name is looked for, then taken by renaming: nobody who keeps to
    `session.lock` can come between, because it is held.
    """
    try:
        disk.link(leftover, name, at=directory)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            disk.lstat(name, at=directory)
        except FileNotFoundError:
            disk.rename(leftover, name, at=directory)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error


def _withdraw(disk: Disk, directory: int, name: str, path: str) -> None:
    try:
        disk.unlink(name, at=directory)
        disk.fsync(directory)
    except OSError as failure:
        raise sealed(path, failure) from failure
