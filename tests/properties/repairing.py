"""Repair, judged byte by byte.

The rule that holds here: repair asks nothing but the session's own files. Of two copies it leaves the same bytes, on
whatever machine, at whatever hour, and however often it was killed on the way; and so do the closers of the open turn,
which copy the time of the last event. Only the `session/end-seed` behind them has the time of day.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dshd.sessions import closers
from dshd.storage.jsonl.store import open_store
from properties.mortal_disk import KilledError, MortalDisk
from support.folds import folded
from support.logs import events_in, same

if TYPE_CHECKING:
    import random

    from properties.mortal_disk import Tree

ROOT = Path("/memory")  # of the disk in memory
FOLDER = "--w--/s1"
MOMENTS = ("before", "half", "after")


class LifeError(AssertionError):
    """Something was read that is not in the list, or the other way round."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise LifeError(what)


def check_repair(broken: Tree, path: str, chosen: random.Random) -> None:
    """Repair a session twice, on two machines, and after repairs that were killed; then compare every byte."""
    shown = events_in(broken[path] or b"")
    once, calls = _repaired(broken)
    require(_repaired(once)[0] == once, "a repaired session is repaired again")
    other, _ = _repaired(broken, machine=chosen.randrange(1, 99))
    require(other == once, "two machines repair differently")
    half = broken
    for _ in range(chosen.randrange(1, 4)):
        half = _killed_repair(half, chosen.randrange(1, calls + 1), chosen.choice(MOMENTS))
        seen = events_in(half[path] or b"")
        require(same(seen[: len(shown)], shown), "a killed repair has taken something back")
    again, _ = _repaired(half)
    require(again[path] == once[path], "after a killed repair another log is left")
    require(once.items() <= again.items(), "after a killed repair a torn tail is missing")
    repaired = events_in(once[path] or b"")
    require(folded(repaired).open_turn is None, "a turn is open after a repair")
    require(same(repaired[: len(shown)], shown), "a repair has changed what was there")


def _repaired(tree: Tree, *, machine: int = 0) -> tuple[Tree, int]:
    """Repair a copy. Returns what is left, and how many calls it took; a machine has its own clock and inodes."""
    disk = MortalDisk()
    disk.lay_out({**{f"other-{number}": None for number in range(machine)}, **tree})
    _repair(disk)
    left = {path: content for path, content in disk.tree().items() if not path.startswith("other-")}
    return left, disk.calls


def _repair(disk: MortalDisk) -> None:
    """Open for writing, close the open turn, close."""
    with closing(open_store(ROOT, disk=disk).open("s1", "write")) as handle:
        handle.append(closers.closers(folded(handle.read())))


def _killed_repair(tree: Tree, call: int, moment: str) -> Tree:
    disk = MortalDisk(moment=moment)
    disk.lay_out(tree)
    disk.die_at = call
    try:
        _repair(disk)
    except KilledError:
        disk.end_process()
    return disk.tree()
