"""Promise 2: killed, and killed again at every call of the recovery that follows, nothing acknowledged is lost."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from crash import workload
from crash.bench import Bench, Tally
from crash.children import KILLED
from crash.door import Fault, Moment
from crash.kills import points
from crash.proof import Result, Size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PROMISED = {Size.QUICK: 120, Size.FULL: 2000, Size.RELEASE: 4000}
_STRIDES = {Size.QUICK: (6, 5), Size.FULL: (2, 1), Size.RELEASE: (1, 1)}


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Kill W-small at its points, and at each the recovery at its own."""
    first, second = _STRIDES[size]
    tally = Tally()
    bench = Bench(scratch, workload.small(), "zstd")
    kill_twice(bench, tally, first, second)
    promised = _PROMISED[size]
    yield Result(
        2,
        "killed, and again while recovering",
        f"{tally.tried} pairs, {tally.bad} bad",
        f"{promised} pairs, 0 bad",
        held=tally.good and tally.tried >= promised and not tally.missed,
        why=tally.wrong,
    )


def kill_twice(bench: Bench, tally: Tally, first: int, second: int) -> None:
    """Kill at every `first`-th point of the workload, and there at every `second`-th of the recovery.

    Dead before a call is what dead after the one before is, so each pair is tried but once.
    """
    dead = bench.scratch / "dead"
    ends: list[tuple[int, Moment]] = [
        (at, moment) for at, moment in points(bench.names) if moment != "before"
    ]
    for turn, (at, moment) in enumerate(ends[::first]):
        folder = bench.fresh()
        if bench.play(folder, Fault(at=at, kill=moment)).code != KILLED:
            tally.missed += 1
            continue
        shutil.rmtree(dead, ignore_errors=True)
        folder.rename(dead)
        case = f"{moment} operation {at} ({bench.names[at - 1]})"
        later = calls_of_recovery(bench, dead)
        for again, how in range_of(later, turn, second):
            folder = bench.fresh(dead)
            end = bench.recover(folder, Fault(at=again, kill=how))
            told = f"{case}, then {how} operation {again} of the recovery"
            if end.code != KILLED:
                tally.missed += 1
                tally.add(told, [f"the process ended with {end.code}: {end.said}"])
            else:
                tally.add(told, bench.complaints(folder))
    shutil.rmtree(dead, ignore_errors=True)


def calls_of_recovery(bench: Bench, dead: Path) -> int:
    """Return how many calls change the disk when a recovery is left in peace."""
    end = bench.recover(bench.fresh(dead))
    if end.code:
        raise RuntimeError(f"a recovery that is left in peace ended with {end.code}: {end.said}")
    return int(json.loads(end.said)[1])


def range_of(calls: int, turn: int, stride: int) -> list[tuple[int, Moment]]:
    """Return when to kill a recovery: after its calls, and in the middle of every other write."""
    moments: tuple[Moment, Moment] = ("after", "half")
    return [(at, moments[(at + turn) % 2]) for at in range(1 + turn % stride, calls + 1, stride)]
