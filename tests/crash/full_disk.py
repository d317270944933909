"""Promise 13: a full disk is an ordinary state. What does not fit is refused, everything else goes on.

A real daemon's root lies on a file system that is filled to the last page, or to a few pages less than a frame needs,
and freed again, many times over, without a restart. The one rule: a refused batch has left nothing in the log, byte for
byte, and the same call succeeds as soon as there is room.
"""

from __future__ import annotations

import errno
import os
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crash.ledger import Ledger
from crash.processes import ENDS_WITH_PROOF, end_on_signal
from crash.proof import Result, Size, not_run
from crash.volumes import (
    EXT4,
    MIB,
    XFS,
    CannotTryError,
    Kind,
    mount_tmpfs,
    open_volume,
    require_private_mounts,
    unmount,
)
from support.daemon import DaemonProcess
from support.rpc import CallRefusedError, Connection

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

_PROMISE = 13
_CYCLES = {None: (20, 380, 5000), EXT4: (5, 80, 1000), XFS: (5, 60, 1000)}
_PROMISED = 500
_TMPFS_KIB = 24 * 1024
_CYCLES_A_SESSION = 20
_PAGE = 4096


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Fill and free each file system; see the module."""
    end_on_signal()
    try:
        require_private_mounts("mkfs.ext4", "mkfs.xfs", "setpriv")
    except CannotTryError as error:
        yield not_run(_PROMISE, "a disk that is filled and freed", "0 lost", str(error))
        return
    done, wanted = 0, 0
    for kind, counts in _CYCLES.items():
        name = "tmpfs" if kind is None else kind.name
        cycles = counts[list(Size).index(size)]
        wanted += cycles
        what = f"{name} filled and freed"
        try:
            with _disk(kind, scratch) as where:
                proof = _Filled(where, scratch)
                proof.run(cycles)
        except CannotTryError as error:
            yield not_run(_PROMISE, what, "0 lost", str(error))
            continue
        reached = f"{cycles} cycles, {proof.refused} refusals, {proof.events} events, {len(proof.bad)} bad"
        done += min(proof.refused, cycles)
        held = not proof.bad and proof.refused >= cycles
        yield Result(_PROMISE, what, reached, "0 bad, 0 restarts", held=held, why=tuple(proof.bad))
    promised = min(wanted, _PROMISED)
    yield Result(_PROMISE, "cycles on all of them", f"{done}", f"{promised}", held=done >= promised)


@contextmanager
def _disk(kind: Kind | None, scratch: Path) -> Generator[Path]:
    if kind is None:
        where = scratch / "tmpfs"
        mount_tmpfs(where, _TMPFS_KIB)
        try:
            yield where
        finally:
            unmount(where)
        return
    with open_volume(kind, scratch) as volume:
        yield volume.path


class _Filled:
    """One daemon over one file system."""

    def __init__(self, where: Path, scratch: Path) -> None:
        self._where = where
        self._filler = where / "filler"
        self._root = where / "sessions"
        self._choose = random.Random(13)  # noqa: S311  # to be replayed, not secret
        self._daemon = DaemonProcess(
            scratch, flags=("--root", str(self._root)), prefix=ENDS_WITH_PROOF
        )
        self._ledgers: list[Ledger] = []
        self.bad: list[str] = []
        self.refused = 0
        self.events = 0

    def run(self, cycles: int) -> None:
        """Fill and free so many times, then start the daemon anew and read everything."""
        try:
            self._daemon.start()
            pid = self._daemon.pid
            for first in range(0, cycles, _CYCLES_A_SESSION):
                self._one_session(range(first, min(first + _CYCLES_A_SESSION, cycles)))
            if self._daemon.process.poll() is not None or self._daemon.pid != pid:
                self.bad.append("the daemon has ended")
            self._daemon.kill()
            self._daemon.start()
            with Connection(self._daemon.socket, name="judge") as one:
                for ledger in self._ledgers:
                    self.bad += ledger.problems(one)
                    self.events += len(ledger.sent)
        finally:
            self._daemon.remove()

    def _one_session(self, cycles: range) -> None:
        """Every cycle in one log; a second session is created while there is no room."""
        with (
            Connection(self._daemon.socket, name="writer") as one,
            Connection(self._daemon.socket, name="reader") as other,
        ):
            ledger = Ledger(f"s{cycles[0]}")
            ledger.begin(one)
            self._ledgers.append(ledger)
            for number in cycles:
                self._cycle(number, ledger, one, other)
            one.call("session.flush", **ledger.handle)

    def _cycle(self, number: int, ledger: Ledger, one: Connection, other: Connection) -> None:
        (log,) = self._root.glob(f"**/{ledger.session_id}/session.jsonl*")
        before = log.read_bytes()
        # none free, or less than the frame needs: its write is then a short one
        self._fill(pages=self._choose.choice((0, 0, 1, 2)))
        text = self._choose.randbytes(24 * 1024).hex()
        ledger.chunk(one, text)
        if self._is_refused(number, ledger, one):
            if log.read_bytes() != before:
                self.bad.append(f"cycle {number}: a refused batch has changed the log")
            if number % 5 == 0:
                self._flush_again(number, ledger, one)
            self._look(number, ledger, other)
        self._filler.unlink()
        flushed = one.call("session.flush", **ledger.handle)
        if flushed["durableSeq"] != len(ledger.sent):
            self.bad.append(f"cycle {number}: {flushed} after {len(ledger.sent)} events")
        ledger.durable = len(ledger.sent)

    def _is_refused(self, number: int, ledger: Ledger, one: Connection) -> bool:
        try:
            ledger.collect(one)
        except CallRefusedError as refused:
            ledger.forget_waiting()
            if refused.kind != "NO_SPACE" or refused.facts["retryable"] is not True:
                self.bad.append(f"cycle {number}: refused with {refused}")
            self.refused += 1
            return True
        self.bad.append(f"cycle {number}: there was room, so nothing was tried")
        return False

    def _flush_again(self, number: int, ledger: Ledger, one: Connection) -> None:
        """Try once more while there is no room: that changes nothing either."""
        try:
            one.call("session.flush", **ledger.handle)
        except CallRefusedError as refused:
            if refused.kind != "NO_SPACE":
                self.bad.append(f"cycle {number}: a flush was refused with {refused}")
        else:
            self.bad.append(f"cycle {number}: a flush succeeded on a full disk")

    def _look(self, number: int, ledger: Ledger, other: Connection) -> None:
        """Read and list while there is no room."""
        other.call("session.read", id=ledger.session_id, offset=0, length=4)
        listed = other.call("session.list", limit=1000)["sessions"]
        if len(listed) != len(self._ledgers):
            self.bad.append(f"cycle {number}: {len(listed)} of {len(self._ledgers)} are listed")

    def _fill(self, pages: int) -> None:
        """Leave so many pages free."""
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for piece in (4 * MIB, MIB // 4, 64 * 1024):
                _take_all(fd, piece)
            _write_all(fd)
            size = os.fstat(fd).st_size
            os.ftruncate(fd, max(size - pages * _PAGE, 0))
        finally:
            os.close(fd)


def _take_all(fd: int, piece: int) -> None:
    while True:
        try:
            os.posix_fallocate(fd, os.fstat(fd).st_size, piece)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return


def _write_all(fd: int) -> None:
    while True:
        try:
            os.write(fd, bytes(_PAGE))
            os.fdatasync(fd)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return
