"""From what the kernel said to the errors of the protocol: one place, so that a full disk reads the same everywhere."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from dsh_protocol.errors import (
    LogChangedError,
    LogCorruptError,
    NoSpaceError,
    OverloadedError,
    SessionSealedError,
    UnsafePathError,
    WriteFailedError,
)

if TYPE_CHECKING:
    from dsh_protocol.errors import DshdError

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_ODD = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR})
_UNSAFE = _ODD | {errno.EACCES, errno.EPERM}


def _name(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def write_error(error: OSError, path: str, *, of_batch: bool = True) -> DshdError:
    """Return the error for a write, sync or creation that failed below `path`; nothing was kept of it.

    Args:
        error: What the kernel said.
        path: Where.
        of_batch: Events wait for it, and the next flush tries again; else only the same call does.
    """
    number = error.errno or 0
    if number in _ODD | _EXHAUSTED:
        return read_error(error, path)
    why = f"{_name(number)} ({os.strerror(number)})"
    kept = "nothing of the batch was kept" if of_batch else "it is not done"
    again = "flush again" if of_batch else "make the same call again"
    if number in NO_SPACE:
        return NoSpaceError(
            f"cannot write to {path!r}: {why}; {kept}: free some space and {again}", errno=number
        )
    return WriteFailedError(
        f"cannot write to {path!r}: {why}; {kept}: mend the disk or its permissions and {again}",
        errno=number,
    )


def read_error(error: OSError, path: str) -> DshdError:
    """Return the error for a path that could not be opened or read."""
    number = error.errno or 0
    why = f"{_name(number)} ({os.strerror(number)})"
    if number in _EXHAUSTED:
        return OverloadedError(
            f"cannot open {path!r}: {why}; the daemon's process is at its limit: close what is not needed, or raise "
            "the limit, and try again",
            errno=number,
        )
    if number in _UNSAFE:
        return UnsafePathError(
            f"{path!r} is not a plain file or directory of this user: {why}; put it right by hand",
            path=path,
            errno=number,
        )
    return WriteFailedError(
        f"cannot open or read {path!r}: {why}; mend the disk", path=path, errno=number
    )


def unsafe(path: str, what: str) -> UnsafePathError:
    """Return the error for a thing that stands where a session's files belong."""
    return UnsafePathError(
        f"{path!r} is {what}; nothing was followed or changed: move it away", path=path
    )


def corrupt(path: str, offset: int, reason: str, *, expected: int | None = None) -> LogCorruptError:
    """Return the error for a defect in what was acknowledged."""
    seq = "" if expected is None else f", where seq {expected} is expected"
    return LogCorruptError(
        f"log {path!r} is corrupt at byte {offset}{seq}: {reason}; its bytes are untouched: "
        "restore it from a copy, or make a new session of what can be read: dshd salvage",
        path=path,
        offset=offset,
        expected=expected,
        reason=reason,
    )


def changed(path: str, what: str) -> LogChangedError:
    """Return the error for a log that another program changed under us."""
    return LogChangedError(
        f"log {path!r} was changed by another program: {what}; nothing was written: "
        "stop that program, put the log right if need be, then restart the daemon and open the session again",
        path=path,
    )


def sealed(path: str, error: OSError) -> SessionSealedError:
    """Return the error for a log whose failed append could not be undone."""
    number = error.errno or 0
    return SessionSealedError(
        f"log {path!r} is sealed: an append failed and could not be undone ({_name(number)}); it can be read, "
        "not written, until it is closed and opened anew",
        path=path,
        errno=number,
    )
