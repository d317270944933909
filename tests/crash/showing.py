"""What shows each planted bug in the real daemon: one way of going wrong for each, that the good daemon stands.

The one rule: the daemon is the real process behind its socket, the bug is switched on in its start script, and what
is judged is what it left and what it said; the same is done to the good one, of which nothing may be said.
"""

from __future__ import annotations

import errno
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from crash import judging
from crash.bench import Tally
from crash.door import NO_FAULT, Fault
from crash.playing import Account
from crash.served import Wish
from support.rpc import CallRefusedError
from support.verdicts import read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from crash.daemon import Yard

_DUE = frozenset({"NO_SPACE", "WRITE_FAILED"})
_SYNC, _WRITE = frozenset({"fdatasync"}), frozenset({"write"})
_POWER_CUT = Fault(45, kill="before", cut=True)
_FAILED_SYNC = Fault(3, _SYNC, error=errno.EIO)
_FLIPS = 16


@dataclass(frozen=True)
class Showing:
    """One way of showing a bug.

    Args:
        proof: The proof that finds the same without a daemon.
        found: Does it to daemons of a yard with a bug, or none, and yields what is wrong.
    """

    proof: str
    found: Callable[[Yard, str], list[str]]


def one_life(fault: Fault, yard: Yard, bug: str) -> list[str]:
    """Play the workload with a fault."""
    served = yard.served(Wish(bug=bug))
    served.play(yard.steps, fault)
    refusals = Account(served.folder).refusals()
    found = [f"refused: {kind}" for _, kind, _ in refusals if kind not in _DUE]
    return found + yard.judged(served)


def cut_behind_a_kill(yard: Yard, bug: str) -> list[str]:
    """Kill between a write and its sync, start again, hold what is shown for acknowledged, and cut the power."""
    served = yard.served()
    served.wish = Wish(bug=bug, will=str(served.folder / "will"))
    served.play(yard.steps, Fault(9, _SYNC, kill="before"))
    code = served.look(Fault(cut=True))
    found = [f"the daemon started again ended with {code}"] if code else []
    return found + yard.judged(served)


def flipped_bits(yard: Yard, bug: str) -> list[str]:
    """Let single bits of the logs flip under a daemon that reads them: what it serves is what was sent, or nothing."""
    served = yard.served(Wish(bug=bug))
    code = served.play(yard.steps)
    found = [f"the undisturbed daemon ended with {code}"] if code else []
    with served.life():
        served.wait_answers()
        for log in sorted((served.folder / "root").glob("*/*/session.jsonl.zstd")):
            expected = yard.reference[log.parent.name]
            with closing(served.daemon.connect()) as one:
                for bit in _flips(log):
                    try:
                        events = read_all(one, log.parent.name)
                    except CallRefusedError as error:
                        if error.kind != "LOG_CORRUPT":
                            found.append(f"{log.parent.name}, bit {bit}: {error}")
                        continue
                    if [judging.canonical(event) for event in events] != expected[: len(events)]:
                        found.append(f"{log.parent.name}, bit {bit}: served what nobody sent")
    return found + yard.judged(served)


def _flips(log: Path) -> Iterator[int]:
    """Flip bits of a file, one at a time, spread over it; each stays so until the next is asked for."""
    content = log.read_bytes()
    for number in range(_FLIPS):
        bit = number * len(content) * 8 // _FLIPS
        with log.open("r+b") as file:
            file.seek(bit // 8)
            file.write(bytes([content[bit // 8] ^ 1 << bit % 8]))
        try:
            yield bit
        finally:
            with log.open("r+b") as file:
                file.write(content)


SHOWN_BY: dict[str, Showing] = {
    "ack-first": Showing("kills", partial(one_life, Fault(45, kill="before"))),
    "no-sync": Showing("states", partial(one_life, _POWER_CUT)),
    "no-directory-sync": Showing("states", partial(one_life, _POWER_CUT)),
    "no-truncate": Showing("mending", partial(one_life, NO_FAULT)),
    "no-checksum": Showing("bitflips", flipped_bits),
    "no-sync-at-open": Showing("states", cut_behind_a_kill),
    "short-write-ignored": Showing("tame", partial(one_life, Fault(most=7))),
    "kept-tail": Showing(
        "errors", partial(one_life, Fault(9, _WRITE, error=errno.ENOSPC, half=True))
    ),
    "retried-sync": Showing("errors", partial(one_life, _FAILED_SYNC)),
    "ignored-sync": Showing("errors", partial(one_life, _FAILED_SYNC)),
}


def shown(yard: Yard, *, planted: bool) -> Tally:
    """Show every bug, with the bug or without."""
    tally = Tally()
    for bug, showing in SHOWN_BY.items():
        tally.add(f"{bug} ({showing.proof})", showing.found(yard, bug if planted else ""))
    return tally
