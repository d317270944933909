"""What can be seen of a daemon from outside: figures that agree with the logs, what is degraded, and no content."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.daemon import DaemonProcess, open_daemon
from support.disks import open_read_only, open_tiny_disk
from support.figures import figure
from support.rpc import Connection
from support.verdicts import read_all
from wire.shapes import until_accepted

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "sk-canary-8c1f"


def test_the_figures_agree_with_the_logs(daemon: DaemonProcess, fresh_id: str) -> None:
    with Connection(daemon.socket, name="counted") as one:
        handle = turns.begin_turn(one, fresh_id, "x", "y")
        one.call("checkpoint.tool", **handle, **turns.tool("x"))
        one.call("session.append", **handle, events=[events.chunk()] * 5)
        one.call("session.flush", **handle)
        view = one.call("session.stat", id=fresh_id)["session"]
        one.call("session.subscribe", id=fresh_id, fromSeq=view["nextSeq"])
        assert figure(daemon, "dshd_events_total") == view["durableSeq"] == view["nextSeq"]
        assert figure(daemon, "dshd_log_bytes") == view["sizeBytes"] > 0
        assert figure(daemon, "dshd_written_bytes_total") >= view["sizeBytes"]
        assert figure(daemon, "dshd_fsync_seconds_count") >= figure(daemon, "dshd_flushes_total")
        assert figure(daemon, "dshd_sessions") == 1
        assert figure(daemon, "dshd_open_tool_calls") == 2
        assert figure(daemon, "dshd_pending_events") == 0
        assert figure(daemon, "dshd_subscriptions") == 1
        free = os.statvfs(daemon.root)
        assert abs(figure(daemon, "dshd_disk_free_bytes") - free.f_bavail * free.f_frsize) < 1 << 30
        assert figure(daemon, "process_open_fds") > 5
        assert figure(daemon, "process_resident_memory_bytes") > 1 << 24
    with Connection(daemon.socket) as after:
        after.call("session.stat", id=fresh_id)
        assert figure(daemon, "dshd_subscriptions") == 0


def test_every_sort_of_figure_is_there_and_none_names_a_session(
    daemon: DaemonProcess, fresh_id: str
) -> None:
    with Connection(daemon.socket, name="counted") as one:
        handle = turns.begin_turn(one, fresh_id, "x")
        one.call("checkpoint.tool", **handle, **turns.tool("x"))
        one.refusal("checkpoint.tool", **handle, **turns.tool("y"))
    with Connection(daemon.socket, name=f"client-of-{fresh_id}") as one:
        writer = until_accepted(one, "session.open", id=fresh_id, access="write")["writer"]
        one.call("session.recover", id=fresh_id, writer=writer)
        text = one.call("daemon.metrics")["text"]
    for figure_of in (
        'dshd_checkpoint_seconds_bucket{checkpoint="tool",le=',
        "dshd_fsync_seconds_bucket{le=",
        "dshd_flush_seconds_bucket{le=",
        'dshd_checkpoint_failures_total{checkpoint="tool",kind=',
        'dshd_sessions{state="idle"} 1',
        "dshd_open_tool_calls 0",
        'dshd_repairs_total{code="TOOL_OUTCOME_UNKNOWN"} 1',
        "dshd_recoveries_total 1",
        "dshd_subscriptions 0",
        "# TYPE dshd_subscriptions_lagged counter",
        "dshd_written_bytes_total ",
        "dshd_log_bytes ",
        "dshd_disk_free_bytes ",
    ):
        assert figure_of in text, figure_of
    assert fresh_id not in text


def test_the_figures_are_written_to_a_file_in_one_step(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    target = tmp_path / "dshd.prom"
    command = [sys.executable, "-m", "dsh_client.cli.main", "--socket", str(daemon.socket)]
    told = subprocess.run([*command, "metrics"], capture_output=True, check=True, env=daemon.env)
    assert told.stdout.rstrip().endswith(b"# EOF")
    subprocess.run([*command, "metrics", "--textfile", str(target)], check=True, env=daemon.env)
    assert target.read_text().endswith("# EOF\n")
    assert target.stat().st_mode & 0o777 == 0o644
    refused = subprocess.run(
        [*command, "metrics", "--textfile", str(tmp_path / "none" / "x")],
        capture_output=True,
        check=False,
        env=daemon.env,
    )
    assert refused.returncode == 1
    assert [path.name for path in tmp_path.glob(".dshctl-*")] == []


def test_a_full_disk_is_told_by_the_status_with_its_reason(tmp_path: Path) -> None:
    with open_tiny_disk(tmp_path / "disk") as disk, open_daemon(disk.path) as daemon:
        kinds = {problem["kind"] for problem in daemon.call("daemon.status")["problems"]}
        assert kinds == {"NO_SPACE"}, "so little space is low from the start"
        with Connection(daemon.socket) as one:
            handle = turns.begin_turn(one, "s")
            disk.fill()
            large = events.chunk(secrets.token_hex(100_000))
            one.refusal("checkpoint.request", **handle, events=[large])
            told = [problem["message"] for problem in one.call("daemon.status")["problems"]]
            assert any("bytes are free" in text for text in told)
            assert any("nothing of the batch was kept" in text for text in told)
            assert figure(daemon, "dshd_sessions_failing") == 1
            disk.free()
            one.call("session.flush", **handle)
            assert figure(daemon, "dshd_sessions_failing") == 0


def test_a_daemon_starts_on_a_full_root_and_says_what_is_wrong(tmp_path: Path) -> None:
    with open_tiny_disk(tmp_path / "disk") as disk:
        (disk.path / "root").mkdir(mode=0o700)
        disk.fill()
        flags = ("--root", str(disk.path / "root"))
        with open_daemon(tmp_path, flags=flags) as daemon:
            assert [one["kind"] for one in daemon.call("daemon.status")["problems"]] == ["NO_SPACE"]
            with Connection(daemon.socket) as one:
                handle = {"id": "s", "writer": one.call("session.create", id="s")["writer"]}
                asked = {**handle, "events": turns.opening(), "expectedSeq": 0}
                assert one.refusal("checkpoint.request", **asked).kind == "NO_SPACE"
                disk.free()
                assert one.call("checkpoint.request", **asked)["durableSeq"] == 4
            assert daemon.stop() == 0


@pytest.mark.parametrize("used_before", [True, False])
def test_on_a_read_only_root_sessions_are_read_and_nobody_else_gets_in(
    tmp_path: Path,
    used_before: bool,  # noqa: FBT001  # pytest gives arguments by name
) -> None:
    with open_daemon(tmp_path) as daemon:
        if used_before:
            with Connection(daemon.socket) as one:
                turns.write_session(one, "before")
        daemon.stop()
        if not used_before:
            (daemon.root / "dshd.lock").unlink()
        with open_read_only(daemon.root):
            if not used_before:
                assert daemon.launch().wait(20) == 78
                assert "EROFS (Read-only file system)" in daemon.output()
                return
            daemon.start()
            with Connection(daemon.socket) as one:
                assert len(read_all(one, "before")) == 7
                problems = one.call("daemon.status")["problems"]
                assert any("is mounted read-only" in problem["message"] for problem in problems)
            second = DaemonProcess(tmp_path)
            assert second.launch().wait(20) == 78
            assert "is held by another daemon" in second.output()
            second.remove()


def test_a_removed_socket_s_folder_that_is_not_ours_any_more_is_told(
    daemon: DaemonProcess,
) -> None:
    with Connection(daemon.socket) as one:
        daemon.socket.unlink()
        daemon.socket.write_text("in the way")
        problems: list[Any] = []
        for _ in range(200):
            problems = one.call("daemon.status")["problems"]
            if problems:
                break
            one.call("session.list")
            subprocess.run(["sleep", "0.05"], check=True)  # noqa: S607  # the daemon looks by the real clock
        assert [problem["kind"] for problem in problems] == ["UNSAFE_PATH"]
        assert "clients cannot reach the daemon" in problems[0]["message"]
        daemon.socket.unlink()


def test_no_content_of_a_session_reaches_the_log_or_an_error(
    daemon: DaemonProcess, fresh_id: str
) -> None:
    answers: list[Any] = []
    with Connection(daemon.socket, name="leaky") as one:
        handle = turns.begin_turn(one, fresh_id, CANARY)
        chunk = events.chunk(CANARY)
        for method, params in hostile(handle, chunk):
            answers.append(one.answer(one.send(method, **params)))
        one.notify("session.append", **handle, events=[{"type": "no/such", "data": {CANARY: 1}}])
        answers.append(one.answer(one.send("session.flush", **handle)))
        for line in (
            f'{{"jsonrpc":"2.0","id":1,"method":"session.append","params":{{"x":"{CANARY}',
            f'{{"jsonrpc":"2.0","id":1,"method":"session.append","params":{{"events":[{{"data":"{CANARY}\\ud800"}}]}}}}',
        ):
            one.send_line(line.encode())
            answers.append(one.read_message())
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert len(errors) >= 8
    assert CANARY not in json.dumps(errors)
    daemon.stop()
    assert "daemon.stopped" in daemon.output()
    assert CANARY not in daemon.output()


def hostile(handle: dict[str, Any], chunk: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Calls that are refused, each with the canary where content stands."""
    wrong = {"type": "tool/result", "data": {"message": {"content": CANARY}}}
    return [
        ("session.append", {**handle, "events": [chunk], "expectedSeq": 1}),
        ("session.append", {**handle, "events": [wrong]}),
        ("session.append", {**handle, "events": [chunk, {"data": CANARY}]}),
        ("session.append", {**handle, "events": CANARY}),
        ("session.append", {**handle, "events": [], "expectedSeq": CANARY}),
        ("checkpoint.tool", {**handle, "callId": "c", "name": "n", "arguments": CANARY}),
        ("checkpoint.turnEnd", {**handle, "reason": {"kind": "error", "error": {"x": CANARY}}}),
        ("checkpoint.request", {**handle, "events": [{"type": "user/message", "data": CANARY}]}),
    ]
