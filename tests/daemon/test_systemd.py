from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dshd.systemd import notify, watchdog_interval

if TYPE_CHECKING:
    from pathlib import Path

# Takes the inherited sockets in a process of its own, where descriptor 3 is what the test passes (or closed).
TAKER = """
import os, sys
given, listen_pid = int(sys.argv[1]), sys.argv[2] or str(os.getpid())
os.closerange(3, 4) if given < 0 else os.dup2(given, 3)
os.closerange(4, 256)
os.environ["LISTEN_PID"] = listen_pid
from dshd.settings import CannotStartError
from dshd.systemd import inherited_sockets
try:
    taken = inherited_sockets()
except CannotStartError as exc:
    print("refused:", exc)
else:
    print([(s.fileno(), s.getsockname(), os.get_inheritable(s.fileno())) for s in taken])
print(sorted(k for k in os.environ if k.startswith("LISTEN_")))
"""


def take(fd: int, count: str = "1", listen_pid: str = "") -> str:
    """Run the taker with `fd` as its descriptor 3 (closed for -1)."""
    done = subprocess.run(
        [sys.executable, "-c", TAKER, str(fd), listen_pid],
        env={**os.environ, "LISTEN_FDS": count, "LISTEN_FDNAMES": "rpc"},
        pass_fds=[fd] if fd >= 0 else [],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture
def listening(tmp_path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    here = os.getcwd()  # noqa: PTH109  # restored below; a relative name keeps the path short
    os.chdir(tmp_path)
    try:
        sock.bind("s")
    finally:
        os.chdir(here)
    sock.listen()
    return sock


def test_a_listening_socket_is_taken_over_and_the_variables_are_gone(
    listening: socket.socket,
) -> None:
    with listening:
        assert take(listening.fileno()) == "[(3, 's', False)]\n[]\n"


def test_sockets_for_another_process_are_left_alone(listening: socket.socket) -> None:
    with listening:
        assert take(listening.fileno(), "1", "1") == "[]\n[]\n"


@pytest.mark.parametrize("count", ["0", "-1", "two", "", "1000000"])
def test_a_count_that_is_none_is_refused(listening: socket.socket, count: str) -> None:
    with listening:
        assert f"LISTEN_FDS is {count!r}" in take(listening.fileno(), count)


def test_two_promised_and_one_passed_is_refused(listening: socket.socket) -> None:
    with listening:
        assert "descriptor 4 is not open" in take(listening.fileno(), "2")


def test_a_closed_descriptor_is_refused() -> None:
    assert "descriptor 3 is not open" in take(-1)


def test_a_descriptor_that_is_no_socket_is_refused() -> None:
    with open(os.devnull, "rb") as file:  # noqa: PTH123  # its descriptor is what is wanted
        assert "descriptor 3 is not a socket" in take(file.fileno())


@pytest.mark.parametrize(
    ("family", "kind", "found"),
    [
        (socket.AF_INET, socket.SOCK_STREAM, "AF_INET SOCK_STREAM"),
        (socket.AF_UNIX, socket.SOCK_DGRAM, "AF_UNIX SOCK_DGRAM"),
        (socket.AF_UNIX, socket.SOCK_STREAM, "AF_UNIX SOCK_STREAM, not listening"),
    ],
)
def test_a_socket_of_another_kind_is_refused(family: int, kind: int, found: str) -> None:
    with socket.socket(family, kind) as sock:
        assert f"descriptor 3 is {found}" in take(sock.fileno())


@pytest.mark.parametrize("abstract", [False, True])
def test_a_notification_arrives_as_one_datagram(tmp_path: Path, *, abstract: bool) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"\0dshd-test-{os.getpid()}" if abstract else f"/tmp/dshd-test-{os.getpid()}"  # noqa: S108  # short
        manager.bind(name)
        try:
            assert notify(
                "READY=1", "STATUS=a\nb", environ={"NOTIFY_SOCKET": name.replace("\0", "@")}
            )
            assert manager.recv(4096) == b"READY=1\nSTATUS=a b"
        finally:
            if not abstract:
                os.unlink(name)  # noqa: PTH108  # a plain string, as the kernel takes it


def test_no_manager_and_a_dead_manager_are_no_error(tmp_path: Path) -> None:
    assert not notify("READY=1", environ={})
    assert not notify("READY=1", environ={"NOTIFY_SOCKET": "relative"})
    assert not notify("READY=1", environ={"NOTIFY_SOCKET": str(tmp_path / "nobody")})


def test_the_watchdog_is_fed_at_half_of_its_time_and_only_by_its_process() -> None:
    assert watchdog_interval({"WATCHDOG_USEC": "30000000"}) == 15.0
    assert (
        watchdog_interval({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}) == 15.0
    )
    assert watchdog_interval({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}) is None
    assert watchdog_interval({}) is None
    assert watchdog_interval({"WATCHDOG_USEC": "0"}) is None
    assert watchdog_interval({"WATCHDOG_USEC": "soon"}) is None
