"""The listening Unix socket: bound by the daemon itself or inherited, and who is let in.

The one rule: only processes of the daemon's own user get a byte read.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from dshd.binding import Binding
from dshd.directories import make_private_dir
from dshd.sessions.processes import Peer, process_start_time
from dshd.settings import CannotStartError
from dshd.systemd import inherited_sockets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator
    from pathlib import Path

    from dshd.metrics import Metrics
    from dshd.settings import Settings

_CREDENTIALS = struct.Struct("3i")
_ACCEPT_PAUSE_S = 0.1
_ACCEPT_REPORT_S = 60.0
_LOOK_S = 2.0
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


@dataclass(slots=True)
class Listeners:
    """What the daemon listens on: sockets that it inherited, or the one that it bound.

    Attributes:
        sockets: The listeners, now; the bound one is replaced when somebody removes it.
        binding: Of the bound one; None where the service manager keeps the socket.
        problem: Why the bound socket cannot be reached and cannot be bound again, or None.
    """

    sockets: list[trio.SocketListener]
    binding: Binding | None
    problem: str | None = None

    def __iter__(self) -> Iterator[trio.SocketListener]:
        """The listeners."""
        return iter(self.sockets)

    def address(self) -> str:
        """The path of the first."""
        return os.fsdecode(self.sockets[0].socket.getsockname())


@contextmanager
def open_listeners(settings: Settings) -> Generator[Listeners, None, None]:
    """Take over the inherited sockets, or bind one; write the pointer by which clients find it.

    Must be entered under trio. On leaving, the sockets are closed, and one that was bound here is unlinked if it
    is still the one at its path; an inherited one stays with the service manager and goes on taking connections.

    Raises:
        CannotStartError: A path, folder or descriptor cannot be used, or another daemon listens there.
    """
    with ExitStack() as stack:
        sockets, binding = inherited_sockets(), None
        for sock in sockets:
            stack.callback(sock.close)
            sock.setblocking(False)  # noqa: FBT003  # the standard library's signature
        if not sockets:
            binding = stack.enter_context(Binding(settings.socket))
            sockets = [binding.socket]
        _write_pointer(settings.state_dir, sockets[0].getsockname())
        yield Listeners([_listener(sock) for sock in sockets], binding)


def _listener(sock: socket.socket) -> trio.SocketListener:
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


async def run_listeners(
    listeners: Listeners,
    settings: Settings,
    accept: Callable[[trio.SocketListener], Awaitable[None]],
) -> None:
    """Run `accept` for every listener until cancelled; bind the daemon's own socket again when it was removed."""
    async with trio.open_nursery() as nursery:
        if listeners.binding is None:
            for listener in listeners:
                nursery.start_soon(accept, listener)
        while listeners.binding is not None:
            scope = trio.CancelScope()
            nursery.start_soon(_accept_within, scope, accept, listeners.sockets[0])
            await _renew(listeners, listeners.binding)
            _write_pointer(settings.state_dir, listeners.address())
            scope.cancel()  # only now: what waited at the old socket has been accepted


async def _accept_within(
    scope: trio.CancelScope,
    accept: Callable[[trio.SocketListener], Awaitable[None]],
    listener: trio.SocketListener,
) -> None:
    with scope:
        await accept(listener)
    with trio.CancelScope(shield=True):
        await listener.aclose()


async def _renew(listeners: Listeners, binding: Binding) -> None:
    """Wait until the bound socket was removed and could be bound again."""
    log = structlog.get_logger()
    while True:
        await trio.sleep(_LOOK_S)
        if not binding.is_lost():
            listeners.problem = None
            continue
        try:
            binding.renew()
        except (CannotStartError, OSError) as exc:
            if listeners.problem is None:
                log.warning("listener.displaced", socket=binding.path, reason=str(exc))
            listeners.problem = f"clients cannot reach the daemon: {exc}"
            continue
        log.warning("listener.renewed", socket=binding.path)
        listeners.problem = None
        listeners.sockets[:] = [_listener(binding.socket)]
        return


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
        except (OSError, MemoryError) as error:
            exc = error if isinstance(error, OSError) else OSError(errno.ENOMEM, "no memory")
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
