"""Promises 3, 8 and 17: the power is cut at any moment, on every disk that can be left.

The rule that holds here: a state counts once, however often it comes up, and each is opened and gone on with by the
store itself. How a disk can be left is `crash.model`'s; what is right, `crash.verdict`'s.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from crash import sweeps
from crash.pending import Grain
from crash.proof import Result, Size
from crash.recording import RecordingDisk, run
from crash.reference import WHOLE, sent
from crash.verdict import Judge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GRAINS = {
    Size.QUICK: Grain(cuts=1, names=2),
    Size.FULL: Grain(cuts=40, names=16),
    Size.RELEASE: Grain(cuts=300, mixtures=100),
}
MORE = Grain(cuts=20, names=24, mixtures=300)
"""Of every further run, in which the sessions take other turns."""
WANTED = {Size.QUICK: 5_000, Size.FULL: 100_000, Size.RELEASE: 1_000_000}
OPERATIONS = 300


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Yield the figures of the workload, of the sweeps and of disks that lie."""
    yield from _whole(size)
    yield from sweeps.prove(size)


def _whole(size: Size) -> Iterator[Result]:
    wanted = WANTED[size]
    judge, problems, operations, seed = Judge(sent(WHOLE)), list[str](), 0, 0
    for seed in count(1):
        grain = GRAINS[size] if seed == 1 else MORE
        disk = RecordingDisk(judge, grain, seed)
        if seed > 1:
            disk.most = wanted
        run(WHOLE, disk)
        problems += [f"seed {seed}: {problem}" for problem in disk.problems]
        operations = operations or disk.operations
        if len(judge.disks) >= wanted or problems:
            break
    figure = (
        f"{len(judge.disks)} states of {operations} operations ({judge.directories} directories of a "
        f"session, seeds 1 to {seed}), {len(problems)} bad"
    )
    held = not problems and len(judge.disks) >= wanted and operations >= OPERATIONS
    promised = f"{wanted} states of {OPERATIONS} operations, 0 bad"
    yield Result(3, "power cut at any moment", figure, promised, held, tuple(problems))
    half = [one for one in problems if "first batch" in one or "is gone" in one]
    figure = f"{judge.missing} directories without a session, the others whole, {len(half)} bad"
    held = bool(judge.missing) and not half
    yield Result(8, "first materialisation", figure, "all or nothing, in all", held, tuple(half))
