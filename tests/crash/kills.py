"""Promise 1: killed before, after or in the middle of any call that changes the disk, nothing acknowledged is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crash import workload
from crash.bench import Bench, Tally
from crash.children import KILLED
from crash.door import Fault, Moment
from crash.proof import Result, Size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMISED = 900
_QUICK_STRIDE = 7


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Kill W at every point, in both encodings; at every seventh when there is little time."""
    stride = _QUICK_STRIDE if size is Size.QUICK else 1
    tally, operations = Tally(), 0
    for compression in ("zstd", "none"):
        bench = Bench(scratch, workload.whole(), compression)
        operations = len(bench.names)
        kill_everywhere(bench, tally, stride)
    told = f"{tally.tried} points of {operations} operations x 2 encodings, {tally.bad} bad"
    promised = PROMISED // stride
    yield Result(
        1,
        "killed at every operation",
        told,
        f"{promised} points, 0 bad",
        held=tally.good and tally.tried >= promised and not tally.missed,
        why=tally.wrong,
    )


def kill_everywhere(bench: Bench, tally: Tally, stride: int = 1) -> None:
    """Kill the workload at points that are `stride` apart, and judge what is left."""
    for at, moment in points(bench.names)[::stride]:
        folder = bench.fresh()
        end = bench.play(folder, Fault(at=at, kill=moment))
        case = f"{bench.compression}, {moment} operation {at} ({bench.names[at - 1]})"
        if end.code != KILLED:
            tally.missed += 1
            tally.add(case, [f"the process ended with {end.code}: {end.said}"])
        else:
            tally.add(case, bench.complaints(folder))
        bench.done(folder)


def points(names: list[str]) -> list[tuple[int, Moment]]:
    """Return every point at which there is something to kill."""
    found: list[tuple[int, Moment]] = []
    for at, name in enumerate(names, 1):
        found.append((at, "before"))
        if name == "write":
            found.append((at, "half"))
        found.append((at, "after"))
    return found
