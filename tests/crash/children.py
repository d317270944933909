"""Processes forked from this warm one: each does one thing, and may die of it.

The one rule: only this process outlives a case. A child never returns into the code that forked it, and one that does
not end in time is killed and told apart from one that died as it should.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 60.0
KILLED = -signal.SIGKILL
HUNG = 1000
RAISED = 70


@dataclass(frozen=True)
class End:
    """How a child ended: its code, and what it said. `HUNG` for one that had to be killed."""

    code: int
    said: str


def warm() -> None:
    """Keep what is loaded out of the way of every child's garbage collection, so that forks stay cheap."""
    gc.collect()
    gc.freeze()


def run(work: Callable[[], str | None], limit_s: float = LIMIT_S) -> End:
    """Fork, let the child work, and return how it ended and what it returned, or what it raised."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        _work(work, writes)
    os.close(writes)
    said = b""
    watch = os.pidfd_open(child)
    try:
        with os.fdopen(reads, "rb", buffering=0) as pipe:
            hung = False
            while True:
                if not select.select([pipe], [], [], limit_s)[0]:
                    hung = True
                    signal.pidfd_send_signal(watch, signal.SIGKILL)
                    break
                piece = pipe.read(1 << 16)
                if not piece:
                    break
                said += piece
        _, status = os.waitpid(child, 0)
    finally:
        os.close(watch)
    code = HUNG if hung else os.waitstatus_to_exitcode(status)
    return End(code, said.decode("utf-8", "replace"))


def _work(work: Callable[[], str | None], writes: int) -> None:
    code = RAISED
    try:
        said = work()
        code = 0
    except BaseException:  # noqa: BLE001  # whatever it is, the child ends here and says it
        said = traceback.format_exc(limit=-6)
    try:
        view = memoryview((said or "").encode())
        while view:
            view = view[os.write(writes, view) :]
        sys.stderr.flush()
    finally:
        os._exit(code)
