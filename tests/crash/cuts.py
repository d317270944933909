"""Promise 4: the power of real file systems is cut, and everything acknowledged is there after the journal's recovery.

A writer in a process forked from this warm one makes most cuts; the others go through a real daemon and its clients.
The one rule: the writer stands still, all threads of it, when the file system is shut down. Without that fence a sync
in flight returns 0 while the file system goes down, and a correct program seems to lose its last batch.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import shutil
import struct
import time
import traceback
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crash.ledger import Ledger
from crash.processes import (
    end_on_signal,
    end_with_parent,
    kill,
    stop_whole,
)
from crash.proof import Result, Size, not_run
from crash.volumes import (
    EXT4,
    EXT4_NO_JOURNAL,
    EXT4_WRITEBACK,
    XFS,
    CannotTryError,
    Kind,
    Volume,
    open_volume,
    require_private_mounts,
)
from crash.warm import WarmDaemon
from dsh_protocol.errors import SessionNotFoundError
from dsh_protocol.events import Header
from dshd.storage.files import RealDisk
from dshd.storage.jsonl.store import open_store
from support import events
from support.rpc import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dshd.storage.files import Disk
    from support.daemon import DaemonProcess

_PROMISE = 4
_LIVES = 12
"""Cuts that one root goes through before the next begins, empty."""
_SLOT = struct.Struct("QQ")
_LATER, _STARTED_S = 0.8, 5.0  # how often a cut waits for the first acknowledgement, and how long
_CUTS = {  # by the writer and through the daemon, at each size
    EXT4: ((12, 3), (180, 20), (2000, 200)),
    EXT4_WRITEBACK: ((4, 0), (90, 10), (1000, 50)),
    EXT4_NO_JOURNAL: ((4, 0), (90, 10), (1000, 50)),
    XFS: ((12, 3), (360, 40), (4000, 400)),
}


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Cut each kind of file system; see the module."""
    end_on_signal()
    try:
        require_private_mounts("mkfs.ext4", "mkfs.xfs", "e2fsck")
    except CannotTryError as error:
        yield not_run(_PROMISE, "cuts of ext4 and XFS", "0 lost", str(error))
        return
    for kind, counts in _CUTS.items():
        by_writer, by_daemon = counts[list(Size).index(size)]
        try:
            with open_volume(kind, scratch) as volume:
                writer = _Writers(volume, RealDisk()).run(by_writer)
                daemon = _cut_daemon(volume, scratch, by_daemon)
        except CannotTryError as error:
            yield not_run(_PROMISE, f"cuts of {kind.name}", "0 lost", str(error))
            continue
        yield _judged(kind, writer, daemon)
    yield from _lying_disk_is_seen(scratch)


@dataclass
class _Tally:
    cuts: int = 0
    durable: int = 0
    bad: list[str] = field(default_factory=list[str])


def _judged(kind: Kind, writer: _Tally, daemon: _Tally) -> Result:
    bad = (*writer.bad, *daemon.bad)
    durable = writer.durable + daemon.durable
    cuts = writer.cuts + daemon.cuts
    reached = (
        f"{cuts} cuts ({daemon.cuts} of a daemon), {durable} events acknowledged, {len(bad)} bad"
    )
    return Result(
        _PROMISE, f"cuts of {kind.name}", reached, "0 bad", held=not bad and durable > 0, why=bad
    )


def _lying_disk_is_seen(scratch: Path) -> Iterator[Result]:
    """The harness's own proof: a door to the disk that does not sync must lose something here."""

    class Forgetful(RealDisk):
        def fdatasync(self, fd: int) -> None:
            pass

        def fsync(self, fd: int) -> None:
            pass

    for kind in (EXT4, EXT4_NO_JOURNAL, XFS):
        with open_volume(kind, scratch) as volume:
            tally = _Writers(volume, Forgetful()).run(6)
        yield Result(
            17,
            f"a disk that does not sync, cuts of {kind.name}",
            f"{len(tally.bad)} losses seen in {tally.cuts} cuts",
            "seen",
            held=bool(tally.bad),
        )


def _event(session: int, seq: int) -> events.Event:
    """The event that a session has at a seq, and no other."""
    return events.title(f"{session}/{seq} " + "x" * (seq * 37 % 700))


class _Writers:
    """Processes that write until they are stopped, each going on where the last one was cut off."""

    def __init__(self, volume: Volume, disk: Disk) -> None:
        self._volume = volume
        self._disk = disk
        self._roots = 0
        self._choose = random.Random(4)  # noqa: S311  # to be replayed, not secret
        self._promised = mmap.mmap(-1, _SLOT.size * _LIVES)
        self._failure = mmap.mmap(-1, 4096)

    @property
    def _root(self) -> Path:
        return self._volume.path / f"root {self._roots}"

    def run(self, cuts: int) -> _Tally:
        """Cut so many times."""
        tally = _Tally()
        for number in range(cuts):
            life = number % _LIVES
            if life == 0:
                tally.durable += self._acknowledged()
                self._begin_anew()
            self._cut(life)
            tally.cuts += 1
            bad = self._problems(life)
            if bad:
                tally.bad.append(f"cut {number}: {bad[0]}")
                self._begin_anew()
        tally.durable += self._acknowledged()
        return tally

    def _slot(self, session: int) -> tuple[int, int]:
        """How many events of a session are acknowledged, and how many may have been written."""
        acknowledged, begun = _SLOT.unpack_from(self._promised, session * _SLOT.size)
        return acknowledged, begun

    def _acknowledged(self) -> int:
        return sum(self._slot(one)[0] for one in range(_LIVES))

    def _begin_anew(self) -> None:
        # under a new name: a cut may bring back what was removed; and not before that is on the device: without a
        # journal its inodes are used anew while names that were removed only in memory still lead to them
        shutil.rmtree(self._root, ignore_errors=True)
        self._volume.sync()
        self._roots += 1
        self._promised[:] = bytes(len(self._promised))
        self._failure[:] = bytes(len(self._failure))

    def _cut(self, life: int) -> None:
        gc.freeze()
        before = self._acknowledged()
        pid = os.fork()
        if pid == 0:
            self._write(life)
        if self._choose.random() < _LATER:
            deadline = time.monotonic() + _STARTED_S
            while self._acknowledged() == before and time.monotonic() < deadline:
                time.sleep(0.001)  # a real process writes by the real clock
        time.sleep(self._choose.uniform(0.0, 0.04))  # where it is then, is chance
        stop_whole(pid)
        self._volume.shut_down()
        kill(pid)
        self._volume.remount()

    def _write(self, life: int) -> None:
        """Be the process that writes."""
        end_with_parent()
        try:
            store = open_store(self._root, disk=self._disk)
            choose = random.Random(life)  # noqa: S311  # to be replayed, not secret
            handles = {
                one: store.open(str(one), "write")
                for one in {0, life // 2, life - 1} - {-1, life}
                if self._slot(one)[0]
            }
            header = Header(id=str(life), created_at=1, cwd="/w")
            if not self._slot(life)[1]:
                handles[life] = store.create(header)
            while True:
                session = choose.choice(list(handles))
                handle = handles[session]
                at, count = handle.next_seq, choose.randrange(1, 5)
                acknowledged = self._slot(session)[0]
                assert at >= acknowledged, f"{session}: opened at {at}, acknowledged {acknowledged}"
                _SLOT.pack_into(self._promised, session * _SLOT.size, at, at + count)
                batch = events.stored((_event(session, at + n) for n in range(count)), at)
                handle.append(batch)
                _SLOT.pack_into(self._promised, session * _SLOT.size, at + count, at + count)
        except BaseException:  # noqa: BLE001  # a child tells everything, and ends here
            self._failure[:] = traceback.format_exc()[-4000:].encode()[-4096:].ljust(4096, b"\0")
        os._exit(1)

    def _problems(self, life: int) -> list[str]:
        failure = self._failure[:].rstrip(b"\0").decode(errors="replace").strip()
        if failure:
            return [f"the writer failed: {failure.rpartition(chr(10))[2]}"]
        store = open_store(self._root)
        bad: list[str] = []
        for session in range(life + 1):
            acknowledged, begun = self._slot(session)
            if not begun:
                continue
            try:
                with closing(store.open(str(session), "read")) as handle:
                    stored = list(handle.read())
            except SessionNotFoundError:
                stored = []
            except Exception as error:  # noqa: BLE001  # whatever it is, a log that does not open is bad
                bad.append(f"session {session} does not open: {error}")
                continue
            if not acknowledged <= len(stored) <= begun:
                bad.append(f"session {session}: {len(stored)} events, acknowledged {acknowledged}")
            if any(event["data"] != _event(session, n)["data"] for n, event in enumerate(stored)):
                bad.append(f"session {session} holds an event that was not written")
        return bad


def _cut_daemon(volume: Volume, scratch: Path, cuts: int) -> _Tally:
    """Cut a real daemon under load, and start it again, so many times."""
    root = volume.path / "sessions"
    daemon = WarmDaemon(scratch, flags=("--root", str(root)))
    choose = random.Random(5)  # noqa: S311  # to be replayed, not secret
    ledgers: list[Ledger] = []
    tally = _Tally()
    try:
        for number in range(cuts):
            ledgers.append(Ledger(f"d{number}"))
            busy = [ledgers[-1], choose.choice(ledgers)][: 1 + (number > 0)]
            if number == 0:
                daemon.start()
            connections = [Connection(daemon.socket, name=one.session_id) for one in set(busy)]
            pairs = list(zip(set(busy), connections, strict=True))
            for ledger, one in pairs:
                ledger.begin(one)
            until = time.monotonic() + choose.uniform(0.01, 0.06)
            while time.monotonic() < until:
                for ledger, one in pairs:
                    ledger.chunk(one, f"{ledger.session_id} {choose.random()}")
                    if ledger.waiting > 6:  # some stay on their way
                        ledger.collect(one)
            stop_whole(daemon.pid)
            for ledger, one in pairs:
                ledger.collect_arrived(one)
                one.close()
            volume.shut_down()
            daemon.kill()
            volume.remount()
            tally.cuts += 1
            tally.bad += _reread(daemon, ledgers, number)
        tally.durable = sum(ledger.durable for ledger in ledgers)
    finally:
        daemon.remove()
    return tally


def _reread(daemon: DaemonProcess, ledgers: list[Ledger], number: int) -> list[str]:
    """Start the daemon again and read everything; it goes on running, until the next cut."""
    daemon.start()
    with Connection(daemon.socket, name="judge") as one:
        problems = [bad for ledger in ledgers for bad in ledger.problems(one)]
    return [f"daemon cut {number}: {bad}" for bad in problems[:3]]
