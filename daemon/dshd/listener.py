"""The listening Unix socket: bound by the daemon itself or inherited, and who is let in.

The one rule: only processes of the daemon's own user get a byte read, and no file that is not a dead socket of
ours is ever removed to make room.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import structlog
import trio

from dshd.directories import make_private_dir, open_socket_dir
from dshd.sessions.processes import Peer, process_start_time
from dshd.settings import CannotStartError
from dshd.systemd import inherited_sockets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from pathlib import Path

    from dshd.metrics import Metrics
    from dshd.settings import Settings

MAX_SOCKET_PATH_BYTES = 107
_BACKLOG = 512
_CREDENTIALS = struct.Struct("3i")
_ACCEPT_PAUSE_S = 0.1
_ACCEPT_REPORT_S = 60.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_POINTER = "socket"


def peer(stream: trio.SocketStream) -> Peer:
    """Return the credentials of the process that connected."""
    raw = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return Peer(pid, uid, gid, process_start_time(pid))


def is_admitted(who: Peer) -> bool:
    """Whether a peer may talk to this daemon: the same user only, so not root either unless the daemon is root's."""
    return who.uid == os.geteuid()


@contextmanager
def open_listeners(settings: Settings) -> Generator[list[trio.SocketListener], None, None]:
    """Take over the inherited sockets, or bind one; write the pointer by which clients find it.

    Must be entered under trio. On leaving, the sockets are closed, and one that was bound here is unlinked if it
    is still the one at its path; an inherited one stays with the service manager and goes on taking connections.

    Raises:
        CannotStartError: A path, folder or descriptor cannot be used, or another daemon listens there.
    """
    with ExitStack() as stack:
        sockets = inherited_sockets()
        if not sockets:
            sockets = [stack.enter_context(_open_bound_socket(settings.socket))]
        for sock in sockets:
            stack.callback(sock.close)
            sock.setblocking(False)  # noqa: FBT003  # the standard library's signature
        _write_pointer(settings.state_dir, sockets[0].getsockname())
        yield [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]


async def run_acceptor(
    listener: trio.SocketListener,
    connections: trio.Nursery,
    serve: Callable[[trio.SocketStream, Peer], Awaitable[None]],
    metrics: Metrics,
) -> None:
    """Accept until cancelled; start `serve(stream, peer)` in the nursery for every peer that is let in.

    A peer of another user is closed unread and counted. When descriptors or memory run out, accepting pauses and
    goes on by itself; the log says so once a minute at most.
    """
    log = structlog.get_logger()
    report_at = -1.0
    while True:
        try:
            stream = await listener.accept()
        except OSError as exc:
            if exc.errno not in _EXHAUSTED:
                raise
            metrics.inc("dshd_accept_failures")
            if trio.current_time() >= report_at:
                report_at = trio.current_time() + _ACCEPT_REPORT_S
                log.warning("listener.exhausted", errno=exc.errno, reason=exc.strerror)
            await trio.sleep(_ACCEPT_PAUSE_S)
            continue
        who = _peer_or_none(stream)
        if who is None or not is_admitted(who):
            metrics.inc("dshd_peers_refused", reason="gone" if who is None else "other-user")
            stream.socket.close()
            continue
        connections.start_soon(serve, stream, who)


def _peer_or_none(stream: trio.SocketStream) -> Peer | None:
    try:
        return peer(stream)
    except OSError:
        return None


@contextmanager
def _open_bound_socket(path: Path) -> Generator[socket.socket, None, None]:
    _check_length(path)
    with ExitStack() as stack:
        folder = open_socket_dir(path.parent)
        stack.callback(os.close, folder)
        stack.enter_context(_open_socket_lock(path, folder))
        _remove_dead_socket(path, folder)
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        # The mode of the descriptor is the mode that bind gives the file: there is no moment with a wider one.
        os.fchmod(sock.fileno(), 0o600)
        try:
            sock.bind(str(path))
            os.chmod(path.name, 0o600, dir_fd=folder)  # the umask may have taken bits away
            sock.listen(_BACKLOG)
        except OSError as exc:
            raise CannotStartError(f"socket {str(path)!r} cannot be bound: {exc.strerror}") from exc
        ours = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        stack.callback(_unlink_if_same, path.name, folder, ours)
        yield sock


def _check_length(path: Path) -> None:
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise CannotStartError(
            f"socket path {str(path)!r} has {length} bytes and the kernel takes {MAX_SOCKET_PATH_BYTES}; "
            "choose a shorter one with --socket or $DSHD_SOCKET"
        )


@contextmanager
def _open_socket_lock(path: Path, folder: int) -> Generator[None, None, None]:
    """Keep other daemons from the path: the lock decides who may remove a dead socket, not the socket's silence."""
    name = path.name + ".lock"
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(name, flags, 0o600, dir_fd=folder)
    except OSError as exc:
        raise CannotStartError(
            f"lock {str(path) + '.lock'!r} cannot be opened: {exc.strerror}"
        ) from exc
    try:
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
        yield
    finally:
        os.close(fd)


def _remove_dead_socket(path: Path, folder: int) -> None:
    """Unlink what a killed daemon left at the path; called with the lock held, and with anything else refused."""
    try:
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
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
    _unlink_if_same(path.name, folder, found)


def _unlink_if_same(name: str, folder: int, expected: os.stat_result) -> None:
    with suppress(OSError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if (found.st_dev, found.st_ino) == (expected.st_dev, expected.st_ino):
            os.unlink(name, dir_fd=folder)


def _write_pointer(state_dir: Path, address: str | bytes) -> None:
    """Write the socket's path where clients look last; a failure costs them this look-up, not the daemon."""
    log = structlog.get_logger()
    if not address or address[:1] in {"\0", b"\0"}:
        return  # a socket without a name in the file system cannot be pointed to
    draft = state_dir / f".{_POINTER}.{os.getpid()}"
    try:
        make_private_dir(state_dir, "the state folder")
        fd = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            os.fchmod(fd, 0o600)
            os.write(fd, os.fsencode(address))
        finally:
            os.close(fd)
        draft.replace(state_dir / _POINTER)
    except OSError as exc:
        log.warning("listener.pointer_not_written", errno=exc.errno, reason=exc.strerror)
        with suppress(OSError):
            draft.unlink()
