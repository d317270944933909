"""What to try next, after an error or a look at a session. Every error that `dshctl` prints ends with one of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_client.cli.text import shell_word
from dsh_client.cli.values import as_object
from dsh_client.errors import CallTimeoutError, DaemonUnavailableError

if TYPE_CHECKING:
    from dsh_client.errors import ClientError
    from dsh_protocol.errors import DshdError

_OF_KIND = {
    "SESSION_NOT_FOUND": "dshctl list --all",
    "SESSION_EXISTS": "dshctl show {id}",
    "ID_INVALID": "dshctl list --all",
    "SESSION_BUSY": "dshctl show {id}",
    "WRITER_LOST": "dshctl show {id}",
    "SEQ_CONFLICT": "dshctl log -n 5 {id}",
    "RECOVERY_REQUIRED": "dshctl recover {id}",
    "EVENT_INVALID": "dshctl log -n 5 {id}",
    "OPEN_TURN": "dshctl log -n 20 {id}",
    "LOG_CORRUPT": "dshd verify {id}",
    "LOG_CHANGED": "dshd verify {id}",
    "FORMAT_UNSUPPORTED": "dshctl log {id} (it reads what is stored; a newer dshd may do more)",
    "SESSION_SEALED": "look at the disk, restart dshd, then: dshctl show {id}",
    "UNSAFE_PATH": "dshctl show {id}",
    "NO_SPACE": "df -h, make room, then the same command again",
    "METHOD_NOT_FOUND": "dshctl rpc rpc.discover",
    "INVALID_PARAMS": "dshctl rpc rpc.discover",
    "INVALID_REQUEST": "dshctl rpc rpc.discover",
    "PROTOCOL_VERSION": "dshctl doctor",
    "INTERNAL": "journalctl --user -u dshd (look for the incident)",
}
_START = "dshd serve, in another terminal; where its units are installed: systemctl --user start dshd.socket"
_FOREIGN = "dshd serve, for a daemon of your own: each serves its own user only, and that socket is another's"
_BUSY_RESERVED = "if that process will not come back: dshctl recover --apply --takeover {id}"


def command(verb: str, session_id: str, *options: str) -> str:
    """Return the `dshctl` command line with which a person can go on with a session."""
    return " ".join(["dshctl", verb, *options, shell_word(session_id)])


def hint(error: DshdError | ClientError, session: str | None = None) -> str:
    """Return what to try after an error; a command, where there is one."""
    if isinstance(error, DaemonUnavailableError):
        return _FOREIGN if isinstance(error.__cause__, PermissionError) else _START
    if isinstance(error, CallTimeoutError):
        return "dshctl status, or a longer --timeout"
    text = _OF_KIND.get(str(getattr(error, "kind", "")), "dshctl status")
    holder = as_object(getattr(error, "facts", {}).get("holder"))
    if holder.get("connected") is False:
        text = _BUSY_RESERVED
    return text.format(id=shell_word(session) if session else "ID")
