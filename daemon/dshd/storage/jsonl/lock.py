"""Who may write: a flock on `session.lock` beside each log, and one on `dshd.lock` in the root.

The rule that holds here: the lock is the flock, never the file. A file may be left over from any crash and proves
nothing; it is never removed on release, so that everybody locks the same one.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from dsh_protocol.errors import RootLockedError, SessionBusyError
from dshd.storage.files import LOCK, READ, RealDisk, write_all
from dshd.storage.jsonl.faults import read_error
from dshd.storage.jsonl.root import Root

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.storage.files import Disk

SESSION_LOCK = "session.lock"
ROOT_LOCK = "dshd.lock"
_TRIES = 3
_MAX_ROOT_RECORD = 4096


def _flocked(disk: Disk, name: str, at: int, flags: int = LOCK) -> int | None:
    """Return a descriptor that has the lock of that name, None where somebody else has it.

    What was locked must still be what the name means: another may have replaced the file between open and flock.
    """
    for _ in range(_TRIES):
        fd = disk.open(name, flags, at=at)
        try:
            disk.lock(fd)
            if _same(disk, fd, name, at):
                return fd
        except BlockingIOError:
            disk.close(fd)
            return None
        except BaseException:
            disk.close(fd)
            raise
        disk.close(fd)
    return None


def _same(disk: Disk, fd: int, name: str, at: int) -> bool:
    try:
        return os.path.samestat(disk.fstat(fd), disk.lstat(name, at=at))
    except FileNotFoundError:
        return False


def lock_session(disk: Disk, directory: int, session_id: str, holder: Any = None) -> int:
    """Take a session's lock in its open directory and return the descriptor that has it; closing it releases.

    Raises:
        SessionBusyError: Another handle or program has it; `holder` becomes its fact.
    """
    fd = _flocked(disk, SESSION_LOCK, directory)
    if fd is None:
        raise SessionBusyError(
            f"session {session_id!r} is open for writing in another program; "
            "open it for reading, or close it there",
            holder=holder,
        )
    return fd


class RootLock:
    """The right to be the one daemon of a root, until `close` or the process's end."""

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self._fd: int | None = fd

    def close(self) -> None:
        """Release the root. Idempotent."""
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None


def lock_root(
    root: Path, *, socket: str, since: int, pid: int | None = None, disk: Disk | None = None
) -> RootLock:
    """Make the root where it is missing and take its lock; the record in it says who has it.

    On a full or read-only disk there may be no record, and the lock holds all the same.

    Args:
        root: The directory of sessions.
        socket: Path of the socket on which the holder can be reached.
        since: Epoch milliseconds.
        pid: Of the holder; this process by default.
        disk: A stand-in, for tests.

    Raises:
        RootLockedError: Another daemon has it; fact `holder` is its record, null where it cannot be read.
        OverloadedError, WriteFailedError, UnsafePathError: It could not be made or locked.
    """
    disk = disk or RealDisk()
    path = os.fspath(root)
    try:
        directory = Root(path, disk).make()
        try:
            fd, writable = _flocked_root(disk, directory)
            holder = _record(disk, directory) if fd is None and writable else None
        finally:
            disk.close(directory)
    except OSError as error:
        raise read_error(error, f"{path}/{ROOT_LOCK}") from error
    if fd is None:
        raise _root_locked(path, holder)
    record = {"pid": pid or os.getpid(), "since": since, "socket": socket}
    with suppress(OSError):  # what is stored can be read all the same, and nobody else gets in
        disk.truncate(fd, 0)
        write_all(disk, fd, msgspec.json.encode(record) + b"\n")
    return RootLock(disk, fd)


def _flocked_root(disk: Disk, directory: int) -> tuple[int | None, bool]:
    """As `_flocked`, and whether a record can be written: on a read-only disk an old one stands there for ever."""
    try:
        return _flocked(disk, ROOT_LOCK, directory), True
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        try:
            return _flocked(disk, ROOT_LOCK, directory, READ), False
        except FileNotFoundError:
            raise error from None


def _root_locked(path: str, holder: dict[str, Any] | None) -> RootLockedError:
    who = "another daemon"
    if holder is not None:
        who = f"the daemon with pid {holder.get('pid')} on socket {holder.get('socket')!r}"
    return RootLockedError(
        f"root {path!r} is held by {who}; stop that one, or give this one another --root",
        holder=holder,
    )


def _record(disk: Disk, directory: int) -> dict[str, Any] | None:
    try:
        fd = disk.open(ROOT_LOCK, os.O_RDONLY, at=directory)
    except OSError:
        return None
    try:
        return msgspec.json.decode(disk.pread(fd, _MAX_ROOT_RECORD, 0), type=dict[str, Any])
    except (OSError, RecursionError, msgspec.MsgspecError):
        return None
    finally:
        disk.close(fd)
