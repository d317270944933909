"""Every verb against a real `dshd`: the keys of its JSON, and a crash seen and mended from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from dsh_protocol.version import VERSION
from support.daemon import DaemonProcess, open_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Plays an agent: one turn, one answer with two calls, the first of which was started; then it waits to be killed.
AGENT = """
import sys
from dsh_client.blocking import Client
client = Client(sys.argv[1], name="agent-under-test")
made = client.call("session.create", id=sys.argv[2], cwd=sys.argv[3])
handle = {"id": sys.argv[2], "writer": made["writer"]}
model = {"kind": "model", "provider": "p", "model": "m"}
calls = [{"type": "tool-call", "id": c, "name": "append_line", "arguments": "{}"} for c in ("c1", "c2")]
user = {"id": "u1", "role": "user", "source": {"kind": "user"}, "content": [{"type": "text", "text": "go \\x1b[2J"}]}
answer = {"id": "a1", "role": "assistant", "source": model, "content": calls}
client.call("session.append", **handle, events=[
    {"type": "turn/start", "data": {"turn": 1}},
    {"type": "step/start", "data": {"turn": 1, "step": 1}},
    {"type": "user/message", "data": user},
    {"type": "request/header", "data": {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "initial"}},
])
client.call("checkpoint.request", **handle)
said = {"type": "assistant/message", "data": {"turn": 1, "step": 1, "message": answer}, "sourceEventSeqs": []}
client.call("checkpoint.tool", **handle, events=[said], callId="c1", name="append_line", arguments="{}")
print("ready", flush=True)
sys.stdin.read()
"""
SESSION_KEYS = {
    "id",
    "header",
    "state",
    "nextSeq",
    "durableSeq",
    "sizeBytes",
    "revision",
    "createdAt",
    "updatedAt",
    "title",
    "turns",
    "openTurn",
    "openStep",
    "pendingCalls",
    "writer",
    "problem",
}
RECOVERY_KEYS = {"committed", "repairs", "closers", "nextSeq"}
REPAIR_KEYS = {
    "callId",
    "name",
    "arguments",
    "turn",
    "step",
    "code",
    "callSeq",
    "idempotencyKey",
    "message",
}


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def dshctl(daemon: DaemonProcess, *words: str) -> Ended:
    ended = subprocess.run(
        [sys.executable, "-m", "dsh_client.cli.main", "--socket", str(daemon.socket), *words],
        check=False,
        capture_output=True,
        env=daemon.env,
        timeout=60,
    )
    return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def document(daemon: DaemonProcess, *words: str) -> Any:
    """Return the one JSON document that a successful command prints."""
    ended = dshctl(daemon, "-o", "json", *words)
    assert ended.code == 0, ended.err
    assert ended.out.count("\n") == 1
    return json.loads(ended.out)


def start_agent(daemon: DaemonProcess, session_id: str, cwd: Path) -> subprocess.Popen[bytes]:
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(daemon.socket), session_id, str(cwd)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"ready\n"
    return agent


def end(agent: subprocess.Popen[bytes]) -> None:
    agent.kill()
    agent.communicate()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path) as running:
        yield running


@pytest.fixture
def crashed(daemon: DaemonProcess, tmp_path: Path) -> DaemonProcess:
    """A daemon that was killed together with the agent of session `crash-1`, and started again."""
    agent = start_agent(daemon, "crash-1", tmp_path)
    end(agent)
    daemon.kill()
    return daemon.start()


def test_an_empty_daemon(daemon: DaemonProcess) -> None:
    assert document(daemon, "list") == {"sessions": [], "nextCursor": None}
    assert dshctl(daemon, "list").err == "no session is stored yet\n"
    assert set(document(daemon, "status")) == {
        "server",
        "startedAt",
        "sessions",
        "limits",
        "socket",
        "root",
        "problems",
    }
    assert f"daemon    dshd {VERSION}, pid {daemon.pid}" in dshctl(daemon, "status").out
    versions = document(daemon, "version")
    assert versions["server"]["pid"] == daemon.pid
    missing = dshctl(daemon, "show", "nobody")
    assert missing.code == 4
    assert missing.err.endswith("try: dshctl list --all\n")


def test_the_keys_of_every_document(crashed: DaemonProcess) -> None:
    listed = document(crashed, "list")
    assert set(listed) == {"sessions", "nextCursor"}
    assert [set(found) for found in listed["sessions"]] == [SESSION_KEYS]
    shown = document(crashed, "show", "cra")
    assert set(shown) == {"session", "writer", "recovery"}
    assert set(shown["session"]) == SESSION_KEYS
    assert set(shown["recovery"]) == RECOVERY_KEYS
    assert [set(repair) for repair in shown["recovery"]["repairs"]] == [REPAIR_KEYS, REPAIR_KEYS]
    log = document(crashed, "log", "crash-1")
    assert set(log) == {"events", "nextOffset", "end", "durableSeq"}
    assert log["end"] is True
    assert [event["seq"] for event in log["events"]] == list(range(6))
    assert set(document(crashed, "messages", "crash-1")) == {
        "messages",
        "nextOffset",
        "requestHeader",
        "requestContext",
        "recovery",
        "problem",
    }
    assert document(crashed, "recover", "crash-1") == shown["recovery"]
    assert document(crashed, "rpc", "session.stat", '{"id": "crash-1"}') == {
        "session": shown["session"]
    }
    assert set(document(crashed, "recover", "crash-1", "--apply")) == RECOVERY_KEYS


def test_a_crash_is_seen_and_mended_from_the_command_line(crashed: DaemonProcess) -> None:
    shown = dshctl(crashed, "show", "@last")
    assert shown.code == 0
    assert "state       interrupted, in turn 1, step 1" in shown.out
    assert "open calls  c1, c2" in shown.out
    assert "next: dshctl recover crash-1" in shown.out
    before = document(crashed, "log", "crash-1")
    preview = dshctl(crashed, "recover", "crash-1")
    assert preview.code == 0
    assert "TOOL_OUTCOME_UNKNOWN  dshd1-" in preview.out
    assert "TOOL_NOT_STARTED" in preview.out
    assert "would be written" in preview.out
    assert document(crashed, "log", "crash-1") == before
    applied = document(crashed, "recover", "crash-1", "--apply")
    assert applied["committed"] is True
    assert [repair["callId"] for repair in applied["repairs"]] == ["c1", "c2"]
    after = document(crashed, "log", "crash-1")
    stored = len(before["events"])
    assert after["events"][:stored] == before["events"]
    assert after["events"][stored : stored + len(applied["closers"])] == applied["closers"]
    closed = document(crashed, "show", "crash-1")["session"]
    assert closed["state"] == "idle"
    assert closed["writer"] is None
    assert "nothing to recover" not in dshctl(crashed, "recover", "crash-1").out


def test_what_a_person_reads_is_safe_on_a_terminal(crashed: DaemonProcess) -> None:
    for words in (["list"], ["log", "crash-1"], ["messages", "crash-1"], ["show", "crash-1"]):
        ended = dshctl(crashed, *words)
        assert ended.code == 0, ended.err
        assert "\x1b" not in ended.out
    assert "go \\x1b[2J" in dshctl(crashed, "messages", "crash-1").out
    lines = dshctl(crashed, "-o", "jsonl", "log", "crash-1", "-n", "2").out.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["assistant/message", "tool/call"]


def test_a_living_agent_keeps_its_session(daemon: DaemonProcess, tmp_path: Path) -> None:
    agent = start_agent(daemon, "live-1", tmp_path)
    try:
        shown = dshctl(daemon, "show", "live-1")
        assert "state       active, in turn 1, step 1" in shown.out
        assert f"agent-under-test, pid {agent.pid}" in shown.out
        busy = dshctl(daemon, "recover", "live-1", "--apply")
        assert busy.code == 5
        assert str(agent.pid) in busy.err
        refused = dshctl(daemon, "rpc", "checkpoint.request", '{"id": "live-1", "writer": "x"}')
        assert refused.code == 5
    finally:
        end(agent)


def test_a_daemon_that_is_gone_is_exit_code_3(daemon: DaemonProcess) -> None:
    daemon.stop()
    gone = dshctl(daemon, "list")
    assert gone.code == 3
    assert gone.out == ""
    daemon.start()
    daemon.kill()
    assert dshctl(daemon, "status").code == 3
