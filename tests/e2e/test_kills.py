"""SIGKILL of the agent, of the daemon and of both, at every point of a turn: real processes, sockets and files.

Every agent of a test runs at the same time on one daemon; each stands still at another point; all are killed at once.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.agents import AgentProcess, open_agents
from support.daemon import DaemonProcess, open_daemon
from support.rpc import Connection
from support.verdicts import NOT_STARTED, UNKNOWN, Journal, check_recovery

if TYPE_CHECKING:
    from collections.abc import Iterator

ZSTD, RAW = "zstd", "none"
PLACES = ("unsent", "sent", "answered")
POINTS = ("request", "tool", "body", "result", "step-end", "turn-end")

# What is due when the daemon never read the call that was under way, and when it has answered it.
BEFORE = {
    "request": {},
    "tool": {"x": NOT_STARTED},
    "body": {"x": UNKNOWN},
    "result": {"x": UNKNOWN},
    "step-end": {},
    "turn-end": {},
}
AFTER = BEFORE | {"tool": {"x": UNKNOWN}, "result": {}}
# Here the result is admitted and its batch window open: only the daemon's death may take it.
ADMITTED = {("result", "answered"), ("step-end", "unsent"), ("step-end", "sent")}


@pytest.fixture
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path, flags=("--compression", request.param)) as daemon:
        yield daemon


def plan_of(daemon: DaemonProcess, session_id: str, **more: Any) -> dict[str, Any]:
    base = daemon.root.parent
    return {
        "socket": str(daemon.socket),
        "id": session_id,
        "cwd": "/w",
        "journal": str(base / f"{session_id}.journal"),
        "effects": str(base / f"{session_id}.effects"),
        **more,
    }


def kill(victim: str, daemon: DaemonProcess, agents: list[AgentProcess]) -> None:
    """Kill the agents, the daemon or both; afterwards a daemon runs."""
    if victim != "agent":
        daemon.kill()
    if victim != "daemon":
        for agent in agents:
            agent.kill()
    if victim != "agent":
        daemon.start()


def check_reserved(daemon: DaemonProcess, agent: AgentProcess) -> None:
    """Demand that a living agent's open turn is not repaired over its head."""
    session_id = agent.plan["id"]
    with Connection(daemon.socket) as one:
        view = one.call("session.stat", id=session_id)["session"]
        if view["openTurn"] is None:
            return
        assert view["state"] == "active"
        assert view["writer"]["connected"] is False
        refused = one.refusal("session.open", id=session_id, access="write")
        assert refused.kind == "SESSION_BUSY"
        assert refused.facts["holder"]["pid"] == agent.pid
        assert refused.facts["holder"]["connected"] is False
        assert refused.facts["retryable"] is True


def judge(daemon: DaemonProcess, agent: AgentProcess, *, alive: bool) -> dict[str, str]:
    """Recover one agent's session under the judge's eyes, and return the codes of its repairs by call."""
    plan = agent.plan
    if alive:
        check_reserved(daemon, agent)
    repairs = check_recovery(daemon, plan["id"], Journal(Path(plan["journal"])), takeover=alive)
    return {repair["callId"]: repair["code"] for repair in repairs}


def stored_at_all(daemon: DaemonProcess, agent: AgentProcess) -> bool:
    """Whether a session is there; where it is not, demand that nothing of it was acknowledged."""
    with Connection(daemon.socket) as one:
        answer = one.answer(one.send("session.stat", id=agent.plan["id"]))
    if "result" in answer:
        return True
    assert answer["error"]["data"]["kind"] == "SESSION_NOT_FOUND"
    assert Journal(Path(agent.plan["journal"])).durable == 0
    return False


def wait_forgotten(daemon: DaemonProcess, agent: AgentProcess) -> None:
    """Wait until the daemon has seen that the agent is gone, and that it had written nothing."""
    deadline = time.monotonic() + 20
    while stored_at_all(daemon, agent):
        assert time.monotonic() < deadline, "a session that was never written is still there"


@pytest.mark.parametrize("victim", ["agent", "daemon", "both"])
@pytest.mark.parametrize("daemon", [ZSTD, RAW], indirect=True)
def test_a_kill_at_any_point_of_a_turn_loses_nothing_acknowledged(
    daemon: DaemonProcess, victim: str
) -> None:
    plans = [
        plan_of(daemon, f"{point}-{place}", point=point, place=place, calls={"x": "answered"})
        for point in POINTS
        for place in PLACES
        if (point, place) != ("body", "sent")
    ]
    with open_agents("turn.py", *plans) as agents:
        waiting = [agent for agent in agents if agent.plan["place"] == "sent"]
        for agent in agents:
            agent.expect("ready" if agent in waiting else "held")
        if victim != "agent":
            os.kill(daemon.pid, signal.SIGSTOP)  # what is sent now is never read
        for agent in waiting:
            agent.tell()
            agent.expect("held")
        kill(victim, daemon, agents)
        for agent in agents:
            check_verdicts(daemon, agent, victim)


def check_verdicts(daemon: DaemonProcess, agent: AgentProcess, victim: str) -> None:
    point, place = agent.plan["point"], agent.plan["place"]
    due = AFTER[point] if place == "answered" else BEFORE[point]
    if point == "request" and place != "answered":
        if (place, victim) != ("sent", "agent"):
            wait_forgotten(daemon, agent)
        return
    found = judge(daemon, agent, alive=victim == "daemon")
    if place == "sent" and victim == "agent":
        assert found in (BEFORE[point], AFTER[point])
    elif (point, place) in ADMITTED and victim != "agent":
        assert found in (BEFORE["result"], AFTER["result"])
    else:
        assert found == due


@pytest.mark.parametrize(
    ("daemon", "victim"),
    [(ZSTD, "agent"), (ZSTD, "daemon"), (ZSTD, "both"), (RAW, "both")],
    indirect=["daemon"],
)
def test_three_parallel_calls_get_the_right_verdicts_in_each_of_their_27_states(
    daemon: DaemonProcess, victim: str
) -> None:
    states = ("idle", "started", "answered")
    plans = [
        plan_of(daemon, "-".join(each), calls=dict(zip("xyz", each, strict=True)))
        for each in itertools.product(states, repeat=3)
    ]
    with open_agents("turn.py", *plans) as agents:
        for agent in agents:
            agent.expect("held")
        kill(victim, daemon, agents)
        for agent in agents:
            calls = agent.plan["calls"]
            codes = {"idle": NOT_STARTED, "started": UNKNOWN}
            due = {call: codes[state] for call, state in calls.items() if state != "answered"}
            found = judge(daemon, agent, alive=victim == "daemon")
            assert list(found.items()) == list(due.items())
            effects = Path(agent.plan["effects"])
            done = effects.read_text("utf-8").split() if effects.exists() else []
            assert sorted(done) == [call for call, state in calls.items() if state != "idle"]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("daemon", [ZSTD], indirect=True)
def test_agents_in_full_swing_lose_nothing_acknowledged_when_everything_is_killed(
    daemon: DaemonProcess, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311  # when to kill, and nothing secret
    plans = [plan_of(daemon, f"s{number}", endless=True, calls={}) for number in range(6)]
    with open_agents("turn.py", *plans) as agents:
        for agent in agents:
            agent.expect("playing")
        time.sleep(chance.uniform(0.05, 0.5))  # real processes are to be well under way
        victims = chance.sample(agents, 3)
        for agent in victims:
            agent.kill()
        daemon.kill()
        daemon.start()
        for agent in agents:
            if agent not in victims:
                agent.expect("alone")
            if stored_at_all(daemon, agent):
                judge(daemon, agent, alive=agent not in victims)


@pytest.mark.parametrize("daemon", [ZSTD], indirect=True)
def test_a_dead_agent_that_nobody_has_reaped_reserves_nothing(daemon: DaemonProcess) -> None:
    with open_agents("turn.py", plan_of(daemon, "s", calls={"x": "started"})) as (agent,):
        agent.expect("held")
        os.kill(agent.pid, signal.SIGKILL)
        with Connection(daemon.socket) as one:
            while one.call("session.stat", id="s")["session"]["state"] != "interrupted":
                pass
            recovery = one.call("session.open", id="s", access="write")["recovery"]
        assert [repair["code"] for repair in recovery["repairs"]] == [UNKNOWN]


@pytest.mark.parametrize("daemon", [ZSTD], indirect=True)
def test_an_agent_that_stands_still_keeps_its_handle(daemon: DaemonProcess) -> None:
    with open_agents("turn.py", plan_of(daemon, "s", calls={"x": "started"})) as (agent,):
        agent.expect("held")
        agent.suspend()
        with Connection(daemon.socket) as one:
            busy = one.refusal("session.open", id="s", access="write", takeover=True)
            assert busy.facts["holder"]["connected"] is True
