"""Promise 34: each of ten planted bugs is caught by the proof that is named here, and the good product by none.

The one rule: the very proofs of this folder are run on the planted product, only on fewer points.
"""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from crash import bitflips, children, errors, kills, mending, sweeps, tame, workload
from crash.bench import Bench, Tally
from crash.door import PERSISTENT, Fault
from crash.pending import Grain
from crash.planted import BUGS
from crash.proof import Result, Size
from crash.recording import RecordingDisk
from crash.reference import SHORT, sent
from crash.verdict import Judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_LIMIT_S = 400.0


def killed(scratch: Path) -> list[str]:
    """Kill W-small at every fifth point. Proof `kills`."""
    tally = Tally()
    kills.kill_everywhere(Bench(scratch, workload.small(), "zstd"), tally, 5)
    return list(tally.wrong)


def full(scratch: Path) -> list[str]:
    """Fill the disk at every seventh call, in the middle of a write. Proof `errors`."""
    tally = Tally()
    plan = errors.Plan(PERSISTENT, errno.ENOSPC, sticky=False, half=True)
    errors.fail_everywhere(
        Bench(scratch, workload.small(), "zstd"), tally, plan, range(0, 1 << 30, 7)
    )
    return list(tally.wrong)


def failed(scratch: Path) -> list[str]:
    """Fail every fourth sync of a batch once with EIO. Proof `errors`."""
    tally = Tally()
    plan = errors.Plan(frozenset({"fdatasync"}), errno.EIO, sticky=False)
    errors.fail_everywhere(
        Bench(scratch, workload.small(), "zstd"), tally, plan, range(0, 1 << 30, 4)
    )
    return list(tally.wrong)


def shortened(scratch: Path) -> list[str]:
    """Cut every write short. Proof `tame`."""
    bench = Bench(scratch, workload.small(), "zstd")
    folder = bench.fresh()
    end = bench.play(folder, Fault(most=7))
    return tame.unchanged(bench, folder, end.code, end.said)


def cut(_scratch: Path) -> list[str]:
    """Cut the power at any moment. Proof `states`."""
    disk = RecordingDisk(Judge(sent(SHORT)), Grain(cuts=2, names=4), 1)
    sweeps.work(disk)
    disk.look()
    return disk.problems


def cut_after_a_kill(_scratch: Path) -> Iterable[str]:
    """Kill, restart, acknowledge what is shown, cut the power. Proof `states`."""
    return sweeps.kill_sweep(Judge(sent(SHORT)), 20)


def mended(scratch: Path) -> list[str]:
    """Kill the mending of a torn log at every call. Proof `mending`."""
    tally = Tally()
    torn = mending.Torn("zstd", mending.TAILS["half of a frame"], kept=True)
    mending.kill_mending(scratch, torn, "half of a frame", tally, twice=False)
    return list(tally.wrong)


def flipped(_scratch: Path) -> Iterator[str]:
    """Flip bits of the last batch. Proof `bitflips`."""
    log = bitflips.memory_log("zstd")
    for bit in range(log.last * 8, len(log.content) * 8, 61):
        try:
            bitflips.flip(log, bit)
        except bitflips.WrongError as error:
            yield f"bit {bit}: {error}"


CAUGHT_BY: dict[str, tuple[Callable[[Path], Iterable[str]], ...]] = {
    "ack-first": (killed,),
    "no-sync": (cut,),
    "no-directory-sync": (cut,),
    "no-truncate": (mended,),
    "no-checksum": (flipped,),
    "no-sync-at-open": (cut_after_a_kill,),
    "short-write-ignored": (shortened,),
    "kept-tail": (full,),
    "retried-sync": (failed,),
    "ignored-sync": (failed,),
}


@dataclass(frozen=True)
class Verdict:
    """What a proof said of a product: nothing where it found nothing."""

    bug: str
    proof: str
    first: str

    @property
    def caught(self) -> bool:
        """Whether it found something."""
        return bool(self.first)


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Try every proof on the good product, and each bug with the proofs that are named."""
    proofs = list(dict.fromkeys(proof for named in CAUGHT_BY.values() for proof in named))
    good = [judged("", proof, scratch) for proof in proofs]
    alarms = tuple(f"{one.proof}: {one.first}" for one in good if one.caught)
    verdicts = [judged(bug, proof, scratch) for bug in BUGS for proof in CAUGHT_BY[bug]]
    missed = tuple(
        f"{one.bug} was not caught by '{one.proof}'" for one in verdicts if not one.caught
    )
    caught = {one.bug for one in verdicts} - {one.bug for one in verdicts if not one.caught}
    yield Result(
        34,
        "planted bugs",
        f"{len(caught)} of {len(BUGS)} caught, each by a named proof; "
        f"{len(alarms)} alarms of {len(proofs)} proofs on the good product",
        "10 of 10, 0 alarms",
        held=not missed and not alarms and len(caught) == len(BUGS) >= 10,
        why=(*missed, *alarms),
    )


def judged(bug: str, proof: Callable[[Path], Iterable[str]], scratch: Path) -> Verdict:
    """Run a proof in a child with a bug planted, or none. Raises RuntimeError where the proof itself falls over."""

    def work() -> str:
        if bug:
            BUGS[bug].plant()
        return json.dumps(next(iter(proof(scratch)), ""))

    end = children.run(partial(work), _LIMIT_S)
    if end.code:
        raise RuntimeError(
            f"{proof.__name__} with {bug or 'no bug'} ended with {end.code}: {end.said}"
        )
    return Verdict(bug, proof.__name__, json.loads(end.said))
