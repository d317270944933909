"""The reference workload of the simulation, cut short at every await, in six ways; and a disk that stands still.

The one rule: every await is tried in every way, each in a process forked at that await. After it everything goes on and
is judged as any world is: lines whole or the stream closed, batches whole or absent, nothing acknowledged lost, every
session open to later work.
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING

from crash.proof import Result, Size
from simulation.cancelling import Deed, Way, cancel_everywhere, count_awaits
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
_MOST_TOLD = 10


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Cancel everywhere; nothing is written."""
    _ = scratch
    yield _bounded()
    for way in Way:
        with way.taken():
            yield from _everywhere(_STRIDE[size], way)


def _everywhere(stride: int, way: Way) -> Iterator[Result]:
    awaits = count_awaits()
    tried, done, broken = Counter[Deed](), Counter[Deed](), Counter[Deed]()
    why: dict[Deed, list[str]] = {deed: [] for deed in Deed}

    def wanted(place: int) -> list[Deed]:
        return [deed for number, deed in enumerate(Deed) if (place - number) % stride == 1 % stride]

    def tell(place: int, deed: Deed, could: object, _trace: str, bad: str | None) -> None:
        tried[deed] += 1
        done[deed] += bool(could)
        if bad is not None:
            broken[deed] += 1
            why[deed].append(f"{way.name}: play_cancelled({place}, Deed.{deed.name})  # {bad}")

    gc.collect()
    gc.freeze()
    gc.disable()
    undisturbed = cancel_everywhere(wanted, tell)
    gc.enable()
    promised = f"all {awaits}, 0 broken" if stride == 1 else f"every {stride}th, 0 broken"
    for deed in Deed:
        reached = f"{tried[deed]} of {awaits} awaits, {done[deed]} could be, {broken[deed]} broken"
        held = not broken[deed] and done[deed] > 0 and tried[deed] >= awaits // stride
        held = held and undisturbed.broken is None
        yield Result(
            22,
            f"at an await, calls {way}, {deed}",
            reached,
            promised,
            held,
            tuple(why[deed][:_MOST_TOLD]),
        )


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
