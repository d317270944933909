"""A daemon at the limits of its process: it refuses what it cannot do, says why, and goes on when there is room."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.daemon import DaemonProcess, clean_environ, open_daemon
from support.rpc import CallRefusedError, Connection

if TYPE_CHECKING:
    from collections.abc import Generator

MIB = 1024 * 1024

needs_prlimit = pytest.mark.skipif(shutil.which("prlimit") is None, reason="no prlimit here")


def few_descriptors(count: int) -> tuple[str, ...]:
    return ("prlimit", f"--nofile={count}:{count}")


@needs_prlimit
def test_with_too_few_descriptors_the_daemon_does_not_start_and_says_how_many(
    tmp_path: Path,
) -> None:
    ended = subprocess.run(
        [*few_descriptors(16), sys.executable, "-m", "dshd.main", "serve"],
        env=clean_environ(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert ended.returncode == 78
    assert "16 open files and dshd needs 32" in ended.stderr


@needs_prlimit
def test_with_thirty_two_descriptors_what_does_not_fit_is_refused_and_may_be_tried_again(
    tmp_path: Path,
) -> None:
    with open_daemon(tmp_path, prefix=few_descriptors(32)) as daemon, ExitStack() as stack:
        limits = daemon.call("daemon.status")["limits"]
        assert (limits["maxConnections"], limits["maxOpenSessions"]) == (4, 4)
        most = limits["maxConnections"]
        one = stack.enter_context(Connection(daemon.socket, name="the holder"))
        handles, refused = open_until_refused(one)
        assert len(handles) == limits["maxOpenSessions"]
        assert (refused.kind, refused.facts["retryable"]) == ("OVERLOADED", True)
        for _ in range(most - 1):
            stack.enter_context(Connection(daemon.socket))
        with Connection(daemon.socket) as too_many:
            answer = too_many.read_message()
            assert answer["error"]["data"]["kind"] == "OVERLOADED"
        for handle in handles:
            one.call("session.append", **handle, events=[events.title()])
            assert one.call("session.flush", **handle)["durableSeq"] == 1
            one.call("session.close", **handle)
        listed = one.call("session.list")["sessions"]
        assert [view["state"] for view in listed] == ["idle"] * len(handles)
        assert "INTERNAL" not in one.call("daemon.metrics")["text"]
        turns.begin_turn(one, "goes on")


def open_until_refused(one: Connection) -> tuple[list[dict[str, Any]], CallRefusedError]:
    handles: list[dict[str, Any]] = []
    while True:
        name = f"session {len(handles)}"
        try:
            created = one.call("session.create", id=name)
            handles.append({"id": name, "writer": created["writer"]})
            one.call("session.flush", **handles[-1])
        except CallRefusedError as refused:
            if len(handles) > 0 and handles[-1]["id"] == name:
                handles.pop()
            return handles, refused
        assert len(handles) < 32


@contextmanager
def little_memory(daemon: DaemonProcess, room: int) -> Generator[None, None, None]:
    """Let the running daemon map so many bytes more, and no others."""
    pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    before = resource.prlimit(daemon.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, before)


@pytest.mark.alone
@pytest.mark.parametrize("room", [16 * MIB, 48 * MIB])
def test_a_daemon_without_memory_refuses_large_calls_and_goes_on_when_there_is_some(
    daemon: DaemonProcess, fresh_id: str, room: int
) -> None:
    with Connection(daemon.socket, name="before") as one:
        handle = turns.begin_turn(one, fresh_id)
        durable = one.call("session.flush", **handle)["durableSeq"]
    with little_memory(daemon, room):
        refused = [ask_for_much(daemon) for _ in range(5)]
    assert set(refused) <= {"OVERLOADED", "", "closed", "gone"}, daemon.output()
    if not is_served(
        daemon
    ):  # an allocation failed where nothing can take it: the process ends, as by a kill
        daemon.process.wait(20)
        daemon.start()
    with Connection(daemon.socket, name="after") as one:
        assert len(one.call("session.read", id=fresh_id)["events"]) == durable
        handle = turns.begin_turn(one, f"{fresh_id} again")
        large = events.chunk("x" * (7 * MIB))
        assert one.call("checkpoint.request", **handle, events=[large])["durableSeq"] == 5


def is_served(daemon: DaemonProcess) -> bool:
    try:
        with Connection(daemon.socket, limit_s=5) as one:
            one.call("daemon.status")
    except OSError:
        return False
    return True


def ask_for_much(daemon: DaemonProcess) -> str:
    """The kind of the refusal, empty where there was none, `closed` where the connection was ended."""
    try:
        with Connection(daemon.socket, limit_s=5) as one:
            created = one.call("session.create")
            handle = {"id": created["session"]["id"], "writer": created["writer"]}
            one.call("session.append", **handle, events=[events.title("x" * (7 * MIB))])
            one.call("session.flush", **handle)
    except CallRefusedError as refused:
        return refused.kind
    except (ConnectionRefusedError, BrokenPipeError, ConnectionResetError):
        return "closed"
    except (FileNotFoundError, TimeoutError):
        return "gone"
    return ""
