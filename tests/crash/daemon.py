"""Promises 1, 2, 5, 12 and 34 once more, through the real `dshd serve`: its process, its socket, its threads.

The one rule: points are spread over the whole workload. With threads a call's number may mean another call in another
run, so what is demanded is that the fault struck, not where.
"""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

from crash import judging, workload
from crash.bench import Tally
from crash.children import KILLED
from crash.clocks import CLOCKS
from crash.door import FALLIBLE, FOR_EVER, PERSISTENT, Fault, Moment
from crash.planted import BUGS
from crash.playing import Account
from crash.proof import Result, Size
from crash.served import Wish
from crash.showing import shown
from crash.wire import Served

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from crash.judging import Reference
    from crash.workload import Step

_KILLS = {Size.QUICK: 5, Size.FULL: 100, Size.RELEASE: 300}
_PAIRS = {Size.QUICK: 3, Size.FULL: 100, Size.RELEASE: 300}
_MOMENTS: tuple[Moment, ...] = ("before", "after", "half")
_MIDDLE = 0.4
NOTHING = Wish()
_RECOVERY = 24
_COLD_EVERY = 10
"""Every tenth daemon is started as people start one; the others have their imports from this process."""
_TRIES = 7


class Yard:
    """Real daemons that play one workload."""

    def __init__(self, scratch: Path, steps: Sequence[Step]) -> None:
        self.scratch = scratch
        self.steps = steps
        self.cases = 0
        served = self.served()
        code = served.play(steps)
        refusals = Account(served.folder).refusals()
        if code or refusals:
            raise RuntimeError(f"the undisturbed daemon ended with {code}, and refused {refusals}")
        self.names: list[str] = json.loads((served.folder / "told").read_text("utf-8"))[1]
        self.reference: Reference = judging.reference_of(served.folder / "root")
        served.remove()

    def served(self, wish: Wish = NOTHING) -> Served:
        """Return a daemon on a new root."""
        self.cases += 1
        folder = self.scratch / str(self.cases)
        folder.mkdir(parents=True)
        return Served(folder, wish, warm=self.cases % _COLD_EVERY != 1)

    def judged(self, served: Served) -> list[str]:
        """Return what is wrong with what a daemon left, and with what it said."""
        found = judging.complaints(served.folder, self.reference)
        told = [text for _, _, text in Account(served.folder).refusals()]
        if any(workload.CANARY in text for text in (*told, served.daemon.output())):
            found.append("words of a session stand in the log or in a refusal")
        served.remove()
        return found

    @property
    def persistent(self) -> int:
        """How many calls change the disk."""
        return sum(name in PERSISTENT for name in self.names)


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Kill, kill twice, fail and mislead real daemons."""
    whole = Yard(scratch / "whole", workload.whole())
    small = Yard(scratch / "small", workload.small())
    wanted = _KILLS[size]
    killed = kills(whole, wanted)
    yield _result(1, "the real daemon killed", killed, f"{wanted} kills, 0 bad", wanted)
    wanted = _PAIRS[size]
    twice = pairs(small, wanted)
    yield _result(2, "the real daemon killed twice", twice, f"{wanted} pairs, 0 bad", wanted)
    failed = errors(small, every=6 if size is Size.QUICK else 1)
    kinds = "every kind of call and error" if size is not Size.QUICK else "every sixth kind"
    yield _result(5, "errors in the real daemon", failed, f"{kinds}, 0 bad", 1)
    jumped = clocks(small)
    yield _result(12, "the real daemon under wrong clocks", jumped, "5 plans, W as ever", 5)
    yield planted(small)


def planted(yard: Yard) -> Result:
    """Show each planted bug in a daemon, and do the same to daemons without one."""
    good, bad = shown(yard, planted=False), shown(yard, planted=True)
    return Result(
        34,
        "bugs planted in the real daemon",
        f"{bad.bad} of {bad.tried} caught; {good.bad} alarms without them",
        "10 of 10, 0 alarms",
        held=good.good and bad.bad == bad.tried == len(BUGS) >= 10,
        why=(*good.wrong, *bad.wrong),
    )


def _result(promise: int, what: str, tally: Tally, promised: str, least: int) -> Result:
    reached = f"{tally.tried} struck, {tally.bad} bad, {tally.missed} tries struck nothing"
    held = tally.good and tally.tried >= least
    return Result(promise, what, reached, promised, held=held, why=tally.wrong)


def kills(yard: Yard, wanted: int) -> Tally:
    """Kill a daemon at points that are spread over the workload, start it again, and let it go on."""
    tally = Tally()
    for case in range(wanted):
        at = 1 + case * (yard.persistent - 1) // max(1, wanted - 1)
        moment = _MOMENTS[case % 3]
        for _ in range(_TRIES):
            served = yard.served()
            struck = served.play(yard.steps, Fault(at, kill=moment)) == KILLED
            code = served.go_on()
            found = [f"the daemon started again ended with {code}"] if code else []
            count = tally.add if struck else tally.miss
            count(f"{moment} operation {at}", found + yard.judged(served))
            if struck:
                break
            at = max(1, at - 5)  # this run had fewer calls
    return tally


def pairs(yard: Yard, wanted: int) -> Tally:
    """Kill a daemon, and the one that is started after it, too."""
    tally = Tally()
    for case in range(wanted):
        at = 8 + case * (yard.persistent - 9) // max(1, wanted - 1)
        again = 1 + case * 7 % _RECOVERY
        for _ in range(_TRIES):
            served = yard.served()
            first = served.play(yard.steps, Fault(at, kill=_MOMENTS[case % 3]))
            second = served.go_on(Fault(again, kill=_MOMENTS[1 + case % 2]))
            struck = (first, second) == (KILLED, KILLED)
            count = tally.add if struck else tally.miss
            count(f"operation {at}, then {again}", yard.judged(served))
            if struck:
                break
            if first != KILLED:
                at = max(8, at - 5)  # this run had fewer calls
            elif again == 1:
                at += 10  # there was nothing to recover yet
            again = max(1, again // 2)  # this recovery had fewer, too
    return tally


def errors(yard: Yard, every: int) -> Tally:
    """Let each kind of call fail in the middle of the workload, with each error, once and from then on."""
    tally = Tally()
    kinds = sorted(FALLIBLE & set(yard.names))
    numbers = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    plans = [(kind, number, last) for kind in kinds for number in numbers for last in (0, FOR_EVER)]
    for kind, number, last in plans[::every]:
        if number in {errno.EDQUOT, errno.EROFS} and kind not in PERSISTENT:
            continue
        middle = 1 + int(yard.names.count(kind) * _MIDDLE)
        for at in sorted({1, middle}, reverse=True):  # the first one is made in every run
            served = yard.served()
            code = served.play(yard.steps, Fault(at, frozenset({kind}), error=number, last=last))
            struck = json.loads((served.folder / "told").read_text("utf-8"))[0] if code >= 0 else 0
            found = [] if code in {0, 1} else [f"the daemon ended with {code}"]
            case = f"{errno.errorcode[number]} at {kind} {at} {'for ever' if last else 'once'}"
            count = tally.add if struck else tally.miss
            count(case, found + yard.judged(served))
            if struck:
                break
    return tally


def clocks(yard: Yard) -> Tally:
    """Let the wall clock jump under a daemon: it must do what it always does."""
    tally = Tally()
    for clock in CLOCKS:
        served = yard.served(Wish(clock=clock))
        code = served.play(yard.steps)
        found = [f"the daemon ended with {code}"] if code else []
        found += [f"refused: {refusal}" for refusal in Account(served.folder).refusals()]
        if judging.reference_of(served.folder / "root") != yard.reference:
            found.append("other events")
        tally.add(clock, found + yard.judged(served))
    return tally
