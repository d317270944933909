"""Every adapter on its framework's own fake model: killed, run again, cut off from its log.

A framework is judged where it is installed; `make adapters` makes an environment for each.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from support.adapters import (
    FAULTS,
    MOMENTS,
    TREE,
    Agent,
    check_killed_and_resumed,
    check_pieces,
    check_stopped_by,
    check_stored,
    daemon_for,
    fault_outcome,
    tell,
)
from support.frameworks import FEW_POINTS, FRAMEWORKS, case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.daemon import DaemonProcess
    from support.warm import Warm


class Bench:
    """Makes the test agents of one framework: forked from an interpreter that has it imported, or in new ones."""

    def __init__(self, framework: str, warm: Callable[[str], Warm]) -> None:
        self.how = FRAMEWORKS[framework]
        self.framework = framework
        self._script = f"{framework}_agent.py"
        self._warm = warm

    def agent(
        self, daemon: DaemonProcess, folder: Path, *options: str, cold: bool = False
    ) -> Agent:
        order = () if self.how.parallel else ("sequential=yes",)
        warm = None if cold else self._warm(self._script)
        return Agent(self._script, daemon, folder, (*order, *options), warm=warm)


@pytest.fixture
def bench(framework: str, warm: Callable[[str], Warm]) -> Bench:
    return Bench(framework, warm)


ALL = [case(framework) for framework in FRAMEWORKS]
REISSUING = [case(key) for key, one in FRAMEWORKS.items() if one.reissues]
QUICK_POINTS = ("in-tool", "after-step")
KILLS = [
    case(key, mode, point, slow=mode != framework.modes[0] and point not in QUICK_POINTS)
    for key, framework in FRAMEWORKS.items()
    for mode in framework.modes
    for point in framework.points
    if mode == framework.modes[0] or point in FEW_POINTS
]
OTHER_MODES = [
    case(key, mode, slow=mode != framework.modes[-1])
    for key, framework in FRAMEWORKS.items()
    for mode in framework.modes[1:]
]


@pytest.mark.parametrize(("framework", "mode", "point"), KILLS)
def test_a_killed_agent_goes_on_and_runs_nothing_twice(
    daemon: DaemonProcess, tmp_path: Path, bench: Bench, mode: str, point: str
) -> None:
    check_killed_and_resumed(bench.agent(daemon, tmp_path, f"mode={mode}"), point)


@pytest.mark.parametrize("framework", ALL)
def test_nothing_of_it_depends_on_an_interpreter_that_has_seen_the_framework(
    daemon: DaemonProcess, tmp_path: Path, bench: Bench
) -> None:
    check_killed_and_resumed(bench.agent(daemon, tmp_path, cold=True), "in-tool")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("framework", ALL)
def test_nothing_runs_when_the_log_cannot_be_kept(tmp_path: Path, bench: Bench, fault: str) -> None:
    for moment in MOMENTS:
        check_stopped_with(bench, fault, moment, bench.how.modes[0], tmp_path / moment)
    tell(bench.how.name, fault, fault_outcome(bench.how.told))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("framework", "mode"), OTHER_MODES)
def test_nor_in_any_other_way_of_running_the_agent(
    tmp_path: Path, bench: Bench, mode: str, fault: str
) -> None:
    moment = MOMENTS[1 + bench.how.modes.index(mode) % 2]
    check_stopped_with(bench, fault, moment, mode, tmp_path / moment)


def check_stopped_with(bench: Bench, fault: str, moment: str, mode: str, base: Path) -> None:
    with daemon_for(fault, base) as own:
        agent = bench.agent(own, base / "agent", f"mode={mode}", *bench.how.chain)
        check_stopped_by(fault, moment, agent)


@pytest.mark.parametrize("framework", REISSUING)
def test_calls_that_never_began_are_issued_again_where_that_is_wanted(
    daemon: DaemonProcess, tmp_path: Path, bench: Bench
) -> None:
    agent = bench.agent(daemon, tmp_path, "unstarted=reissue")
    assert agent.run("after-answer")[0] == -9
    code, output = agent.run("none")
    assert code == 0, output
    assert sorted(line["name"] for line in agent.lines("bodies")) == ["look", "pay", "post"]
    assert len(agent.lines("requests")) == 2, "the model was asked before the calls were made again"


@pytest.mark.parametrize("framework", [one for one in ALL if one.id != "claude"])
def test_a_hook_that_knows_what_became_of_a_call_is_believed(
    daemon: DaemonProcess, tmp_path: Path, bench: Bench
) -> None:
    agent = bench.agent(daemon, tmp_path, "verify=the bank")
    assert agent.run("in-tool")[0] == -9
    code, output = agent.run("none")
    assert code == 0, output
    answers = {said["call_id"]: said["text"] for said in agent.lines("requests")[1]}
    assert "pay was done, says the bank" in answers["call-pay"]


STREAMING = [
    ("langgraph", "stream"),
    ("pydantic_ai", "stream"),
    ("openai_agents", "stream"),
    ("anthropic", "stream"),
    ("openai", "stream"),
    ("openai", "async-stream"),
    ("claude", "stream"),
]
STREAMS = [case(*one) for one in STREAMING]


@pytest.mark.parametrize(("framework", "mode"), STREAMS)
def test_a_streamed_answer_is_recorded_piece_by_piece(
    daemon: DaemonProcess, tmp_path: Path, bench: Bench, mode: str
) -> None:
    agent = bench.agent(daemon, tmp_path, f"mode={mode}")
    code, output = agent.run("none")
    assert code == 0, output
    stored = agent.events()
    check_pieces(stored)
    (header,) = [e["data"]["header"] for e in stored if e["type"] == "request/header"]
    assert header["config"]["provider"] != "Watched", "it is called by what stands before it"


@pytest.mark.parametrize(
    ("framework", "mode"), [case(*one, slow=one[0] != "openai_agents") for one in STREAMING]
)
def test_a_stream_that_is_killed_leaves_the_pieces_that_were_sent(
    daemon: DaemonProcess, tmp_path: Path, bench: Bench, mode: str
) -> None:
    agent = bench.agent(daemon, tmp_path, f"mode={mode}", "slow=yes")
    assert agent.run("piece-3")[0] == -9  # the third itself may not have left
    assert sent_pieces(agent, 2), agent.events()
    code, output = agent.run("none")
    assert code == 0, output
    stored = agent.events()
    answers = [event["seq"] for event in stored if event["type"] == "assistant/message"]
    pieces = [event["seq"] for event in stored if event["type"] == "assistant/chunk"]
    assert [seq for seq in pieces if seq < answers[0]][:2] == pieces[:2]
    check_pieces(stored)  # the answers of the second run cite theirs alone
    check_stored(agent, stored)


def sent_pieces(agent: Agent, count: int) -> bool:
    """Whether so many pieces or more, and no answer, come to be stored: what is on its way arrives after the kill."""
    deadline = time.monotonic() + 20.0
    kinds: list[str] = []
    while kinds.count("assistant/chunk") < count and time.monotonic() < deadline:
        kinds = [event["type"] for event in agent.events()]
    return kinds.count("assistant/chunk") >= count and "assistant/message" not in kinds


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("framework", "mode"), [case(*one, slow=True) for one in STREAMING])
def test_what_strikes_in_the_middle_of_a_stream_stops_the_run_before_any_tool(
    tmp_path: Path, bench: Bench, mode: str, fault: str
) -> None:
    check_stopped_with(bench, fault, "piece", mode, tmp_path / "agent")


DELEGATING = [
    case(*one)
    for one in (
        ("langgraph", "sync"),
        ("langgraph", "graph"),
        ("pydantic_ai", "run"),
        ("openai_agents", "run"),
    )
]


@pytest.mark.parametrize(("framework", "mode"), DELEGATING)
def test_an_agent_inside_of_a_tool_has_a_session_of_its_own_that_names_its_parent(
    daemon: DaemonProcess, tmp_path: Path, bench: Bench, mode: str
) -> None:
    agent = bench.agent(daemon, tmp_path, f"mode={mode}", "delegate=yes")
    code, output = agent.run("none")
    assert code == 0, output
    keys = {line["name"]: line["key"] for line in agent.lines("bodies")}
    check_child(agent, keys["look"].replace("dshd1-", "agent-"))


def check_child(agent: Agent, session: str) -> None:
    """A child of the agent's session, by that id, is closed; nothing of it stands in the parent's log."""
    child = agent.daemon.call("session.stat", id=session)["session"]
    assert child["header"]["parentSession"] == agent.session
    assert (child["header"]["origin"], child["header"]["delegationDepth"]) == ("subagent", 1)
    assert (child["state"], child["turns"]) == ("idle", 1)
    stored = agent.events()
    check_stored(agent, stored)
    assert not [e for e in stored if e["type"] == "tool/result" and "error" in e["data"]]
    assert len([e for e in stored if e["type"] == "assistant/message"]) == 2, "the child's is here"


AS_TOOLS = [
    case("openai_agents", "run"),
    case("openai_agents", "stream", slow=True),
    case("claude", "query"),
    case("claude", "stream"),
]


@pytest.mark.parametrize(("framework", "mode"), AS_TOOLS)
def test_an_agent_as_tool_has_a_session_of_its_own_and_its_tools_are_gated_there(
    daemon: DaemonProcess, tmp_path: Path, bench: Bench, mode: str
) -> None:
    agent = bench.agent(daemon, tmp_path, "delegate=tool", f"mode={mode}")
    code, output = agent.run("none")
    assert code == 0, output
    listed = daemon.call("session.list", limit=1000)["sessions"]
    (child,) = [one for one in listed if one["header"].get("parentSession") == agent.session]
    check_child(agent, child["id"])
    told = daemon.call("session.read", id=child["id"])["events"]
    (inner,) = [event["data"] for event in told if event["type"] == "tool/call"]
    assert inner["callId"] == "inner-look"


@pytest.mark.parametrize("fault", ["daemon gone", "disk full"])
@pytest.mark.parametrize(
    ("framework", "mode"), [case("openai_agents", "run", slow=True), case("claude", "query")]
)
def test_what_strikes_inside_of_such_an_agent_stops_it_and_its_caller(
    tmp_path: Path, bench: Bench, mode: str, fault: str
) -> None:
    with daemon_for(fault, tmp_path / "daemon") as own:
        agent = bench.agent(own, tmp_path / "agent", "delegate=tool", f"mode={mode}")
        check_stopped_by(fault, "in-body", agent)


EXAMPLES = {
    "langgraph": "with_langchain.py",
    "pydantic_ai": "with_pydantic_ai.py",
    "openai_agents": "with_openai_agents.py",
}


@pytest.mark.parametrize("framework", [case(framework) for framework in EXAMPLES])
def test_the_example_runs_without_network_or_key(daemon: DaemonProcess, framework: str) -> None:
    argv = [sys.executable, str(TREE / "client" / "examples" / EXAMPLES[framework]), framework]
    env = daemon.env | {"DSHD_SOCKET": str(daemon.socket)}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The tool said: paid 4.20 under dshd1-")
    view = daemon.call("session.stat", id=framework)["session"]
    assert (view["state"], view["turns"]) == ("idle", 1)
