"""W under odd but honest conditions: writes cut short, wrong clocks, any umask. It must come to what it always does.

Promises 7, 12, 14, 30 and 32.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING

from crash import children, daemonless, judging, workload
from crash.bench import LOG, Bench, Tally
from crash.clocks import CLOCKS, set_clock
from crash.door import Door, Fault
from crash.playing import Account
from crash.proof import Result, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOSTS = (1, 2, 7, 64, 511, 4095)
UMASKS = (0o000, 0o022, 0o077)


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Play W under each condition once: that is seconds, at any size."""
    bench = Bench(scratch, workload.whole(), "zstd")
    short, shorts = Tally(), 0
    for most in MOSTS:
        folder = bench.fresh()
        end = bench.play(folder, Fault(most=most))
        shorts += json.loads(end.said)[1] - len(bench.names) if not end.code else 0
        short.add(f"{most} bytes a write", unchanged(bench, folder, end.code, end.said))
    yield Result(
        14,
        "every write cut short",
        f"{len(MOSTS)} lengths, {shorts} more writes, {short.bad} bad",
        "W as ever",
        held=short.good and shorts > 0,
        why=short.wrong,
    )
    clocks = Tally()
    for name, clock in CLOCKS.items():
        folder = bench.fresh()
        end = _child(bench, folder, partial(set_clock, clock))
        clocks.add(name, unchanged(bench, folder, end.code, end.said))
    yield Result(
        12,
        "wall clocks that jump",
        f"{clocks.tried} plans, {clocks.bad} bad",
        "5 plans, W as ever",
        held=clocks.good and clocks.tried >= 5,
        why=clocks.wrong,
    )
    yield from _modes_and_words(bench)
    yield _below_the_end(bench)


def unchanged(bench: Bench, folder: Path, code: int, said: str) -> list[str]:
    """Return in what a run differs from the undisturbed one, and what is wrong with it."""
    if code:
        return [f"the process ended with {code}: {said}"]
    if refusals := Account(folder).refusals():
        return [f"refused: {refusals[0]}"]
    found = judging.reference_of(folder / "root")
    different = [name for name in bench.reference if found.get(name) != bench.reference[name]]
    if different or found.keys() != bench.reference.keys():
        return [f"other events in {different}"]
    return bench.complaints(folder)


def _child(bench: Bench, folder: Path, prepare: Callable[[], object]) -> children.End:
    def play() -> None:
        prepare()
        daemonless.play(folder, Door(), bench.steps, bench.compression)

    return children.run(play)


# ------------------------------------------------------------------ modes, words, places


def _modes_and_words(bench: Bench) -> Iterator[Result]:
    modes, looked = Tally(), 0
    for mask in UMASKS:
        folder = bench.fresh()
        end = _child(bench, folder, partial(os.umask, mask))
        looked += sum(1 for _ in (folder / "root").rglob("*"))
        modes.add(f"umask {mask:03o}", unchanged(bench, folder, end.code, end.said))
    yield Result(
        30,
        "modes under three umasks",
        f"{looked} files and directories, {modes.bad} bad",
        "0600 and 0700, 0 exceptions",
        held=modes.good and looked > 0,
        why=modes.wrong,
    )
    words, told = Tally(), 0
    for at in range(1, len(bench.names), 17):
        folder = bench.fresh()
        end = bench.play(folder, Fault(at, error=5, last=at + at % 2))
        told += sum(len(text) for _, _, text in Account(folder).refusals())
        told += (folder / LOG).stat().st_size
        found = [f"ended with {end.code}: {end.said}"] if end.code else []
        words.add(f"EIO at operation {at}", found + bench.complaints(folder))
    yield Result(
        32,
        "words of a session in logs and errors",
        f"{told} bytes told of {words.tried} failures, {words.bad} with a word",
        "0",
        held=words.good and told > 0,
        why=words.wrong,
    )


def _below_the_end(bench: Bench) -> Result:
    folder = bench.fresh()

    def play() -> str:
        door = Door(sites=True)
        daemonless.play(folder, door, bench.steps, bench.compression)
        writes = [call for call in door.calls if call.name == "write"]
        return json.dumps([len(writes), sum(call.below_end for call in writes)])

    end = children.run(play)
    writes, below = json.loads(end.said) if not end.code else (0, -1)
    return Result(
        7,
        "writes below the end of a log",
        f"{below} of {writes} writes through the disk's door",
        "0",
        held=below == 0 and writes > 0,
        why=() if not end.code else (end.said,),
    )
