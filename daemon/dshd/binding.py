"""The socket that the daemon binds itself: its path, the lock beside it, and what happens when somebody removes it.

The one rule: the lock decides who may remove or replace a socket, never a socket's silence; and no file that is not a
dead socket of ours is ever removed to make room.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from dshd.directories import open_socket_dir
from dshd.settings import CannotStartError

if TYPE_CHECKING:
    from pathlib import Path

MAX_SOCKET_PATH_BYTES = 107
_BACKLOG = 512


class Binding:
    """A bound, listening socket, and the lock that makes its path ours. A context manager.

    Attributes:
        path: Where clients connect.
        socket: The listening socket; replaced by `renew`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket: socket.socket
        self._folder = self._lock = -1
        self._ours: os.stat_result

    def __enter__(self) -> Self:
        """Bind.

        Raises:
            CannotStartError: The path cannot be used, or another daemon listens there.
        """
        _check_length(self.path)
        try:
            self._bind()
        except BaseException:
            self._close_descriptors()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close, and unlink the socket if it is still the one at its path."""
        self.socket.close()
        _unlink_if_same(self.path.name, self._folder, self._ours)
        self._close_descriptors()

    def is_lost(self) -> bool:
        """Whether nobody can reach the socket by its path any more."""
        try:
            found = self.path.lstat()
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != (self._ours.st_dev, self._ours.st_ino)

    def renew(self) -> socket.socket:
        """Bind the path again after the socket, or its folder, was removed. Return the old socket, still open.

        Raises:
            CannotStartError: Something else is at the path, or another daemon has its lock; nothing was changed.
        """
        before = self.socket
        self._bind()
        return before

    def _bind(self) -> None:
        with ExitStack() as undo:
            folder = open_socket_dir(self.path.parent)
            undo.callback(os.close, folder)
            if not os.path.lexists(f"{self.path}.lock"):
                _dead_socket(self.path, folder)  # what refuses the path leaves no lock beside it
            kept = self._lock if _is_at(self._lock, folder, self.path.name + ".lock") else -1
            lock = _take_lock(self.path, folder) if kept < 0 else kept
            if kept < 0:
                undo.callback(os.close, lock)
            _remove_dead_socket(self.path, folder)
            bound = _bound_socket(self.path, folder)
            undo.callback(bound.close)
            ours = os.stat(self.path.name, dir_fd=folder, follow_symlinks=False)
            undo.pop_all()
        self._close_descriptors(except_lock=kept)
        self.socket, self._folder, self._lock, self._ours = bound, folder, lock, ours

    def _close_descriptors(self, *, except_lock: int = -1) -> None:
        for fd in {self._folder, self._lock} - {-1, except_lock}:
            os.close(fd)
        self._folder = -1
        self._lock = except_lock


def _bound_socket(path: Path, folder: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The mode of the descriptor is the mode that bind gives the file: there is no moment with a wider one.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(str(path))
        os.chmod(path.name, 0o600, dir_fd=folder)  # the umask may have taken bits away
        sock.listen(_BACKLOG)
        sock.setblocking(False)  # noqa: FBT003  # the standard library's signature
    except OSError as exc:
        sock.close()
        raise CannotStartError(f"socket {str(path)!r} cannot be bound: {exc.strerror}") from exc
    return sock


def _is_at(fd: int, folder: int, name: str) -> bool:
    """Whether the open file is the one of that name."""
    if fd < 0:
        return False
    try:
        found, held = os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(fd)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


def _check_length(path: Path) -> None:
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise CannotStartError(
            f"socket path {str(path)!r} has {length} bytes and the kernel takes {MAX_SOCKET_PATH_BYTES}; "
            "choose a shorter one with --socket or $DSHD_SOCKET"
        )


def _take_lock(path: Path, folder: int) -> int:
    """Keep other daemons from the path; return the descriptor that holds the lock."""
    name = path.name + ".lock"
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(name, flags, 0o600, dir_fd=folder)
    except OSError as exc:
        raise CannotStartError(
            f"lock {str(path) + '.lock'!r} cannot be opened: {exc.strerror}"
        ) from exc
    try:
        _lock_file(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _lock_file(fd: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise CannotStartError(f"lock {str(path) + '.lock'!r} is not a regular file; remove it")
    os.fchmod(fd, 0o600)  # the umask may have taken bits away
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise CannotStartError(
            f"a daemon (pid {holder}) already listens at {str(path)!r}; use it, or choose another --socket"
        ) from exc
    # The pid is for the message above only; a full disk must not keep the daemon from starting.
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)


def _remove_dead_socket(path: Path, folder: int) -> None:
    """Unlink what a killed daemon left at the path; called with the lock held, and with anything else refused."""
    found = _dead_socket(path, folder)
    if found is not None:
        _unlink_if_same(path.name, folder, found)


def _dead_socket(path: Path, folder: int) -> os.stat_result | None:
    """Return what a killed daemon left at the path, None where there is nothing.

    Raises:
        CannotStartError: Something else is there.
    """
    try:
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        raise CannotStartError(
            f"{str(path)!r} exists and is not a socket; move it away, or choose another --socket"
        )
    if found.st_uid != os.geteuid():
        raise CannotStartError(
            f"socket {str(path)!r} belongs to uid {found.st_uid}; choose another --socket"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003  # the standard library's signature
        outcome = probe.connect_ex(str(path))
    if outcome != errno.ECONNREFUSED:
        answer = os.strerror(outcome) if outcome else "it took a connection"
        raise CannotStartError(
            f"another program listens at {str(path)!r} ({answer}); "
            "use it, or choose another --socket"
        )
    return found


def _unlink_if_same(name: str, folder: int, expected: os.stat_result) -> None:
    with suppress(OSError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if (found.st_dev, found.st_ino) == (expected.st_dev, expected.st_ino):
            os.unlink(name, dir_fd=folder)
