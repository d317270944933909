"""Promise 33: at the limits of its process the daemon refuses work, goes on when there is room, and loses nothing.

Descriptors, the size of a file, memory that may be mapped, and the memory and threads of a control group, each taken
from a real daemon that has acknowledged something. The one rule: whatever happened at the limit, a daemon that is
started again afterwards has every acknowledged event.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from crash.ledger import Ledger
from crash.processes import ENDS_WITH_PROOF, end_on_signal
from crash.proof import Result, Size, not_run
from crash.volumes import MIB, CannotTryError
from support import events
from support.daemon import DaemonProcess
from support.load import resident_bytes
from support.rpc import CallRefusedError, Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_PROMISE = 33
_GROUPS = Path("/sys/fs/cgroup")
_ROUNDS = (1, 5, 50)
_ENDED = "the connection ended"
_FEW_DESCRIPTORS = 32
_MANY = 24
_WAIT_S = 10.0


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Take one thing after the other from a daemon; see the module."""
    end_on_signal()
    rounds = _ROUNDS[list(Size).index(size)]
    for place, (what, attempt) in enumerate(_ATTEMPTS.items()):
        tried = _Tried(what)
        own = scratch / str(place)  # a root of its own: what one limit left is not the next one's
        own.mkdir()
        try:
            for number in range(rounds):
                attempt(own, number, tried)
        except CannotTryError as error:
            yield not_run(_PROMISE, what, "0 lost", str(error))
            continue
        yield tried.result(rounds)


class _Tried:
    """What came of one limit."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.refused: dict[str, int] = {}
        self.ended = 0
        self.bad: list[str] = []

    def count(self, kind: str) -> None:
        """Count a refusal."""
        self.refused[kind] = self.refused.get(kind, 0) + 1

    def result(self, rounds: int) -> Result:
        """Return the line of the report. Nothing refused and no end means that the limit was not met."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.refused.items()))
        ended = f", {self.ended} ended and started again" if self.ended else ""
        met = bool(self.refused) or self.ended > 0
        why = tuple(self.bad) if met else ("the limit was not met", *self.bad)
        return Result(
            _PROMISE,
            self.what,
            f"{rounds} rounds, refused: {kinds or 'nothing'}{ended}, {len(self.bad)} bad",
            "0 lost",
            held=met and not self.bad,
            why=why,
        )


class _Limited:
    """A daemon with one session that has acknowledged something."""

    def __init__(self, scratch: Path, tried: _Tried, prefix: tuple[str, ...] = ()) -> None:
        self.daemon = DaemonProcess(scratch, prefix=(*ENDS_WITH_PROOF, *prefix))
        self.tried = tried
        self.ledger = Ledger(f"s{os.urandom(8).hex()}")
        self.daemon.start()
        with Connection(self.daemon.socket, name="before") as one:
            self.ledger.begin(one)
            self.ledger.chunk(one, "before")
            self.ledger.collect(one)
            one.call("session.close", **self.ledger.handle)

    def ask(self, text: str) -> None:
        """Create a session of its own and write there, at the limit: an outcome of any kind is noted."""
        ledger = Ledger(f"t{os.urandom(8).hex()}")
        try:
            with Connection(self.daemon.socket, limit_s=10) as one:
                made = one.call("session.create", id=ledger.session_id)
                handle = {"id": ledger.session_id, "writer": made["writer"]}
                one.call("session.append", **handle, events=[events.title(text)])
                one.call("session.flush", **handle)
                one.call("session.close", **handle)
        except CallRefusedError as refused:
            self.tried.count(refused.kind)
        except (OSError, TimeoutError):
            self.tried.count(_ENDED)

    def end(self, allowed: frozenset[str]) -> None:
        """There is room again: the daemon goes on, or a new one does; everything is there and more can be written."""
        strange = self.tried.refused.keys() - allowed
        if strange:
            self.tried.bad.append(f"refused with {sorted(strange)}")
        if not self._is_served():
            self.daemon.kill()
            self.tried.ended += 1
            self.daemon.start()
        self._judge("goes on")
        self.daemon.kill()
        self.daemon.start()
        self._judge("started again")

    def _is_served(self) -> bool:
        """Whether it lives and serves somebody new, as soon as it has seen that others have left."""
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline and self.daemon.process.poll() is None:
            try:
                with Connection(self.daemon.socket, limit_s=5) as one:
                    one.call("daemon.status")
            except (OSError, TimeoutError):
                time.sleep(0.05)  # a real process takes note by the real clock
            else:
                return True
        return False

    def _judge(self, when: str) -> None:
        with Connection(self.daemon.socket, name="after") as one:
            self.tried.bad += [f"{when}: {bad}" for bad in self.ledger.problems(one)]
            self.ledger.begin(one)
            self.ledger.chunk(one, when)
            self.ledger.collect(one)


@contextmanager
def _limited(
    scratch: Path, tried: _Tried, prefix: tuple[str, ...] = ()
) -> Generator[_Limited, None, None]:
    limited = _Limited(scratch, tried, prefix)
    try:
        yield limited
    finally:
        limited.daemon.remove()


@contextmanager
def _limit_of(pid: int, which: int, value: int) -> Generator[None, None, None]:
    """Lower a limit of a running process, and give it back."""
    soft, hard = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (value, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, which, (soft, hard))


def _descriptors(scratch: Path, _number: int, tried: _Tried) -> None:
    few = f"--nofile={_FEW_DESCRIPTORS}:{_FEW_DESCRIPTORS}"
    with _limited(scratch, tried, ("prlimit", few)) as limited, ExitStack() as stack:
        one = stack.enter_context(Connection(limited.daemon.socket, name="greedy"))
        for number in range(_FEW_DESCRIPTORS):
            try:
                made = one.call("session.create", id=f"g{number}-{os.urandom(4).hex()}")
                handle = {"id": made["session"]["id"], "writer": made["writer"]}
                one.call("session.flush", **handle)
            except CallRefusedError as refused:
                tried.count(refused.kind)
        for _ in range(8):
            with suppress(OSError):
                stack.enter_context(Connection(limited.daemon.socket))
        limited.ask("at the limit")
        stack.close()
        limited.end(frozenset({"OVERLOADED", _ENDED}))


def _file_size(scratch: Path, number: int, tried: _Tried) -> None:
    with _limited(scratch, tried) as limited:
        pid = limited.daemon.pid
        # in the middle of a frame, so that the first write is a short one; or before the header
        with _limit_of(pid, resource.RLIMIT_FSIZE, (2000, 100, 1, 5000, 3333)[number % 5]):
            for _ in range(4):
                limited.ask(os.urandom(8192).hex())
            _append_over(limited, tried)
        limited.end(frozenset({"NO_SPACE"}))


def _append_over(limited: _Limited, tried: _Tried) -> None:
    """Go on with the session that is there, into the limit."""
    with Connection(limited.daemon.socket) as one:
        try:
            limited.ledger.begin(one)
            limited.ledger.chunk(one, os.urandom(8192).hex())
            limited.ledger.collect(one)
        except CallRefusedError as refused:
            limited.ledger.forget_waiting()
            tried.count(refused.kind)


def _mapped_memory(scratch: Path, number: int, tried: _Tried) -> None:
    room = (16, 48, 8, 32, 24)[number % 5] * MIB
    with _limited(scratch, tried) as limited:
        pid = limited.daemon.pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        with _limit_of(pid, resource.RLIMIT_AS, pages * resource.getpagesize() + room):
            for _ in range(6):
                limited.ask("x" * (7 * MIB))
        limited.end(frozenset({"OVERLOADED", _ENDED}))


@contextmanager
def _group(controller: str, pid: int) -> Generator[Path, None, None]:
    """A control group of one controller with the process in it; emptied and removed on leaving."""
    parent = _GROUPS / controller
    if not (parent / "cgroup.procs").exists():
        raise CannotTryError(f"no control groups of {controller}")
    group = parent / f"dshd-proof-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise CannotTryError(f"no control group of {controller}: {error.strerror}") from error
    try:
        yield group
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(left)
        group.rmdir()


def _group_memory(scratch: Path, number: int, tried: _Tried) -> None:
    """Run into the memory of a control group: the kernel kills the daemon, and that is a kill like any other."""
    with _limited(scratch, tried) as limited:
        pid = limited.daemon.pid
        with _group("memory", pid) as group:
            room = resident_bytes(pid) // 2 + (4, 16, 8, 12, 6)[number % 5] * MIB
            (group / "memory.limit_in_bytes").write_text(str(room))
            for _ in range(6):
                limited.ask("x" * (7 * MIB))
                if limited.daemon.process.poll() is not None:
                    break
        ended = limited.daemon.process.poll()
        if ended not in {None, -signal.SIGKILL}:
            tried.bad.append(f"the daemon ended with {ended}")
        limited.end(frozenset({"OVERLOADED", _ENDED}))


def _group_threads(scratch: Path, _number: int, tried: _Tried) -> None:
    with _limited(scratch, tried) as limited:
        pid = limited.daemon.pid
        with _group("pids", pid) as group:
            (group / "pids.max").write_text((group / "pids.current").read_text())
            with ExitStack() as stack:
                busy = [
                    stack.enter_context(Connection(limited.daemon.socket, limit_s=20))
                    for _ in range(_MANY)
                ]
                for method in ("session.create", "session.list"):
                    sent = [(one, one.send(method)) for one in busy]
                    for one, call_id in sent:
                        try:
                            one.result(call_id)
                        except CallRefusedError as refused:
                            tried.count(refused.kind)
                        except ConnectionRefusedError:
                            tried.count(_ENDED)
        limited.end(frozenset({"OVERLOADED"}))


_ATTEMPTS: dict[str, Callable[[Path, int, _Tried], None]] = {
    "few descriptors": _descriptors,
    "files that may not grow": _file_size,
    "little memory to map": _mapped_memory,
    "a control group with little memory": _group_memory,
    "a control group with no more threads": _group_threads,
}
