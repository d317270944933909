"""One reference workload, cut short at any one of the awaits of the daemon's tasks, in one of five ways.

The rule that holds here: an await is counted when a task of the daemon has come to it and waits there, and what is done
to it is done at that moment, before anything else runs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import trio

from simulation.world import play_calmly

if TYPE_CHECKING:
    from simulation.machine import Machine
    from simulation.world import Outcome

_SEED = 20
_NEVER = 0


class Deed(StrEnum):
    """What is done at an await."""

    CALL = "the call is cancelled"
    CONNECTION = "the connection's tasks are cancelled"
    DAEMON = "every task is cancelled"
    STOP = "the daemon is told to stop"
    CUT = "the power goes"


class Canceller(trio.abc.Instrument):
    """Counts awaits, and does something at one of them.

    Args:
        place: At which; 0 for none.
        deed: What.

    Attributes:
        awaits: How many there were.
        done: Whether there was anything to be done it to.
    """

    def __init__(self, place: int, deed: Deed) -> None:
        self.awaits = 0
        self.done = False
        self._place = place
        self._deed = deed
        self._machine: Machine | None = None

    def watch(self, machine: Machine) -> None:
        """Begin to count."""
        self._machine = machine
        trio.lowlevel.add_instrument(self)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Be told by trio that a task has come to an await, or to its end."""
        machine, nursery = self._machine, task.parent_nursery
        if machine is None or machine.judged or nursery is None or task not in nursery.child_tasks:
            return
        line = _line(task, machine.runner)
        if not line:
            return
        self.awaits += 1
        if self.awaits == self._place:
            self._do(machine, line)

    def _do(self, machine: Machine, line: list[trio.lowlevel.Task]) -> None:
        deed = self._deed
        if deed is Deed.STOP:
            machine.stop()
        elif deed is Deed.CUT:
            machine.kill()
        elif deed is Deed.DAEMON:
            machine.interrupt()
        elif deed is Deed.CALL:
            calls = [call for call in map(_call_of, line) if call is not None]
            if not calls:
                return
            calls[0].cancel()
        else:
            ours = [task for task in line if task.name.endswith(".serve_connection")]
            if not ours or not ours[0].child_nurseries:
                return
            ours[0].child_nurseries[0].cancel_scope.cancel()
        self.done = True


def _line(task: trio.lowlevel.Task, runner: trio.lowlevel.Task | None) -> list[trio.lowlevel.Task]:
    """Return a task of the daemon with those that it belongs to; nothing for any other."""
    found: list[trio.lowlevel.Task] = []
    while task is not runner:
        found.append(task)
        if task.parent_nursery is None:
            return []
        task = task.parent_nursery.parent_task
    return found


def _call_of(task: trio.lowlevel.Task) -> Any:
    """Return the call that a task serves, from its own variables."""
    frame = getattr(task.coro, "cr_frame", None)
    return None if frame is None else frame.f_locals.get("call")


def count_awaits() -> int:
    """Return how many awaits the workload has where nothing is done."""
    return play_cancelled(_NEVER, Deed.STOP)[0].awaits


def play_cancelled(place: int, deed: Deed) -> tuple[Canceller, Outcome]:
    """Play the workload with a deed at an await, let everything go on, and judge it."""
    canceller = Canceller(place, deed)
    return canceller, play_calmly(_SEED, canceller.watch)
