"""Processes of a proof: they end with it, and they can be stopped so that nothing of theirs is under way."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LIBC = ctypes.CDLL(None, use_errno=True)
_SET_DEATH_SIGNAL = 1
_WAIT_S = 20.0

ENDS_WITH_PROOF = ("setpriv", "--pdeathsig", "KILL")
"""Put in front of a command: it is killed when the thread that started it has ended."""


def end_with_parent() -> None:
    """Have this process killed when its parent ends."""
    _LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def end_on_signal() -> None:
    """Turn SIGTERM into an exit, so that what is to be undone is undone."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


def stop_whole(pid: int) -> None:
    """SIGSTOP a process and wait until no thread of it is in a system call any more: the fence before a cut."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _WAIT_S
    while not all(state in "TtZX" for state in _states(pid)):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.0005)  # the kernel stops threads by the real clock


def kill(pid: int) -> None:
    """SIGKILL a child of this process and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def exit_code(pid: int) -> int:
    """Wait for the end of a child of this process and return its exit code; minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Forked:
    """A process that was forked from this one, to be handled as one of `subprocess`.

    Args:
        run: What it does; it returns the exit code.
    """

    def __init__(self, run: Callable[[], int]) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be(run)

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end and return it."""
        if self.returncode is None:
            watch = os.pidfd_open(self.pid)
            try:
                if not select.select([watch], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("a forked process", timeout)
            finally:
                os.close(watch)
            self.returncode = exit_code(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, where it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _be(run: Callable[[], int]) -> None:
    """Be the forked process to its end, in a session of its own."""
    code = 1
    try:
        os.setsid()
        end_with_parent()
        code = run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # whatever it is, the process ends here and says it
        traceback.print_exc()
    finally:
        os._exit(code)


def _states(pid: int) -> Sequence[str]:
    states: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # gone meanwhile
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states
