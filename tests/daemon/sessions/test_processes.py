from __future__ import annotations

import os
import signal
import subprocess
import sys

from dshd.sessions.processes import boot_id, process_alive, process_start_time


def test_this_process_is_alive_with_its_own_start_time_only() -> None:
    started = process_start_time(os.getpid())
    assert started is not None
    assert process_alive(os.getpid(), started)
    assert not process_alive(os.getpid(), started + 1)


def test_a_process_of_another_boot_is_dead() -> None:
    started = process_start_time(os.getpid())
    assert started is not None
    assert process_alive(os.getpid(), started, boot_id())
    assert not process_alive(os.getpid(), started, "another-boot")


def test_a_zombie_is_dead_although_its_pid_is_taken() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    started = process_start_time(child.pid)
    assert started is not None
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended and is not reaped
    assert os.path.exists(f"/proc/{child.pid}")  # noqa: PTH110  # the point: the kernel still shows it
    assert not process_alive(child.pid, started)
    child.wait()
    assert process_start_time(child.pid) is None


def test_a_name_full_of_parentheses_and_spaces_does_not_shift_the_fields() -> None:
    named = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b') R (a b', 0, 0, 0)"
    script = f"{named}; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        started = process_start_time(child.pid)
        own = process_start_time(os.getpid())
        assert started is not None
        assert own is not None
        assert started >= own
        child.kill()


def test_pids_that_name_no_process_have_no_start_time() -> None:
    assert process_start_time(0) is None
    assert process_start_time(-1) is None
    assert process_start_time(2**31 - 1) is None
