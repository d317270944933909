"""Promise 5: whatever call of the disk fails, once or from then on, no acknowledgement is false, and it goes on.

What is tried: each call of W, in the order of the calls, with each error. A sync that fails loses what it should have
kept, when the run is over. What is demanded beyond a good judgement: after a single error the client's second try is
taken; where the error met an append and could not be undone, the client is told that the session is sealed; a full
disk is told as one.
"""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, NamedTuple

from crash import workload
from crash.bench import Bench, Tally
from crash.door import FALLIBLE, FOR_EVER, PERSISTENT, SYNCS, Fault
from crash.playing import Account
from crash.proof import Result, Size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crash.children import End

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = PERSISTENT - SYNCS
_IN_TURN = 16
"""So many cases have a process in common: none of these faults ends one, and to begin anew is a third of the work."""
_STRIDE = {Size.QUICK: 29, Size.FULL: 1, Size.RELEASE: 1}


class Plan(NamedTuple):
    """One pass over the calls: which of them fail, with what, and for how long."""

    counted: frozenset[str]
    error: int
    sticky: bool
    half: bool = False

    @property
    def name(self) -> str:
        """What a person calls it."""
        return f"{errno.errorcode[self.error]} {'for ever' if self.sticky else 'once'}"


PLANS = [
    Plan(FALLIBLE, errno.EIO, sticky=False),
    Plan(FALLIBLE, errno.EIO, sticky=True),
    Plan(PERSISTENT, errno.ENOSPC, sticky=False, half=True),
    Plan(PERSISTENT, errno.ENOSPC, sticky=True, half=True),
    Plan(PERSISTENT, errno.EDQUOT, sticky=False),
    Plan(_READ_ONLY, errno.EROFS, sticky=False),
    Plan(_READ_ONLY, errno.EROFS, sticky=True),
]


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Fail every call of W in every way; every so-many-th when there is little time."""
    bench = Bench(scratch, workload.whole(), "zstd")
    tally, stride = Tally(), _STRIDE[size]
    for offset, plan in enumerate(PLANS):
        fail_everywhere(bench, tally, plan, range(offset % stride, 1 << 30, stride))
    part = "100 %" if stride == 1 else f"every {stride}th"
    yield Result(
        5,
        "errors at every call of the disk",
        f"{tally.tried} errors at {part} of {len(bench.every)} calls, {tally.bad} bad",
        f"{part} of the calls, 0 false acknowledgements",
        held=tally.good,
        why=tally.wrong,
    )
    sealing = Tally()
    fail_undoing(bench, sealing, stride)
    yield Result(
        5,
        "errors of an append and of undoing it",
        f"{sealing.tried} sealed, {sealing.bad} bad",
        "sealed, and opened again, 0 bad",
        held=sealing.good,
        why=sealing.wrong,
    )


def fail_everywhere(bench: Bench, tally: Tally, plan: Plan, places: range) -> None:
    """Make one pass."""
    names = [name for name in bench.every if name in plan.counted]
    wanted = range(places.start, len(names), places.step)
    last = FOR_EVER if plan.sticky else 0
    for first in range(0, len(wanted), _IN_TURN):
        faults = [
            Fault(at + 1, plan.counted, error=plan.error, last=last, half=plan.half)
            for at in wanted[first : first + _IN_TURN]
        ]
        folders = [bench.fresh(name=f"case-{number}") for number in range(len(faults))]
        ends = bench.play_in_turn(list(zip(folders, faults, strict=True)))
        for fault, folder, end in zip(faults, folders, ends, strict=True):
            case = f"{plan.name} at call {fault.at} ({names[fault.at - 1]})"
            tally.add(case, _wrong(bench, folder, fault, end))


def _wrong(bench: Bench, folder: Path, fault: Fault, end: End) -> list[str]:
    """Return what is wrong after W was played with a fault."""
    if end.code:
        return [f"the process ended with {end.code}: {end.said}"]
    if not json.loads(end.said)[0]:
        return []  # a call that is made only where the clock has moved on
    found = [*_told(folder, fault), *bench.complaints(folder)]
    bench.done(folder)
    return found


def _told(folder: Path, fault: Fault) -> Iterator[str]:
    refusals = Account(folder).refusals()
    for step, kind, text in refusals:
        if kind == "INTERNAL":
            yield f"{step} met a defect: {text}"
    appends = [kind for step, kind, _ in refusals if step in {"append", "recover"}]
    if fault.last == 0 and len(appends) > 1:
        yield f"an append was refused {len(appends)} times for one error: {appends}"
    if fault.error in _FULL and appends and set(appends) - {"NO_SPACE", "SESSION_SEALED"}:
        yield f"a full disk was told as {appends}"


def fail_undoing(bench: Bench, tally: Tally, stride: int) -> None:
    """Fail each write or sync of a batch, and the call after it, which is to undo it."""
    names = bench.names
    for at, name in enumerate(names, 1):
        if name != "fdatasync" or names[at - 2] != "write" or at % stride not in {0, 1}:
            continue
        folder = bench.fresh()
        end = bench.play(folder, Fault(at, error=errno.EIO, last=at + 1))
        kinds = [kind for _, kind, _ in Account(folder).refusals()]
        found = [f"the process ended with {end.code}: {end.said}"] if end.code else []
        if "SESSION_SEALED" not in kinds:
            found.append(f"not sealed, but refused with {kinds}")
        found += bench.complaints(folder)
        tally.add(f"EIO at call {at} (fdatasync) and the next", found)
