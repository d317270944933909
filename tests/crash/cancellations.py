"""The reference workload of the simulation, cut short at every await of the daemon's tasks, in five ways.

The one rule: every await is tried in every way. After it everything goes on and is judged as any world is: lines whole
or the stream closed, batches whole or absent, nothing acknowledged lost, every session open to later work.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from crash.proof import Result, Size
from simulation.cancelling import Deed, count_awaits, play_cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_STRIDE = {Size.QUICK: 13, Size.FULL: 1, Size.RELEASE: 1}
_COLLECT_EVERY = 200
_MOST_TOLD = 10


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Cancel everywhere; nothing is written."""
    _ = scratch
    awaits = count_awaits()
    gc.freeze()
    gc.disable()
    for number, deed in enumerate(Deed):
        places = range(1 + number % _STRIDE[size], awaits + 1, _STRIDE[size])
        yield _tried(deed, places, awaits)
        gc.collect()
    gc.enable()


def _tried(deed: Deed, places: range, awaits: int) -> Result:
    why: list[str] = []
    done = 0
    for number, place in enumerate(places):
        canceller, outcome = play_cancelled(place, deed)
        done += canceller.done
        if outcome.broken is not None:
            again = f"play_cancelled({place}, Deed.{deed.name})"
            why.append(f"{again}  # {outcome.broken}")
        if number % _COLLECT_EVERY == 0:
            gc.collect()
    reached = f"{len(places)} of {awaits} awaits, {done} could be, {len(why)} broken"
    promised = f"all {awaits}, 0 broken" if places.step == 1 else f"every {places.step}th, 0 broken"
    held = not why and done > 0
    return Result(22, f"at an await, {deed}", reached, promised, held, tuple(why[:_MOST_TOLD]))
