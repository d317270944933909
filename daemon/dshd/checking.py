"""`dshd check-config`: would it start, and on what; changes nothing.

The one rule: every check is one that the start makes, or a warning that says so; nothing is created, and a running
daemon is not disturbed.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import resource
import stat
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsh_protocol.errors import EXIT_CANNOT_START, EXIT_OK
from dshd.binding import MAX_SOCKET_PATH_BYTES
from dshd.ceilings import FEWEST_DESCRIPTORS, limits_within
from dshd.mounts import file_system, network_warning
from dshd.settings import NO_TRACES, CannotStartError, load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.settings import ServeFlags, Settings

LOW_SPACE_BYTES = 64 * 1024 * 1024
_OTHERS = 0o077
_OTHERS_WRITE = 0o022


@dataclass(slots=True)
class Findings:
    """What was found: facts to print, warnings, and what would stop the start."""

    facts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    warnings: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])


def check_config(flags: ServeFlags) -> int:
    """Print what a start would use; exit 78 where it would not start."""
    found = Findings()
    try:
        settings = load_settings(flags)
    except CannotStartError as error:
        found.errors.append(str(error))
    else:
        examine(settings, found)
    width = max((len(name) for name, _ in found.facts), default=0)
    for name, value in found.facts:
        sys.stdout.write(f"{name:<{width}}  {_plain(value)}\n")
    for text in found.warnings:
        sys.stdout.write(f"warning: {_plain(text)}\n")
    for text in found.errors:
        sys.stderr.write(f"dshd: {_plain(text)}\n")
    return EXIT_CANNOT_START if found.errors else EXIT_OK


def examine(settings: Settings, found: Findings) -> None:
    """Look at everything that a start looks at."""
    found.facts += [
        ("socket", str(settings.socket)),
        ("root", str(settings.root)),
        ("state folder", str(settings.state_dir)),
        ("compression", settings.compression),
        ("batch window", f"{settings.batch_window_s:g} s"),
    ]
    _look_at_folder("the state folder", settings.state_dir, _OTHERS_WRITE, found)
    _look_at_folder("the root", settings.root, _OTHERS_WRITE, found)
    _look_at_socket(settings.socket, found)
    _look_at_lock(settings.root / "dshd.lock", "the root", found)
    _look_at_descriptors(settings, found)
    _look_at_disk(settings.root, found)
    if settings.traces:
        _look_at_traces(found)


def _look_at_folder(what: str, path: Path, forbidden: int, found: Findings) -> None:
    try:
        seen = path.stat()
    except FileNotFoundError:
        found.facts.append((what.removeprefix("the "), "will be made"))
        return
    except OSError as error:
        found.errors.append(f"{what} {str(path)!r} cannot be used: {error.strerror}")
        return
    if not stat.S_ISDIR(seen.st_mode):
        found.errors.append(f"{what} {str(path)!r} is not a folder")
    elif seen.st_uid != os.geteuid():
        found.errors.append(f"{what} {str(path)!r} belongs to uid {seen.st_uid}")
    elif stat.S_IMODE(seen.st_mode) & forbidden:
        mode = stat.S_IMODE(seen.st_mode)
        found.errors.append(f"{what} {str(path)!r} has mode {mode:04o}; run: chmod 700 {path}")


def _look_at_socket(path: Path, found: Findings) -> None:
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        found.errors.append(
            f"socket path {str(path)!r} has {length} bytes and the kernel takes {MAX_SOCKET_PATH_BYTES}"
        )
        return
    _look_at_folder("the socket's folder", path.parent, _OTHERS, found)
    if path.parent.is_symlink():
        found.errors.append(f"the socket's folder {str(path.parent)!r} is a link")
    if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
        found.errors.append(f"{str(path)!r} exists and is not a socket; move it away")
    _look_at_lock(path.with_name(path.name + ".lock"), "the socket", found)


def _look_at_lock(path: Path, what: str, found: Findings) -> None:
    """Whether a daemon holds it: taken shared for a moment, which keeps nobody from anything for longer."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        found.warnings.append(f"a daemon runs on {what} already; a second one will not start")
    finally:
        os.close(fd)


def _look_at_descriptors(settings: Settings, found: Findings) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < FEWEST_DESCRIPTORS:
        found.errors.append(
            f"the process may have {hard} open files and dshd needs {FEWEST_DESCRIPTORS}"
        )
        return
    limits = limits_within(settings.limits, hard)
    found.facts.append(("connections", f"{limits.max_connections} at a time"))
    found.facts.append(("open sessions", f"{limits.max_open_sessions} at a time"))


def _look_at_disk(root: Path, found: Findings) -> None:
    there = next(path for path in (root, *root.parents) if path.exists())
    seen = os.statvfs(there)
    free = seen.f_bavail * seen.f_frsize
    found.facts.append(("free space", f"{free >> 20} MiB"))
    if free < LOW_SPACE_BYTES:
        found.warnings.append(f"only {free} bytes are free below {str(there)!r}")
    if seen.f_flag & os.ST_RDONLY:
        found.warnings.append(
            f"{str(there)!r} is mounted read-only: sessions can be read, not written"
        )
    found.facts.append(("file system", file_system(there) or "unknown"))
    warning = network_warning(there)
    if warning is not None:
        found.warnings.append(warning)


def _look_at_traces(found: Findings) -> None:
    try:
        importlib.import_module("dshd.tracing")
    except ImportError:
        found.errors.append(NO_TRACES)
        return
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    given = [os.environ[name] for name in names if os.environ.get(name)]
    where = given[0] if given else "http://localhost:4318 (the default)"
    found.facts.append(("traces", where))


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
