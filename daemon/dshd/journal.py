"""The journal's native protocol: one datagram an event, each value a field of its own.

The one rule: whatever cannot be sent is told to the caller, never raised: a log must not stop what it tells of.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

JOURNAL_SOCKET = "/run/systemd/journal/socket"
_ODD = re.compile("[^A-Z0-9_]")


class Journal:
    """Where the journal takes events.

    Args:
        path: Its socket.
    """

    def __init__(self, path: str = JOURNAL_SOCKET) -> None:
        self._path = path
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._channel.setblocking(False)  # noqa: FBT003  # the standard library's signature

    def send(self, datagram: bytes) -> bool:
        """Hand over an event; False where the journal is away, or behind."""
        try:
            self._channel.sendto(datagram, self._path)
        except OSError:
            return False
        return True


def datagram(message: str, priority: int, values: Mapping[str, object]) -> bytes:
    """Return an event as the journal takes it: `DSHD_SESSION` for the value `session`, and so on."""
    fields = {"MESSAGE": message, "PRIORITY": priority, "SYSLOG_IDENTIFIER": "dshd"}
    named = {f"DSHD_{_ODD.sub('_', key.upper())}": value for key, value in values.items()}
    return b"".join(_field(name, value) for name, value in (fields | named).items())


def _field(name: str, value: object) -> bytes:
    text = str(value).encode("utf-8", "backslashreplace")
    if b"\n" not in text:
        return b"%b=%b\n" % (name.encode(), text)
    return b"%b\n%b%b\n" % (name.encode(), len(text).to_bytes(8, "little"), text)
