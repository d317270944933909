"""The wire is not Python's: an agent on node's standard library takes the four checkpoints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.rpc import CallRefusedError

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

SCRIPT = Path(__file__).resolve().parents[2] / "client" / "examples" / "node" / "agent.mjs"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not on this machine's PATH")


def run(daemon: DaemonProcess, session: str) -> subprocess.CompletedProcess[str]:
    argv = [NODE or "node", str(SCRIPT), str(daemon.socket), session]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_the_example_has_eighty_lines_at_most() -> None:
    assert len(SCRIPT.read_text().split("\n")) <= 81


def test_it_takes_the_four_checkpoints_and_goes_on_in_a_second_run(daemon: DaemonProcess) -> None:
    for turn in (1, 2):
        done = run(daemon, "from-node")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "The tool said: 42\n"
        view = daemon.call("session.stat", id="from-node")["session"]
        assert (view["state"], view["turns"]) == ("idle", turn)
    events = daemon.call("session.read", id="from-node")["events"]
    kinds = [event["type"] for event in events]
    assert kinds.count("tool/call") == kinds.count("tool/result") == 2


def test_it_tells_what_a_killed_agent_left(daemon: DaemonProcess) -> None:
    with daemon.connect() as dead:
        writer = dead.call("session.create", id="cut-off")["writer"]
        source = {"kind": "model", "provider": "scripted", "model": "adder-1"}
        block = {"type": "tool-call", "id": "lost", "name": "add", "arguments": "{}"}
        message = {"id": "m", "role": "assistant", "source": source, "content": [block]}
        at = {"turn": 1, "step": 1}
        events = [
            {"type": "turn/start", "data": {"turn": 1}},
            {"type": "step/start", "data": at},
            {"type": "assistant/message", "data": {**at, "message": message}},
        ]
        dead.call("session.append", id="cut-off", writer=writer, events=events)
        dead.call(
            "checkpoint.tool",
            id="cut-off",
            writer=writer,
            callId="lost",
            name="add",
            arguments="{}",
        )
    with (
        daemon.connect() as taker
    ):  # the test's own process is alive: only a takeover frees the session
        taken = taker.call("session.open", id="cut-off", access="write", takeover=True)
        taker.call("session.close", id="cut-off", writer=taken["writer"])
    done = run(daemon, "cut-off")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "TOOL_OUTCOME_UNKNOWN lost\nThe tool said: 42\n"


def test_it_runs_nothing_without_a_daemon(daemon: DaemonProcess) -> None:
    done = subprocess.run(
        [NODE or "node", str(SCRIPT), str(daemon.root / "nobody"), "x"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    with pytest.raises(CallRefusedError, match="SESSION_NOT_FOUND"):
        daemon.call("session.stat", id="x")
