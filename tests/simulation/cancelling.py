"""One reference workload, cut short at any one of the awaits of the daemon's tasks, in one of six ways.

The rule that holds here: an await is counted when a task of the daemon has come to it and waits there, and what is done
to it is done at that moment, before anything else runs. From then on the clients have little left to do.

The workload is played in both ways in which the daemon serves what an agent waits for: at once, and in tasks, as it
does where a call has to wait for more than the disk. All awaits of a way are tried in one playing: at each of them a
process is forked for each deed, plays on from there, and is judged; the first process goes on undisturbed.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from dshd.rpc import driving
from dshd.rpc.calls import Call
from dshd.rpc.serving import Serving
from simulation.world import play_calmly

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from simulation.machine import Machine
    from simulation.world import Outcome

_SEED = 20
_NEVER = 0
_NOTHING_SAID = b'[true, "", "it ended without a word"]'


class Deed(StrEnum):
    """What is done at an await."""

    CALL = "the call is cancelled"
    CONNECTION = "the connection's tasks are cancelled"
    SESSION = "the session's tasks are cancelled"
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
        self.reached(machine, line)

    def reached(self, machine: Machine, line: list[trio.lowlevel.Task]) -> None:
        """Do it where the place is."""
        if self.awaits == self._place:
            self.do(self._deed, machine, line)

    def do(self, deed: Deed, machine: Machine, line: list[trio.lowlevel.Task]) -> None:
        """Do something at an await, to a task and those that it belongs to."""
        machine.hurried = True
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
            owner = "._run_session" if deed is Deed.SESSION else ".serve_connection"
            ours = [task for task in line if task.name.endswith(owner)]
            if not ours or not ours[0].child_nurseries:
                return
            ours[0].child_nurseries[0].cancel_scope.cancel()
        self.done = True


class _Forking(Canceller):
    """Does everything at every await, each time in a process of its own."""

    def __init__(
        self,
        wanted: Callable[[int], Iterable[Deed]],
        tell: Callable[[int, Deed, bool, str, str | None], None],
    ) -> None:
        super().__init__(_NEVER, Deed.STOP)
        self.answers = -1
        self.failed: str | None = None
        self._wanted = wanted
        self._tell = tell

    def reached(self, machine: Machine, line: list[trio.lowlevel.Task]) -> None:
        """Fork for each deed; the forked process plays on in this very call."""
        if self.answers >= 0:
            return
        for deed in self._wanted(self.awaits):
            reads, writes = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reads)
                _leave_the_first_loop()
                self.answers = writes
                try:
                    self.do(deed, machine, line)
                except Exception as error:  # noqa: BLE001  # the loop would only log it
                    self.failed = repr(error)
                return
            os.close(writes)
            with os.fdopen(reads, "rb") as pipe:
                said = pipe.read()
            os.waitpid(pid, 0)
            done, trace, broken = msgspec.json.decode(said or _NOTHING_SAID)
            self._tell(self.awaits, deed, done, trace, broken)


def _leave_the_first_loop() -> None:
    """Give the loop of a forked process what it would share with the first: its epoll, and what wakes it."""
    context: Any = sys.modules["trio._core._run"]
    runner = context.GLOBAL_RUN_CONTEXT.runner
    loop = runner.io_manager
    for pair in (loop._force_wakeup, runner.entry_queue.wakeup):  # noqa: SLF001  # there is no other way to them
        for mine, shared in zip(
            socket.socketpair(), (pair.wakeup_sock, pair.write_sock), strict=True
        ):
            mine.setblocking(False)  # noqa: FBT003  # the library has no other name for it
            os.dup2(mine.fileno(), shared.fileno())
    loop._epoll = select.epoll()  # noqa: SLF001  # likewise
    loop._epoll.register(loop._force_wakeup_fd, select.EPOLLIN)  # noqa: SLF001  # likewise
    for fd, waiters in loop._registered.items():  # noqa: SLF001  # likewise
        loop._epoll.register(fd, waiters.current_flags | select.EPOLLONESHOT)  # noqa: SLF001  # likewise


def _line(task: trio.lowlevel.Task, runner: trio.lowlevel.Task | None) -> list[trio.lowlevel.Task]:
    """Return a task of the daemon with those that it belongs to; nothing for any other."""
    found: list[trio.lowlevel.Task] = []
    while task is not runner:
        found.append(task)
        if task.parent_nursery is None:
            return []
        task = task.parent_nursery.parent_task
    return found


def _call_of(task: trio.lowlevel.Task) -> Call | None:
    """Return the call that a task serves, or the first of those that its connection serves without a task."""
    waits: Any = task.coro
    while waits is not None:
        frame = getattr(waits, "cr_frame", None)
        found: dict[str, Any] = {} if frame is None else frame.f_locals
        call = found.get("call")
        if isinstance(call, Call):
            return call
        serving = getattr(found.get("self"), "_serving", None)
        if isinstance(serving, Serving):
            return next(iter(serving.driving.calls), None)
        waits = getattr(waits, "cr_await", None)
    return None


class Way(StrEnum):
    """How the calls are served that may be served without a task of their own."""

    AT_ONCE = "without a task"
    IN_TASKS = "in tasks"

    @contextmanager
    def taken(self) -> Generator[None]:
        """Have them served this way."""
        before = driving.AT_ONCE
        driving.AT_ONCE = before if self is Way.AT_ONCE else frozenset()
        try:
            yield
        finally:
            driving.AT_ONCE = before


def count_awaits() -> int:
    """Return how many awaits the workload has where nothing is done."""
    return play_cancelled(_NEVER, Deed.STOP)[0].awaits


def play_cancelled(place: int, deed: Deed) -> tuple[Canceller, Outcome]:
    """Play the workload with a deed at an await, let everything go on, and judge it."""
    canceller = Canceller(place, deed)
    return canceller, play_calmly(_SEED, canceller.watch)


def cancel_everywhere(
    wanted: Callable[[int], Iterable[Deed]],
    tell: Callable[[int, Deed, bool, str, str | None], None],
) -> Outcome:
    """Do the same for every await and deed that is wanted.

    Args:
        wanted: Returns what to do at an await, by its number.
        tell: Told the await, the deed, whether there was anything to be done it to, the trace, and what was broken.
    """
    forking = _Forking(wanted, tell)
    try:
        outcome = play_calmly(_SEED, forking.watch)
        if forking.answers >= 0:
            broken = forking.failed or outcome.broken
            said = msgspec.json.encode([forking.done, outcome.trace, broken])
            os.write(forking.answers, said)
    finally:
        if forking.answers >= 0:
            os._exit(0)
    return outcome
