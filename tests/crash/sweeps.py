"""Power cuts after something else went wrong: after a kill and a restart, after a failed sync, on a disk that lies.

The rule that holds here: what a restart shows is acknowledged from then on, so that it must outlive the cut as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from crash.pending import COARSE
from crash.proof import Result, Size
from crash.recording import RecordingDisk
from crash.reference import ROOT, SHORT, Workload, sent
from crash.verdict import Judge
from dsh_protocol.errors import DshdError, SessionNotFoundError
from dshd.storage.jsonl.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dshd.storage.store import Access
    from support.memory_tree import Node

TRUTHS: dict[str, Callable[[bytes], bytes]] = {
    "lost": lambda data: bytes(len(data)),
    "half": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "there": bytes,
}
"""What the disk may hold of bytes whose sync failed."""
LIES = {
    "no sync does anything": {"fsync file", "fdatasync file", "fsync folder"},
    "an append's sync does nothing": {"fdatasync file"},
    "a directory's sync does nothing": {"fsync folder"},
}
_MOMENTS = 100
_AFTERWARDS = 6
"""How many syncs behind a failed one are looked at; and the end."""
STEPS = {Size.QUICK: 6, Size.FULL: 1, Size.RELEASE: 1}


Sweep = Callable[[Judge, int], "Iterator[str]"]


class KilledError(BaseException):
    """The process is gone; nothing of it may catch this."""


class DyingDisk(RecordingDisk):
    """Ends its user at one call, after half of a write where that is one, and does nothing for him any more."""

    dies_at = 0
    dies_after_failure = False
    dead = False

    def before(self, call: str, node: Node, about: object) -> None:
        failed = self.dies_after_failure and self.syncs >= max(self.fails)
        if self.dead or failed or self.operations + 1 == self.dies_at:
            self.dead = True
            raise KilledError
        super().before(call, node, about)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if not self.dead and self.operations + 1 == self.dies_at and self.dies_at % 2:
            self.append(self.writable(fd), bytes(data[: len(data) // 2]))
        return super().write(fd, data)


def work(disk: RecordingDisk) -> None:
    """Run the short workload, one session after the other."""
    workload = Workload(disk, disk.told)
    for plan in SHORT:
        workload.run(plan)


def killed(judge: Judge, at: int) -> DyingDisk:
    """Run until a call, and no further."""
    disk = DyingDisk(judge, COARSE, at)
    disk.watching, disk.dies_at = False, at
    with suppress(KilledError):
        work(disk)
    return disk


def restarted(disk: DyingDisk, access: Access) -> None:
    """Open every session, hold what is shown for acknowledged, and cut the power at any moment of that, or after it."""
    disk.let_go()
    disk.dead, disk.dies_at, disk.dies_after_failure, disk.watching = False, 0, False, True
    store = open_store(Path(ROOT), disk=disk)
    for name in disk.told.begun:
        with suppress(SessionNotFoundError), closing(store.open(name, access)) as handle:
            shown = handle.next_seq if access == "write" else sum(1 for _ in handle.read())
            disk.told.acknowledged[name] = max(shown, disk.told.acknowledged.get(name, 0))
    disk.look()


def _operations() -> tuple[int, int]:
    """Return how many calls and how many syncs the workload makes."""
    disk = DyingDisk(Judge(sent(SHORT)), COARSE, 0)
    disk.watching = False
    work(disk)
    return disk.operations, disk.syncs


def kill_sweep(judge: Judge, step: int) -> Iterator[str]:
    """Kill at every call, restart, cut."""
    for at in range(1, _operations()[0] + 1, step):
        for access in ("read", "write"):
            disk = killed(judge, at)
            yield from _restart(disk, access, f"killed at {at}, opened to {access}")


def _restart(disk: DyingDisk, access: Access, when: str) -> Iterator[str]:
    try:
        restarted(disk, access)
    except DshdError as error:
        yield f"{when}: {error}"
    yield from (f"{when}: {problem}" for problem in disk.problems)


def sync_sweep(judge: Judge, step: int) -> Iterator[str]:
    """Let every sync fail once, alone and with the one behind it; go on; cut at any moment."""
    for number in range(1, _operations()[1] + 1, step):
        for fails in ({number}, {number, number + 1}):
            disk = RecordingDisk(judge, COARSE, number)
            disk.fails, disk.watched = frozenset(fails), range(number, number + _AFTERWARDS)
            work(disk)
            disk.look()
            yield from (f"syncs {sorted(fails)} failed: {problem}" for problem in disk.problems)


def cache_sweep(judge: Judge, step: int) -> Iterator[str]:
    """Let a sync fail, kill before anything is undone, restart: is the cache believed?"""
    for number in range(1, _operations()[1] + 1, step):
        for truth, disk_has in TRUTHS.items():
            disk = DyingDisk(judge, COARSE, number)
            disk.watching, disk.fails, disk.truth = False, frozenset({number}), disk_has
            disk.dies_after_failure = True
            with suppress(KilledError):
                work(disk)
            when = f"sync {number} failed, its bytes are {truth}, killed"
            yield from _restart(disk, "write", when)


def lying(kind: frozenset[str], seed: int) -> list[str]:
    """Return what is found on a disk whose syncs do nothing, when the power is cut at some call."""
    judge = Judge(sent(SHORT))
    disk = DyingDisk(judge, COARSE, seed)
    disk.watching, disk.lies, disk.dies_at = False, kind, 30 + 40 * seed
    with suppress(KilledError):
        work(disk)
    moments = islice(disk.moments(COARSE, random.Random(seed)), _MOMENTS)  # noqa: S311  # the same ones every time
    return [problem for moment in moments for problem in judge.complaints(moment, disk.told)]


def is_loss(problem: str) -> bool:
    """Whether a complaint says that something acknowledged is not there."""
    return "acknowledged" in problem or "is gone" in problem


def prove(size: Size) -> Iterator[Result]:
    """Yield the figures of the sweeps and of the disks that lie."""
    calls, syncs = _operations()
    step = STEPS[size]
    kinds: dict[str, tuple[Sweep, int]] = {
        "a kill at every call and a restart, then a cut": (kill_sweep, calls),
        "every sync failed once, then a cut": (sync_sweep, syncs),
        "every sync failed, a kill, a restart, then a cut": (cache_sweep, syncs),
    }
    for what, (sweep, points) in kinds.items():
        judge = Judge(sent(SHORT))
        problems = tuple(sweep(judge, step))
        tried = len(range(1, points + 1, step))
        reached = f"{tried} of {points} points, {len(judge.disks)} states, {len(problems)} bad"
        promised = f"{tried} points, 0 bad"
        yield Result(3, what, reached, promised, not problems, problems)
    runs = [lying(frozenset(kind), seed) for kind in LIES.values() for seed in range(1, 4)]
    caught = sum(any(map(is_loss, found)) for found in runs)
    figure = f"{caught} of {len(runs)} runs"
    yield Result(17, "a disk that lies is told", figure, "100 %", caught == len(runs))
