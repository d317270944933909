"""`dshd serve` with a fault in its disk's door, or with a planted bug: `python served.py serve …`.

The one rule: but for the door it is the daemon, started as ever. What goes wrong is told in `DSHD_TEST_DOOR`, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from crash.clocks import CLOCKS, set_clock
from crash.door import NO_FAULT, Door, Fault
from crash.planted import BUGS
from dshd import lifecycle, main
from dshd.sessions.measured import MeasuredDisk
from dshd.storage.jsonl.lock import lock_root

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Wish:
    """What goes wrong.

    Args:
        fault: At the door.
        bug: A name of `planted`.
        clock: A name of `tame`.
        will: A file that tells the next life what a killed one had in memory only.
        told: A file that gets how often the fault struck, and the names of the calls, when the daemon ends by itself.
    """

    fault: Fault = NO_FAULT
    bug: str = ""
    clock: str = ""
    will: str = ""
    told: str = ""


def serve(wish: Wish) -> int:
    """Run the daemon behind a door."""
    door = Door(wish.fault)
    if wish.will:
        door.inherit(Path(wish.will))
    seam: Any = lifecycle  # the daemon's own names for the disk and the root's lock

    def behind_the_door(metrics: Any) -> Door:
        door.stand_before(MeasuredDisk(metrics))
        return door

    seam.lock_root = partial(lock_root, disk=door)
    seam.MeasuredDisk = behind_the_door
    if wish.bug:
        BUGS[wish.bug].plant()
    if wish.clock:
        set_clock(CLOCKS[wish.clock])
    try:
        return main.main()
    finally:
        if wish.told:
            names = [call.name for call in door.calls]
            Path(wish.told).write_text(json.dumps([door.struck, names]), "utf-8")
        door.lose()


def wish_of_environ() -> Wish:
    """Return what was told."""
    return msgspec.json.decode(os.environ["DSHD_TEST_DOOR"], type=Wish)


def _die_with_the_proof() -> None:
    """Ask the kernel for SIGKILL when the process that started this one ends: nothing is to be left running."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    _die_with_the_proof()
    sys.exit(serve(wish_of_environ()))
