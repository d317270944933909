"""What `doctor` looks at on this machine: the socket, the folders, the disk, the user's services.

The rule: a check changes nothing and never fails; what cannot be found out is said. Each that is not well has the next
command to try.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from dsh_client.cli.figures import size
from dsh_client.cli.text import shell_word

if TYPE_CHECKING:
    from collections.abc import Iterator

OK, WARNING, FAILURE, UNKNOWN = "ok", "warning", "failure", "unknown"
UNITS = ("dshd.socket", "dshd.service")
_LIMIT_S = 5
_LINGER = "/var/lib/systemd/linger"
_FEW_BYTES = 256 << 20
_SMALL_SHARE = 0.02
_ROUNDS = 7
_BLOCK = b"\0" * 4096
_SLOW_MS = 100
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Check(NamedTuple):
    """One thing looked at: what it is, how it fares, and what to try where it is not well."""

    name: str
    status: str
    text: str
    remedy: str | None = None


def place(name: str, path: str, *, socket: bool = False) -> Check:
    """Look at who owns a folder or socket, and whether others may use it."""
    try:
        found = os.lstat(path)
    except OSError as error:
        remedy = "dshd serve" if isinstance(error, FileNotFoundError) else None
        return Check(name, FAILURE, f"{path}: {error.strerror}", remedy)
    right = stat.S_ISSOCK(found.st_mode) if socket else stat.S_ISDIR(found.st_mode)
    mode = stat.S_IMODE(found.st_mode)
    text = f"{path}: uid {found.st_uid}, mode {mode:04o}"
    if not right:
        return Check(name, FAILURE, f"{text}; it is no {'socket' if socket else 'folder'}")
    if found.st_uid != os.getuid():
        return Check(name, FAILURE, f"{text}; it is not yours (uid {os.getuid()})", "dshd serve")
    if mode & _OTHERS:
        wanted = "600" if socket else "700"
        remedy = f"chmod {wanted} {shell_word(path)}"
        return Check(name, WARNING, f"{text}; others of this machine may get in", remedy)
    return Check(name, OK, text)


def room(path: str) -> tuple[Check, int | None]:
    """Look at the space that is left where the sessions lie; return it too."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return Check("disk space", UNKNOWN, f"{path}: {error.strerror}"), None
    free = found.f_bavail * found.f_frsize
    text = f"{size(free)} free of {size(found.f_blocks * found.f_frsize)} at {path}"
    if free < _FEW_BYTES or found.f_bavail < _SMALL_SHARE * found.f_blocks:
        remedy = "dshctl du, dshctl prune --older-than 90d"
        return Check("disk space", WARNING, f"{text}: little", remedy), free
    return Check("disk space", OK, text), free


def flushing(path: str) -> tuple[Check, float | None]:
    """Time how long a block takes to get to the disk where the sessions lie, in a file without a name."""
    times: list[float] = []
    try:
        file = os.open(path, os.O_TMPFILE | os.O_WRONLY, 0o600)
        try:
            for _ in range(_ROUNDS):
                begun = time.perf_counter()
                os.write(file, _BLOCK)
                os.fdatasync(file)
                times.append(1000 * (time.perf_counter() - begun))
        finally:
            os.close(file)
    except OSError as error:
        return Check("fsync", UNKNOWN, f"cannot be measured at {path}: {error.strerror}"), None
    middle = round(sorted(times)[_ROUNDS // 2], 3)
    text = f"4 KiB are on the disk after {middle:.2f} ms (the middle of {_ROUNDS})"
    if middle > _SLOW_MS:
        return Check(
            "fsync", WARNING, f"{text}: every checkpoint takes as long", "dshctl top"
        ), middle
    return Check("fsync", OK, text), middle


def units() -> Iterator[Check]:
    """Look at the user's units."""
    for unit in UNITS:
        words = [
            "systemctl",
            "--user",
            "show",
            "--property=LoadState,ActiveState,UnitFileState",
            unit,
        ]
        try:
            ended = subprocess.run(  # noqa: S603  # words of our own
                words, capture_output=True, timeout=_LIMIT_S, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            why = (
                "does not answer"
                if isinstance(error, subprocess.TimeoutExpired)
                else "is not there"
            )
            yield Check(f"unit {unit}", UNKNOWN, f"systemctl {why}")
            return
        if ended.returncode != 0:
            yield Check(f"unit {unit}", UNKNOWN, "no user manager answers here")
            return
        yield _unit(unit, ended.stdout.decode("utf-8", "replace"))


def _unit(unit: str, shown: str) -> Check:
    pairs = (line.partition("=") for line in shown.split("\n"))
    found = {name: value for name, _, value in pairs}
    name = f"unit {unit}"
    if found.get("LoadState") != "loaded":
        return Check(name, WARNING, f"{found.get('LoadState') or 'unknown'}", "dshd install --now")
    text = f"{found.get('ActiveState')}, {found.get('UnitFileState') or 'not enabled'}"
    if found.get("ActiveState") == "failed":
        return Check(name, FAILURE, text, f"journalctl --user -u {unit} -n 20")
    if unit.endswith(".socket") and found.get("ActiveState") != "active":
        return Check(name, WARNING, text, f"systemctl --user enable --now {unit}")
    return Check(name, OK, text)


def linger() -> Check:
    """Look whether the user's services outlive the last logout."""
    import pwd

    name = str(os.getuid())
    with suppress(KeyError):
        name = pwd.getpwuid(os.getuid()).pw_name
    if not os.path.isdir(os.path.dirname(_LINGER)):  # noqa: PTH112, PTH120  # pathlib costs 5 ms at start
        return Check("linger", UNKNOWN, "this machine has no systemd")
    if os.path.exists(f"{_LINGER}/{name}"):  # noqa: PTH110  # likewise
        return Check("linger", OK, f"{name}'s services go on after the last logout")
    return Check(
        "linger",
        WARNING,
        f"{name}'s services end at the last logout (nothing acknowledged is lost)",
        "loginctl enable-linger",
    )
