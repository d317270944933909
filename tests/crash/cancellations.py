"""The reference workload of the simulation, cut short at every await, in five ways; and a disk that stands still.

The one rule: every await is tried in every way. After it everything goes on and is judged as any world is: lines whole
or the stream closed, batches whole or absent, nothing acknowledged lost, every session open to later work.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from crash.proof import Result, Size
from simulation.cancelling import Deed, count_awaits, play_cancelled
from simulation.flood import BLOCKED_S, flood

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_STRIDE = {Size.QUICK: 41, Size.FULL: 1, Size.RELEASE: 1}
_MIB = 1 << 20
_ALLOWED_MIB = 64
_PENDING_MIB = 16
_FLOODS = ((3, 100, 100), (3, 10_000, 1), (3, 200_000, 1), (3, 1_000_000, 1))
"""Sessions, bytes of an event, events of a call."""
_COLLECT_EVERY = 200
_MOST_TOLD = 10


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Cancel everywhere; nothing is written."""
    _ = scratch
    yield _bounded()
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


def _bounded() -> Result:
    """Let the disk stand still for a minute under several kinds of load, and weigh what is held."""
    why: list[str] = []
    most = 0.0
    for sessions, event_bytes, events in _FLOODS:
        held = flood(sessions, event_bytes, events)
        grown = held.grown / _MIB
        most = max(most, grown)
        named = f"{sessions} sessions, calls of {events} events of {event_bytes} bytes"
        if grown > _ALLOWED_MIB or held.pending > _PENDING_MIB * _MIB:
            why.append(f"{named}: {grown:.0f} MiB more, {held.pending} bytes pending in one")
        if held.late or not held.durable:
            why.append(f"{named}: {held.late} calls unanswered after it, {held.durable} durable")
    what = f"memory, disk still for {BLOCKED_S:.0f} s under load"
    return Result(23, what, f"{most:.0f} MiB more", f"{_ALLOWED_MIB} MiB", not why, tuple(why))
