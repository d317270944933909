"""One workload, and what it comes to when nothing goes wrong: the measure of every case in which something does.

The one rule: every case has a folder of its own, in memory, which is gone when the case was judged good.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crash import children, daemonless, judging
from crash.children import End
from crash.door import NO_FAULT, PERSISTENT, Door, Fault
from crash.playing import Account
from crash.workload import CANARY
from dshd.logs import configure_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from crash.judging import Reference
    from crash.workload import Step
    from dshd.storage.jsonl.layout import Compression

MOST_TOLD = 10
LOG = "log"


@dataclass
class Tally:
    """What was tried, and what was wrong.

    Attributes:
        tried: Cases in which the fault struck.
        missed: Cases in which it did not.
        wrong: What is told of bad cases, the first of them.
        bad: How many there are.
    """

    tried: int = 0
    missed: int = 0
    bad: int = 0
    wrong: tuple[str, ...] = ()

    def add(self, case: str, found: Sequence[str]) -> None:
        """Count a case, with what was wrong with it."""
        self.tried += 1
        self._judge(case, found)

    def miss(self, case: str, found: Sequence[str]) -> None:
        """Count a case in which the fault did not strike: it was not tried, but what is wrong there is wrong."""
        self.missed += 1
        self._judge(case, found)

    def _judge(self, case: str, found: Sequence[str]) -> None:
        if found:
            self.bad += 1
            self.wrong = (*self.wrong, f"{case}: {found[0]}")[:MOST_TOLD]

    @property
    def good(self) -> bool:
        """Whether something was tried and nothing was wrong."""
        return self.tried > 0 and self.bad == 0


class Bench:
    """Plays one workload again and again.

    Args:
        scratch: Where the cases have their folders.
        steps: The workload.
        compression: Of its logs.

    Attributes:
        names: The calls that change the disk, in order.
        every: All calls that may fail, in order.
        reference: What the workload comes to.
    """

    def __init__(self, scratch: Path, steps: Sequence[Step], compression: Compression) -> None:
        self.scratch = scratch
        self.steps = steps
        self.compression: Compression = compression
        folder = self.fresh()
        door = Door()
        # Here, and not in a child: what is warm in this process, every child finds warm.
        daemonless.play(folder, door, steps, compression)
        self.every = [call.name for call in door.calls]
        self.names = [name for name in self.every if name in PERSISTENT]
        self.reference: Reference = judging.reference_of(folder / "root")
        if refusals := Account(folder).refusals():
            raise RuntimeError(f"the undisturbed workload was refused something: {refusals[0]}")
        if found := judging.complaints(folder, self.reference):
            raise RuntimeError(f"the undisturbed workload is judged bad: {found[0]}")
        daemonless.recover(folder, Door(), compression)
        self.done(folder)
        children.warm()

    def fresh(self, start: Path | None = None, name: str = "case") -> Path:
        """Return a new folder for a case, empty or as another is."""
        folder = self.scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        if start is None:
            folder.mkdir()
        else:
            shutil.copytree(start, folder)
        return folder

    def done(self, folder: Path) -> None:
        """Remove a case's folder."""
        shutil.rmtree(folder)

    def play(self, folder: Path, fault: Fault = NO_FAULT) -> End:
        """Play the workload in a child, with a fault; what the child says is how often it struck."""
        return children.run(lambda: json.dumps(self._played(folder, fault)))

    def play_in_turn(self, cases: Sequence[tuple[Path, Fault]]) -> list[End]:
        """Play the workload with faults that kill nothing, one after the other in one child, each in its folder.

        Where that child has another end, each is played in a child of its own.
        """

        def in_child() -> str:
            return json.dumps([self._played(folder, fault) for folder, fault in cases])

        end = children.run(in_child)
        if not end.code:
            return [End(0, json.dumps(one)) for one in json.loads(end.said)]
        return [self.play(self.fresh(name=folder.name), fault) for folder, fault in cases]

    def _played(self, folder: Path, fault: Fault) -> list[int]:
        return _with_fault(
            folder, fault, lambda door: daemonless.play(folder, door, self.steps, self.compression)
        )

    def recover(self, folder: Path, fault: Fault = NO_FAULT) -> End:
        """Have a child go on with what a dead one left."""

        def in_child() -> str:
            mended = _with_fault(
                folder, fault, lambda door: daemonless.recover(folder, door, self.compression)
            )
            return json.dumps(mended)

        return children.run(in_child)

    def complaints(self, folder: Path) -> list[str]:
        """Judge a case: the root, and that neither the log nor a refusal has words of a session."""
        found = judging.complaints(folder, self.reference)
        told = [text for _, _, text in Account(folder).refusals()]
        log = folder / LOG
        told.append(log.read_text("utf-8", "replace") if log.exists() else "")
        if any(CANARY in text for text in told):
            found.append("words of a session stand in the log or in a refusal")
        return found


def _with_fault(folder: Path, fault: Fault, work: Callable[[Door], None]) -> list[int]:
    """Do something over a faulty disk; return how often the fault struck, how many calls there were, what was lost."""
    _log_to(folder / LOG)
    door = Door(fault)
    work(door)
    return [door.struck, door.number, door.lose()]


def _log_to(path: Path) -> None:
    """Have the daemon's log written to a file, as it writes it to standard error."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 2)
    os.close(fd)
    configure_logs()
