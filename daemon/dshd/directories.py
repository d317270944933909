"""The folders the daemon keeps things in: made for this user alone, or refused.

The one rule: a folder that somebody else could write to is never used and never changed.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from dshd.settings import CannotStartError

if TYPE_CHECKING:
    from pathlib import Path

_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def make_private_dir(path: Path, what: str) -> None:
    """Make a folder and its missing parents, durably and with mode 0700 whatever the umask; check what exists.

    An existing one must be a folder of this user that nobody else may write to. It may be a link to one. Parents of
    this user are synced also where they existed: an earlier start may have been cut off between making and syncing.

    Raises:
        CannotStartError: It cannot be made, or is not that; `what` names it in the text.
    """
    try:
        for folder in reversed([path, *path.parents]):
            if not os.path.lexists(folder):
                _make_dir(folder)
                _sync_dir(folder.parent)
            elif folder.parent.stat().st_uid == os.geteuid():
                with suppress(OSError):  # made by somebody else, for all we know
                    _sync_dir(folder.parent)
        found = path.stat()
    except OSError as exc:
        raise CannotStartError(f"{what} {str(path)!r} cannot be used: {exc.strerror}") from exc
    _check(path, what, found, forbidden=_OTHERS_WRITE)


def open_socket_dir(path: Path) -> int:
    """Return a descriptor of the folder in which the socket is bound; make that folder, not its parents.

    The folder must be no link, ours, and closed to everybody else (0700).

    Raises:
        CannotStartError: It is not that, or cannot be made.
    """
    what = "the socket's folder"
    try:
        if not os.path.lexists(path):
            _make_dir(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        reason = "it is a link" if path.is_symlink() else exc.strerror
        raise CannotStartError(
            f"{what} {str(path)!r} cannot be used: {reason}; choose another path with --socket or $DSHD_SOCKET"
        ) from exc
    try:
        _check(path, what, os.fstat(fd), forbidden=_OTHERS)
    except CannotStartError:
        os.close(fd)
        raise
    return fd


def _make_dir(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return  # somebody was faster; the check that follows judges what is there
    if stat.S_IMODE(folder.stat().st_mode) != 0o700:  # noqa: PLR2004  # the umask took bits away
        folder.chmod(0o700)


def _sync_dir(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _check(path: Path, what: str, found: os.stat_result, *, forbidden: int) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise CannotStartError(f"{what} {str(path)!r} is not a folder")
    if found.st_uid != os.geteuid():
        raise CannotStartError(
            f"{what} {str(path)!r} belongs to uid {found.st_uid}, and dshd runs as uid {os.geteuid()}; "
            "sharing between users is not supported"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & forbidden:
        raise CannotStartError(
            f"{what} {str(path)!r} has mode {mode:04o}, so that other users could get in; run: chmod 700 {path}"
        )
