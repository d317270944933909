"""Promises 6 and 7: after the disk said EIO, what is served is what the disk holds.

A real file system lies on a disk that fails the write of a frame. The kernel then drops the page or keeps it as if it
were clean, the next sync says 0, and a scan through the page cache shows bytes that are nowhere else. The one rule:
what the restarted daemon serves is compared with what it serves after the file system was mounted anew.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from crash.blockfile import BlockFile, open_block_file
from crash.ledger import Ledger
from crash.processes import end_on_signal
from crash.proof import Result, Size, not_run
from crash.volumes import (
    EXT4_1K,
    EXT4_4K,
    XFS,
    CannotTryError,
    Kind,
    Volume,
    open_volume,
    require_private_mounts,
)
from crash.warm import WarmDaemon
from support.rpc import CallRefusedError, Connection
from support.verdicts import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.daemon import DaemonProcess

_PROMISE = 6
_KINDS = (EXT4_1K, EXT4_4K, XFS)
_RUNS = (2, 20, 200)
_FRAME = bytes.fromhex("28b52ffd")
_FOR_EVER = 1 << 30
_REWRITES = "pwrite64,pwritev,pwritev2,mmap,io_uring_setup"


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Fail the write of a frame on each kind of file system; see the module."""
    end_on_signal()
    runs = _RUNS[list(Size).index(size)]
    what = "served after an EIO and a restart"
    try:
        require_private_mounts("mkfs.ext4", "mkfs.xfs")
    except CannotTryError as error:
        yield not_run(_PROMISE, what, f"{runs} of {runs}", str(error))
        return
    for kind in _KINDS:
        bad: list[str] = []
        good = 0
        try:
            for number in range(runs):
                found = _run(kind, scratch, number)
                good += not found
                bad += [f"run {number}: {one}" for one in found[:2]]
        except CannotTryError as error:
            yield not_run(_PROMISE, f"{what}, {kind.name}", f"{runs} of {runs}", str(error))
            continue
        yield Result(
            _PROMISE,
            f"{what}, {kind.name}",
            f"equals the disk in {good} of {runs}",
            f"{runs} of {runs}",
            held=good == runs,
            why=tuple(bad),
        )


def _run(kind: Kind, scratch: Path, number: int) -> list[str]:
    """One fresh file system, one failure. The number says how it fails and how the daemon ends.

    Every second time all writes of frames fail until the daemon has ended, not one; and every second pair of times
    the daemon is killed by the disk before it hears of the error, so that it can take nothing back.
    """
    sticky, killed, healthy = bool(number & 1), bool(number & 2), number % 5 + 1
    with (
        open_block_file(scratch, kind.mib) as disk,
        open_volume(kind, scratch, disk.path) as volume,
    ):
        root = volume.path / "sessions"
        daemon = WarmDaemon(scratch, flags=("--root", str(root)))
        try:
            return _Scenario(daemon, disk, volume).run(healthy, sticky=sticky, killed=killed)
        finally:
            disk.heal()
            daemon.remove()
            shutil.rmtree(daemon.state_dir, ignore_errors=True)


class _Scenario:
    def __init__(self, daemon: DaemonProcess, disk: BlockFile, volume: Volume) -> None:
        self._daemon = daemon
        self._disk = disk
        self._volume = volume
        self._ledgers = [Ledger("a"), Ledger("b")]

    def run(self, healthy: int, *, sticky: bool, killed: bool) -> list[str]:
        """Go through it; return what is wrong."""
        self._daemon.start()
        with Connection(self._daemon.socket, name="writer") as one:
            for ledger in self._ledgers:
                ledger.begin(one)
                for _ in range(healthy):
                    self._write(one, ledger)
            victim = self._daemon.pid if killed else 0
            self._disk.fail(_FRAME, _FOR_EVER if sticky else 1, victim=victim)
            with suppress(ConnectionRefusedError, BrokenPipeError):
                self._fail(one, killed=killed)
        if self._disk.failed() == 0:
            return ["the disk met no write of a frame, so nothing was tried"]
        self._daemon.kill()
        self._disk.heal()
        served = self._served()
        problems = self._problems(served)
        if served != self._after_remount():
            problems.append(f"served {_lengths(served)}, the disk holds less or other events")
        return problems or self._goes_on()

    def _fail(self, one: Connection, *, killed: bool) -> None:
        """Write into the failing disk; what is acknowledged all the same is noted."""
        first = self._ledgers[0]
        for ledger in (first, first, self._ledgers[1], first):
            try:
                self._write(one, ledger)
            except CallRefusedError:
                ledger.forget_waiting()
            if killed:
                return

    def _write(self, one: Connection, ledger: Ledger) -> None:
        # more than a block and of no pattern, so that no compression gets it into one that is there already
        ledger.chunk(one, os.urandom(3000).hex())
        ledger.collect(one)

    def _served(self) -> dict[str, Any]:
        self._daemon.start()
        with Connection(self._daemon.socket, name="judge") as one:
            # opening for writing acknowledges what it finds: `nextSeq` is durable from then on
            for ledger in self._ledgers:
                opened = one.call("session.open", id=ledger.session_id, access="write")
                ledger.durable = max(ledger.durable, opened["session"]["durableSeq"])
            return {ledger.session_id: read_all(one, ledger.session_id) for ledger in self._ledgers}

    def _after_remount(self) -> dict[str, Any]:
        self._daemon.kill()
        self._volume.remount()
        return self._served()

    def _problems(self, served: dict[str, Any]) -> list[str]:
        found = [ledger.compare(served[ledger.session_id]) for ledger in self._ledgers]
        return [one for some in found for one in some]

    def _goes_on(self) -> list[str]:
        """Write again, and see that the disk has that, too."""
        with Connection(self._daemon.socket, name="the next") as one:
            for ledger in self._ledgers:
                ledger.begin(one)
                self._write(one, ledger)
        return self._problems(self._after_remount())


def _lengths(served: dict[str, Any]) -> str:
    return ", ".join(f"{len(stored)} events of {name}" for name, stored in served.items())
