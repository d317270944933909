"""Which process is meant by a pid: its start time and the kernel's boot id tell a reused number apart.

The one rule: a process counts as alive only when the kernel shows the same start time for the same pid. A zombie
is dead: it will never write again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STATE_FIELD = (
    0  # fields are counted from the one after the command's name, which is field 3 of proc(5)
)
_START_FIELD = 19  # field 22 of proc(5)
_DEAD_STATES = frozenset(b"ZXx")


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as the kernel said when the connection was made.

    `start_time` is that process's (see `process_start_time`); None when it had already ended or lives in
    another PID namespace (then `pid` is 0).
    """

    pid: int
    uid: int
    gid: int
    start_time: int | None


def _stat_fields(pid: int) -> list[bytes] | None:
    if pid <= 0:
        return None
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The command's name stands in parentheses and may hold anything, parentheses and spaces too.
    fields = text[text.rfind(b")") + 1 :].split()
    return fields if len(fields) > _START_FIELD else None


def process_start_time(pid: int) -> int | None:
    """Return when a living process started, in clock ticks since boot; None when it is dead or unknown.

    Only comparable with values of the same boot (see `boot_id`) and the same PID namespace.
    """
    fields = _stat_fields(pid)
    if fields is None or fields[_STATE_FIELD][0] in _DEAD_STATES:
        return None
    return int(fields[_START_FIELD])


def process_alive(pid: int, start_time: int, boot: str | None = None) -> bool:
    """Whether the process that had this pid and start time (in that boot, where given) still runs."""
    if boot is not None and boot != boot_id():
        return False
    return process_start_time(pid) == start_time


def boot_id() -> str:
    """Return the id of this boot of the kernel; empty where the kernel does not say."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
