"""What a service manager says to the daemon by its environment, and hears from it by datagrams.

The one rule: variables meant for another process are ignored; variables meant for this one must be right.
"""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

from dshd.settings import CannotStartError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

_FIRST_FD = 3
_MAX_FDS = 64


def notify(*lines: str, environ: Mapping[str, str] | None = None) -> bool:
    """Tell the service manager: `READY=1`, `STOPPING=1`, `STATUS=…`, `WATCHDOG=1`, one line each.

    Never blocks and never raises: a manager that does not listen must not stop the daemon.

    Returns:
        Whether the message was handed over; False where there is no manager.
    """
    address = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    text = "\n".join(line.replace("\n", " ") for line in lines)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)  # noqa: FBT003  # the standard library's signature
            channel.sendto(text.encode("utf-8", "replace"), address)
    except OSError:
        return False
    return True


def watchdog_interval(environ: Mapping[str, str] | None = None) -> float | None:
    """Return the seconds between two `WATCHDOG=1` (half of what the manager allows), or None for no watchdog."""
    env = os.environ if environ is None else environ
    allowed, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    if not allowed.isdecimal() or int(allowed) == 0:
        return None
    if pid and pid != str(os.getpid()):
        return None
    return int(allowed) / 1_000_000 / 2


def inherited_sockets(environ: MutableMapping[str, str] | None = None) -> list[socket.socket]:
    """Take over the listening sockets that were passed to this process; empty where none were.

    The variables are removed, so that no child of the daemon takes them as its own. The sockets are the caller's.

    Raises:
        CannotStartError: They are meant for this process but are not listening Unix stream sockets.
    """
    env = os.environ if environ is None else environ
    pid, count = env.pop("LISTEN_PID", ""), env.pop("LISTEN_FDS", "")
    env.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()):
        return []
    if not count.isdecimal() or not 0 < int(count) <= _MAX_FDS:
        raise CannotStartError(
            f"LISTEN_FDS is {count!r}, not a number from 1 to {_MAX_FDS}; check the socket unit"
        )
    taken: list[socket.socket] = []
    try:
        for fd in range(_FIRST_FD, _FIRST_FD + int(count)):
            taken.append(_take(fd))  # noqa: PERF401  # what was taken is closed when a later one is wrong
    except CannotStartError:
        for one in taken:
            one.close()
        raise
    return taken


def _take(fd: int) -> socket.socket:
    remedy = "the socket unit must pass listening Unix stream sockets (ListenStream=, Accept=no) and nothing else"
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise CannotStartError(f"inherited descriptor {fd} is not a socket; {remedy}")
    except OSError as exc:
        raise CannotStartError(
            f"inherited descriptor {fd} is not open ({exc.strerror}); {remedy}"
        ) from exc
    os.set_inheritable(fd, False)  # noqa: FBT003  # the standard library's signature
    sock = socket.socket(fileno=fd)
    listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM or not listens:
        kind = f"{sock.family.name} {sock.type.name}{'' if listens else ', not listening'}"
        sock.close()
        raise CannotStartError(f"inherited descriptor {fd} is {kind}; {remedy}")
    return sock
