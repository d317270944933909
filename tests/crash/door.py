"""The disk with a fault in it: every call is numbered, and one of them kills, fails or is cut short.

The one rule: what is counted is what the store asked of its disk, over all threads, in that order; what is not to fail
goes to the disk underneath as it is. A sync that fails loses what it was asked to keep, as Linux does:
later reads show the bytes until the run is over, and then they are gone.
"""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from crash.names import MAKING, Names
from dshd.storage.files import RealDisk

if TYPE_CHECKING:
    from collections.abc import Callable

    from dshd.storage.files import Disk

PERSISTENT = frozenset(
    {
        *("create", "mkdir", "write", "copy", "truncate", "fdatasync", "fsync"),
        *("link", "rename", "unlink", "rmdir"),
    }
)
"""Calls that change what is on the disk, or what is durable of it."""
LOOKING = frozenset(
    {"open", "open_root", "fstat", "lstat", "listdir", "pread", "lock", "drop_cache"}
)
"""Calls that change nothing and may fail all the same."""
FALLIBLE = PERSISTENT | LOOKING
SYNCS = frozenset({"fdatasync", "fsync"})

Moment = Literal["before", "half", "after"]
FOR_EVER = 1 << 60


class Call(NamedTuple):
    """One call of the disk.

    Attributes:
        name: As in `Disk`; an open that may create is `create`.
        site: File and line that asked, where that is recorded.
        below_end: It wrote to a log, and not at its end.
    """

    name: str
    site: str = ""
    below_end: bool = False


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and when.

    Args:
        at: The number of the call, from 1; 0 for never.
        counted: Which calls have numbers.
        kill: The process ends before that call, in the middle of it (a write), or after it.
        error: The call fails with it instead; of a write, where `half`, after half of it.
        last: The last call that fails.
        most: Bytes that one write or copy takes.
        cut: The power goes with the process, killed or not: what was not synced is zeros, and such names are gone.
    """

    at: int = 0
    counted: frozenset[str] = PERSISTENT
    kill: Moment | None = None
    error: int = 0
    last: int = 0
    half: bool = False
    most: int = 0
    cut: bool = False

    def hits(self, number: int) -> bool:
        """Whether the call of that number is one that fails."""
        return self.at <= number <= max(self.at, self.last) if self.at else False


NO_FAULT = Fault()


@dataclass(eq=False)
class _Unsynced:
    """What of one open file is in memory only, and what of it no later sync can save. Spans of bytes."""

    fd: int
    fresh: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def cut(self, length: int) -> None:
        self.fresh = [(start, min(end, length)) for start, end in self.fresh if start < length]
        self.lost = [(start, min(end, length)) for start, end in self.lost if start < length]


class Door(RealDisk):
    """A disk with a fault, over another one.

    Args:
        fault: What goes wrong.
        under: The disk that is asked.
        sites: Note who asks; slow.

    Attributes:
        calls: Every call so far, counted or not.
        number: How many of them were counted.
        struck: How often the fault struck.
    """

    def __init__(
        self, fault: Fault = NO_FAULT, under: Disk | None = None, *, sites: bool = False
    ) -> None:
        self.fault = fault
        self.calls: list[Call] = []
        self.number = 0
        self.struck = 0
        self._sites = sites
        self._lock = RLock()
        self._files: dict[tuple[int, int], _Unsynced] = {}
        self._names = Names()
        self._will: Path | None = None
        self.stand_before(under or RealDisk())

    def stand_before(self, under: Disk) -> None:
        """Ask another disk from now on."""
        self._under = under
        for name in ("open", *(FALLIBLE - {"create", "open"})):
            self.__dict__[name] = self._watched(name, getattr(self._under, name))

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            kind = "create" if name == "open" and args[1] & os.O_CREAT else name
            fault = self.fault
            with self._lock:
                self.calls.append(Call(kind, self._site(), self._below_end(kind, args)))
                if kind not in fault.counted:
                    return self._passed(kind, call, args, options)
                self.number += 1
                if not fault.hits(self.number):
                    return self._passed(kind, call, args, options)
                self.struck += 1
                self._strike(kind, call, args, options)
                return None

        return watched

    def _strike(
        self, kind: str, call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Let the fault happen. Does not return."""
        fault = self.fault
        if kind == "write" and (fault.half or fault.kill == "half"):
            self._passed(kind, call, (args[0], bytes(args[1])[: len(args[1]) // 2]), options)
        if fault.kill == "after":
            with suppress(OSError):  # a directory that is there already
                call(*args, **options)
        if fault.cut:
            self.lose()
        if fault.kill is not None:
            self._leave_word()
            os.kill(os.getpid(), signal.SIGKILL)
        if kind in SYNCS and (kept := self._file(args[0])) is not None:
            kept.lost += kept.fresh
            kept.fresh.clear()
        raise OSError(fault.error, os.strerror(fault.error))

    def _passed(
        self, kind: str, call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Make the call, and note what is in memory only from now on."""
        most = self.fault.most
        if most and kind == "write":
            args = (args[0], bytes(args[1])[:most])
        elif most and kind == "copy":
            args = (*args[:3], min(args[3], most))
        if self.fault.cut and kind in MAKING:
            return self._names.watch(kind, call, args, options.get("at"))
        if kind not in {"write", "copy", "truncate", *SYNCS}:
            return call(*args, **options)
        fd = args[2] if kind == "copy" else args[0]
        start = os.fstat(fd).st_size
        done = call(*args, **options)
        kept = self._file(fd)
        if kept is not None:
            if kind == "truncate":
                kept.cut(args[1])
            elif kind in SYNCS:
                kept.fresh.clear()
            else:
                kept.fresh.append((start, start + done))
        elif kind in SYNCS:
            self._names.synced(fd)
        return done

    def _file(self, fd: int) -> _Unsynced | None:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return None
        key = (found.st_dev, found.st_ino)
        known = self._files.get(key)
        if known is None:  # kept open, so that the number is not given to another file
            known = self._files[key] = _Unsynced(os.dup(fd))
        return known

    def lose(self) -> int:
        """Take away what failed syncs did not save, as a restart of the machine does; return how many bytes.

        Where the power is cut, take away whatever no sync saved.
        """
        gone = 0
        for kept in self._files.values():
            kept.lost += kept.fresh if self.fault.cut else []
            if kept.lost:
                fd = os.open(f"/proc/self/fd/{kept.fd}", os.O_WRONLY)
                for start, end in kept.lost:
                    gone += os.pwrite(fd, bytes(end - start), start)
                os.close(fd)
            os.close(kept.fd)
        self._files.clear()
        self._names.lose()
        return gone

    def inherit(self, will: Path) -> None:
        """Know what a killed process had in memory only, where it left word; leave word when this one is killed."""
        self._will = will
        for path, fresh, lost in json.loads(will.read_text("utf-8")) if will.exists() else ():
            with Path(path).open("rb") as file:
                kept = self._file(file.fileno())
            assert kept is not None
            kept.fresh += [tuple(span) for span in fresh]
            kept.lost += [tuple(span) for span in lost]

    def _leave_word(self) -> None:
        if self._will is not None:
            left = [(_path_of(kept.fd), kept.fresh, kept.lost) for kept in self._files.values()]
            self._will.write_text(json.dumps([one for one in left if one[0]]), "utf-8")

    def _site(self) -> str:
        if not self._sites:
            return ""
        frame = inspect.currentframe()
        for _ in range(2):
            frame = frame and frame.f_back
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""

    def _below_end(self, kind: str, args: tuple[Any, ...]) -> bool:
        """Whether bytes of a log are about to be written over."""
        if kind != "write" or not self._sites:
            return False
        name = Path(f"/proc/self/fd/{args[0]}").readlink().name
        appends = fcntl.fcntl(args[0], fcntl.F_GETFL) & os.O_APPEND
        return name.startswith("session.jsonl") and not appends


def _path_of(fd: int) -> str:
    """Return a path of an open file: it may have been linked to another name; nothing where it has none."""
    found = os.fstat(fd)
    for path in Path(f"/proc/self/fd/{fd}").readlink().parent.iterdir():
        if os.path.samestat(path.lstat(), found):
            return str(path)
    return ""
