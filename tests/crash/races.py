"""Promise 15: of two that want a root, or a session, at the same moment one gets it.

The racers are forked from this warm process, so that they meet at the lock and not somewhere in their imports; some
daemons are started as people start them. The one rule: an owner is whoever acts as one. A daemon that answers on its
socket owns its root, a store that could append owns its session.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import socket
import struct
import time
import traceback
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

from crash.processes import ENDS_WITH_PROOF, end_on_signal, end_with_parent, exit_code, kill
from crash.proof import Result, Size
from dsh_protocol.errors import EXIT_CANNOT_START, DshdError, SessionBusyError, SessionExistsError
from dsh_protocol.events import Header
from dshd import lifecycle, main
from dshd.storage.files import RealDisk
from dshd.storage.jsonl.store import open_store
from support import events
from support.daemon import DaemonProcess
from support.rpc import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PROMISE = 15
_RACES = ((15, 2), (200, 20), (2000, 100))
"""At each size: races, and how many of those for a root are between daemons with imports of their own."""
_WAIT_S = 30.0
_GOT, _BUSY = 10, 11
_CREDENTIALS = struct.Struct("3i")


LOADED = (lifecycle,)
"""What a daemon imports when it starts: here before the first fork."""


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Race for roots and for sessions; see the module."""
    end_on_signal()
    races, cold = _RACES[list(Size).index(size)]
    yield _told("daemons for a root", races, _root_races(scratch, races, cold))
    yield _told("stores for a session", races, _session_races(scratch, races, RealDisk()))
    seen = _session_races(scratch / "unlocked", 3, _Unlocked())
    yield Result(
        _PROMISE,
        "the harness itself: stores whose lock locks nothing",
        f"{len(seen)} complaints in 3 races",
        "seen",
        held=bool(seen),
    )


def _told(what: str, races: int, bad: list[str]) -> Result:
    return Result(
        _PROMISE,
        f"two {what}",
        f"{races} races, {len(bad)} without exactly one owner",
        "0",
        held=not bad,
        why=tuple(bad),
    )


def _root_races(scratch: Path, races: int, cold: int) -> list[str]:
    bad: list[str] = []
    choose = random.Random(15)  # noqa: S311  # to be replayed, not secret
    for number in range(races):
        base = scratch / f"root race {number}"
        base.mkdir()
        # two roots that are one: every second time the racers want the same socket, too
        pair = [DaemonProcess(base, prefix=ENDS_WITH_PROOF) for _ in range(2)]
        for daemon in pair:
            daemon.env["DSHD_STATE_DIR"] += str(pair.index(daemon))
        if number % 2:
            pair[1].command[-3] = str(pair[0].socket)
            pair[1].socket = pair[0].socket
        try:
            if number < cold:
                pids = [daemon.launch().pid for daemon in pair]
            else:
                pids = _fork_together([_daemon(daemon, choose.random()) for daemon in pair])
            found = _one_owner(pids, pair)
            bad += [f"race {number}: {found}"] if found else []
        finally:
            for daemon in pair:
                daemon.remove()
            shutil.rmtree(base)
    return bad


def _daemon(daemon: DaemonProcess, late: float) -> Callable[[], int]:
    def run() -> int:
        os.environ.clear()
        os.environ.update(daemon.env)
        log = os.open(daemon.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(late * 0.002)  # the races are not always lost by the same one
        return main.main(daemon.command[daemon.command.index("serve") :])

    return run


def _one_owner(pids: list[int], pair: list[DaemonProcess]) -> str:
    """Wait until one has ended, and look whether the other serves; return what is wrong."""
    ended = _wait_first_end(pids)
    if len(ended) != 1:
        for pid in pids:
            with suppress(ProcessLookupError, ChildProcessError):
                kill(pid)
        return f"{len(ended)} of the two ended"
    ((pid, code),) = ended.items()
    winner = pids[1 - pids.index(pid)]
    daemon = pair[pids.index(winner)]
    try:
        served_by = _served_by(daemon)
        if code != EXIT_CANNOT_START:
            return f"the loser ended with {code}:\n{daemon.output()}"
        if served_by != winner:
            return f"process {served_by} answers, not the winner"
    except (OSError, AssertionError) as error:
        return f"nobody answers: {error}"
    finally:
        kill(winner)
    return ""


def _wait_first_end(pids: list[int], limit_s: float = _WAIT_S) -> dict[int, int]:
    """Wait for the first to end, then shortly for the other; return who has, with its exit code."""
    fds = {os.pidfd_open(pid): pid for pid in pids}
    try:
        ready, _, _ = select.select(list(fds), [], [], limit_s)
        if len(ready) == 1:
            ready += select.select([fd for fd in fds if fd not in ready], [], [], 0.02)[0]
        return {fds[fd]: exit_code(fds[fd]) for fd in ready}
    finally:
        for fd in fds:
            os.close(fd)


def _served_by(daemon: DaemonProcess) -> int:
    """Wait until the daemon answers; return which process listens there, from the kernel."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            with Connection(daemon.socket) as one:
                one.call("daemon.status")
                raw = one.socket.getsockopt(
                    socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
                )
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)  # a real process starts by the real clock
        else:
            return int(_CREDENTIALS.unpack(raw)[0])


class _Unlocked(RealDisk):
    def lock(self, fd: int) -> None:
        pass


def _session_races(scratch: Path, races: int, disk: RealDisk) -> list[str]:
    """Race to create, to open what nobody has, and to open what a killed process had."""
    root = scratch / "session races"
    bad: list[str] = []
    for number in range(races):
        name = f"s{number // 3}"
        owned = scratch / f"owned {number}"
        want = partial((_create, _open, _open)[number % 3], disk, root, name, owned)
        pids = _fork_together([want, want], quiet=type(disk) is _Unlocked)
        # the owner stands with the lock in its hand until both have tried
        ended = _wait_first_end(pids, 1.0 if type(disk) is _Unlocked else _WAIT_S)
        loser = next(iter(ended), 0)
        if len(ended) != 1 or ended[loser] != _BUSY:
            bad.append(f"race {number}: ended with {sorted(ended.values())}")
        _wait_there(owned)  # before that the owner has not written
        for pid in pids:
            if pid not in ended:
                kill(pid)
        try:
            stored = _count(root, name)
        except DshdError as error:  # two owners may have written over each other
            bad.append(f"race {number}: {error}")
            continue
        if stored != number % 3 + 1:
            bad.append(f"race {number}: {stored} events for {number % 3 + 1} owners")
    return bad


def _wait_there(path: Path) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.002)  # a real process writes by the real clock


def _create(disk: RealDisk, root: Path, name: str, owned: Path) -> int:
    try:
        handle = open_store(root, disk=disk).create(Header(id=name, created_at=1, cwd="/w"))
        handle.append(events.stored([events.title(name)]))
    except (SessionBusyError, SessionExistsError):
        return _BUSY
    owned.touch()
    time.sleep(_WAIT_S)  # until it is killed, as the owner
    return _GOT


def _open(disk: RealDisk, root: Path, name: str, owned: Path) -> int:
    try:
        handle = open_store(root, disk=disk).open(name, "write")
    except SessionBusyError:
        return _BUSY
    handle.append(events.stored([events.title(name)], handle.next_seq))
    owned.touch()
    time.sleep(_WAIT_S)  # until it is killed, as the owner
    return _GOT


def _count(root: Path, name: str) -> int:
    with closing(open_store(root).open(name, "read")) as handle:
        return len(list(handle.read()))


def _fork_together(runs: list[Callable[[], int]], *, quiet: bool = False) -> list[int]:
    """Fork a process for each, and let them go at the same moment; each ends with the code that its call returns.

    Args:
        runs: Their calls.
        quiet: What one of them raises is due, and not told.
    """
    gate, door = os.pipe()
    pids: list[int] = []
    for run in runs:
        pid = os.fork()
        if pid == 0:
            end_with_parent()
            os.close(door)
            os.read(gate, 1)  # ends when the parent closes its side
            code = 1
            try:
                code = run()
            except BaseException:  # noqa: BLE001  # a child tells everything, and ends here
                if not quiet:
                    traceback.print_exc()
            os._exit(code)
        pids.append(pid)
    os.close(gate)
    os.close(door)
    return pids
