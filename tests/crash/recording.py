"""A run of the reference workload, with every disk judged that a power cut could leave of it.

The rule that holds here: a state is looked at when it is about to be possible no longer, which is before each sync and
at the end; whatever was possible earlier is possible still, and more had been acknowledged since.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from crash.model import PowerDisk
from crash.reference import ROOT, Told, Turns, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crash.pending import Grain
    from crash.reference import Plan
    from crash.verdict import Judge
    from support.memory_tree import Node, Tree

HOME: Tree = {ROOT[1:].split("/")[0]: None}
"""What is there before the first session: the directory above those that the store makes."""

_TURNS = frozenset({"create", "mkdir", "link", "rename", "unlink", "rmdir"}) | frozenset(
    {"write", "truncate", "fsync", "fdatasync"}
)
"""The calls in front of which another session may go on: those that can change or sync something."""


class RecordingDisk(PowerDisk):
    """Has every state judged that is possible, whenever one is about to be possible no longer.

    Attributes:
        watching: Whether anything is judged.
        watched: The numbers of the syncs in front of which it is.
        most: How many states are looked at, beside those of others that the same judge saw.
        operations: How many calls changed or synced something.
        problems: What was found.
    """

    def __init__(self, judge: Judge, grain: Grain, seed: int, tree: Tree | None = None) -> None:
        super().__init__(HOME if tree is None else tree)
        self.told = Told()
        self.turns = Turns(random.Random(seed))  # noqa: S311  # the same turns every time
        self.watching = True
        self.watched = range(2**30)
        self.most = 2**30
        self.operations = 0
        self.problems: list[str] = []
        self._judge, self._grain = judge, grain
        self.rng = random.Random(seed)  # noqa: S311  # the same states every time

    def using(self, call: str) -> None:
        if call in _TURNS:
            self.turns.next()

    def before(self, call: str, node: Node, about: object) -> None:
        self.operations += 1
        super().before(call, node, about)

    def about_to_sync(self) -> None:
        if self.watching and self.syncs in self.watched:
            self.look()

    def look(self) -> None:
        """Judge all that is possible now."""
        for moment in self.moments(self._grain, self.rng):
            if len(self._judge.disks) >= self.most:
                return
            self.problems += self._judge.complaints(moment, self.told)


def run(plans: Sequence[Plan], disk: RecordingDisk) -> RecordingDisk:
    """Run the workload side by side and judge every state of it."""
    work = Workload(disk, disk.told)
    disk.turns.run([partial(work.run, plan) for plan in plans])
    disk.look()
    return disk
