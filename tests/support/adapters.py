"""How every adapter is judged: its agent is a real process, killed at a point of its course and run again.

The one rule: what happened is counted in files and in the stored log, never asked of the adapter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from support.daemon import DaemonProcess, open_daemon
from support.rpc import CallRefusedError, Connection
from support.warm import Order, Run, Warm, cold, end

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

TREE = Path(__file__).resolve().parents[2]
AGENTS = TREE / "tests" / "adapters" / "agents"
TABLE = TREE / "client" / "ADAPTERS.md"
LIMIT_S = 60.0

FAULTS = ("disk full", "daemon gone", "write handle lost")
MOMENTS = ("before-request", "after-answer", "in-body")
"""When a fault strikes: before the first request, between answer and tools, while tools run."""

_GUIDANCE = {"TOOL_NOT_STARTED": "did not run", "TOOL_OUTCOME_UNKNOWN": "result was lost"}


@dataclass
class Agent:
    """A test agent's program and folder, over its runs."""

    script: str
    daemon: DaemonProcess
    folder: Path
    options: tuple[str, ...] = ()
    session: str = ""
    warm: Warm | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.session = self.session or f"agent-{uuid4()}"

    def start(self, point: str, *options: str) -> Run:
        """Start one run and return at once; `finish` ends it."""
        argv = [str(self.daemon.socket), self.session, str(self.folder), point]
        env = self.daemon.env | {"OPENAI_AGENTS_DISABLE_TRACING": "1"}
        order = Order([*argv, *self.options, *options], env, self._output)
        return self.warm.start(order) if self.warm else cold(AGENTS / self.script, order)

    def finish(self, run: Run) -> tuple[int, str]:
        """Wait for a run's end, kill what it left behind, return exit code and output."""
        try:
            code = run.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the agent hangs:\n{self._output.read_text()}") from None
        finally:
            end(run)
        return code, self._output.read_text("utf-8", "replace")

    def run(self, point: str, *options: str) -> tuple[int, str]:
        """Run it to its end; return exit code and output."""
        return self.finish(self.start(point, *options))

    @property
    def _output(self) -> Path:
        return self.folder / "output"

    def lines(self, what: str) -> list[Any]:
        """What the agent noted in all its runs."""
        path = self.folder / what
        written = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in written]

    def events(self) -> list[dict[str, Any]]:
        """The stored session; empty where it never came to be."""
        try:
            found: list[dict[str, Any]] = self.daemon.call("session.read", id=self.session)[
                "events"
            ]
        except CallRefusedError as error:
            if error.kind == "SESSION_NOT_FOUND":
                return []
            raise
        return found


def check_killed_and_resumed(agent: Agent, point: str) -> None:
    """Kill an agent at a point, run it again, and demand what must hold whatever the framework."""
    code, output = agent.run(point)
    assert code == -9, f"{point} was not reached; the agent ended with {code}:\n{output}"
    before = agent.lines("bodies")
    requests = len(agent.lines("requests"))
    view: dict[str, Any] = {}
    if agent.events():
        view = agent.daemon.call("session.stat", id=agent.session)["session"]
    code, output = agent.run("none")
    assert code == 0, output
    assert "all done" in output
    stored = agent.events()
    repaired = repairs_in(stored)
    check_bodies(before, agent.lines("bodies"), repaired)
    check_guidance(agent.lines("requests")[requests], repaired)
    check_stored(agent, stored)
    assert view.get("openTurn") is None or any(
        e["data"]["reason"]["kind"] == "interrupted" for e in stored if e["type"] == "turn/end"
    )


def repairs_in(stored: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The calls that recovery answered, with their codes."""
    results = [event["data"] for event in stored if event["type"] == "tool/result"]
    errors = [one for one in results if "error" in one]
    codes: dict[str, str] = {
        one["message"]["source"]["callId"]: one["error"]["code"] for one in errors
    }
    return {call_id: code for call_id, code in codes.items() if code in _GUIDANCE}


def check_bodies(before: list[Any], after: list[Any], repaired: dict[str, str]) -> None:
    """No body ran twice, unless what it says of itself allows that."""
    ran = [line["name"] for line in after]
    for name in ("pay", "post"):
        assert ran.count(name) <= 1, f"{name} ran {ran.count(name)} times"
    for call_id, code in repaired.items():
        if code == "TOOL_NOT_STARTED":
            assert call_id.split("-")[1] not in [line["name"] for line in before]
    for line in after:
        assert str(line["key"]).startswith("dshd1-"), line
    assert len({line["key"] for line in after}) == len(after)


def check_guidance(request: list[dict[str, Any]], repaired: dict[str, str]) -> None:
    """The first request after the crash holds, for each cut-off call, what is to be done, as that call's answer."""
    answers = {said["call_id"]: said["text"] for said in request if said["call_id"]}
    told = [said["text"] for said in request if said["call_id"] is None]
    for call_id, code in repaired.items():
        if call_id not in answers:  # a framework that keeps its own history: told with the prompt
            assert any(call_id in text and _GUIDANCE[code] in text for text in told), (
                call_id,
                told,
            )
            continue
        assert _GUIDANCE[code] in answers[call_id], (call_id, code, answers)
        if call_id == "call-look" and code == "TOOL_OUTCOME_UNKNOWN":
            assert "declared read-only" in answers[call_id]


def check_stored(agent: Agent, stored: Sequence[dict[str, Any]]) -> None:
    """The log is whole and closed."""
    asked = [e["data"]["callId"] for e in stored if e["type"] == "tool/call"]
    assert len(asked) == len(set(asked))
    assert [event["seq"] for event in stored] == list(range(len(stored)))
    view = agent.daemon.call("session.stat", id=agent.session)["session"]
    assert (view["state"], view["problem"]) == ("idle", None)


def check_pieces(stored: Sequence[dict[str, Any]]) -> None:
    """Every answer cites its pieces, which together are what it says and what it asks for."""
    for answer in (event for event in stored if event["type"] == "assistant/message"):
        seqs: list[int] = answer.get("sourceEventSeqs", [])
        cited: list[dict[str, Any]] = [stored[seq]["data"]["chunk"] for seq in seqs]
        for block in answer["data"]["message"]["content"]:
            if block["type"] == "text":
                text = "".join(one["text"] for one in cited if one["type"] == "text-delta")
                assert text.split() == block["text"].split()
            elif block["type"] == "tool-call":
                given = [one for one in cited if one.get("id") == block["id"]]
                assert [one["name"] for one in given if "name" in one] == [block["name"]]
                told = "".join(one["argumentsDelta"] for one in given)
                assert json.loads(told) == json.loads(block["arguments"])


def check_verified(daemon: DaemonProcess) -> None:
    """Every log that the runs left passes `dshd verify`."""
    argv = [sys.executable, "-m", "dshd.main", "verify", str(daemon.root)]
    done = subprocess.run(argv, capture_output=True, text=True, env=daemon.env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -- faults -----------------------------------------------------------------------------------------------------------


@contextmanager
def daemon_for(fault: str, base: Path) -> Generator[DaemonProcess, None, None]:
    """Start a daemon that the fault can strike."""
    base.mkdir(parents=True)
    if fault != "disk full":
        with open_daemon(base) as daemon:
            yield daemon
        return
    small = base / "small"
    small.mkdir()
    mount = [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        with open_daemon(small) as daemon:
            yield daemon
    finally:
        subprocess.run([shutil.which("umount") or "umount", "-l", str(small)], check=True)


def strike(fault: str, agent: Agent) -> Connection | None:
    """Do the damage; return what holds the stolen write handle, to be closed when the agent has ended."""
    daemon = agent.daemon
    if fault == "disk full":
        with (daemon.root / "ballast").open("wb", buffering=0) as ballast:
            while True:
                try:
                    ballast.write(b"x" * 512)
                except OSError:
                    return None
    daemon.kill()
    if fault == "daemon gone":
        return None
    daemon.start()
    known = bool(agent.events())
    thief = daemon.connect()
    if known:
        thief.call("session.open", id=agent.session, access="write", takeover=True)
    else:
        thief.call("session.create", id=agent.session)
    return thief


def check_stopped_by(fault: str, moment: str, agent: Agent) -> str:
    """Let a fault strike at a moment; demand that no model is called and no body runs after it. Returns the outcome."""
    pad = ("pad=yes",) if fault == "disk full" else ()
    process = agent.start("none", f"fault={moment}", "timeout=2", *pad)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not (agent.folder / "reached").exists():
            assert process.poll() is None, agent.finish(process)
            assert time.monotonic() < deadline, f"{moment} is not reached"
            time.sleep(0.01)  # another process moves by the real clock
        if moment == "in-body":
            _wait_for_bodies(agent)
        thief = strike(fault, agent)
        before = len(agent.lines("bodies")), len(agent.lines("requests"))
        (agent.folder / "done").write_text("yes")
    finally:
        code, output = agent.finish(process)
    if thief is not None:
        thief.close()
    after = len(agent.lines("bodies")), len(agent.lines("requests"))
    assert after == before, f"bodies and requests {before} became {after}:\n{output}"
    assert code not in {0, -9}, output
    return _error_in(output)


def _wait_for_bodies(agent: Agent) -> None:
    """Wait until no further body begins: those that run side by side have begun."""
    count = -1
    while count != len(agent.lines("bodies")):
        count = len(agent.lines("bodies"))
        time.sleep(0.3)


def _error_in(output: str) -> str:
    known = (
        "LatchedError",
        "NoSpaceError",
        "WriterLostError",
        "DaemonUnavailableError",
        "CallTimeoutError",
        "SessionExistsError",
        "WriteFailedError",
    )
    found = [name for name in known if name in output]
    assert found, output
    return found[0]


def tell(framework: str, fault: str, outcome: str) -> None:
    """Hold the documented table against what happened; `DSHD_WRITE_TABLE=1` writes it."""
    line = f"| {framework} | {fault} | {outcome} |"
    text = TABLE.read_text("utf-8")
    if line in text:
        return
    assert os.environ.get("DSHD_WRITE_TABLE") == "1", f"{TABLE.name} does not say: {line}"
    head, tail = text.split("<!-- table:begin -->\n")[0], text.split("<!-- table:end -->")[1]
    rows = text.split("<!-- table:begin -->\n")[1].split("<!-- table:end -->")[0].splitlines()
    kept = [row for row in rows if row and not row.startswith(f"| {framework} | {fault} |")]
    body = "\n".join([*kept[:2], *sorted([*kept[2:], line])])
    TABLE.write_text(f"{head}<!-- table:begin -->\n{body}\n<!-- table:end -->{tail}", "utf-8")


def fault_outcome(told: str) -> str:
    """What the table says of a fault that stopped the run at every moment."""
    return f"stopped at all three moments: no further request, no further body; {told}"
