"""A living agent goes on with its open turn; nobody repairs it over its head, and nobody waits for a dead one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.daemon import DaemonProcess, open_daemon
from support.figures import figure
from support.puppets import Puppet, open_puppets
from support.rpc import Connection
from support.verdicts import UNKNOWN, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG_WINDOW = ("--batch-window", "60")


@pytest.fixture
def agent(daemon: DaemonProcess) -> Iterator[Puppet]:
    with open_puppets(daemon.socket, "the agent") as (puppet,):
        yield puppet


def continued(
    agent: Puppet, handle: dict[str, Any], next_seq: int, connection: str = "a"
) -> dict[str, Any]:
    """Continue, and return the whole result; the handle gets its new writer."""
    state = {"nextSeq": next_seq, "writer": handle["writer"]}
    opened: dict[str, Any] = agent.call(
        "session.open", connection, id=handle["id"], access="write", **{"continue": state}
    )
    assert opened["recovery"] is None
    assert opened["writer"] != handle["writer"]
    handle["writer"] = opened["writer"]
    return opened


def test_an_agent_whose_daemon_was_killed_while_its_tool_ran_goes_on_with_its_turn(
    daemon: DaemonProcess, agent: Puppet
) -> None:
    handle = turns.begin_turn(agent, "s", "x", "y")
    started = agent.call("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
    assert started["decision"] == "DISPATCH"
    daemon.kill()
    daemon.start()
    with daemon.connect() as other:
        refused = other.refusal("session.open", id="s", access="write")
        assert refused.kind == "SESSION_BUSY"
        assert refused.facts["holder"]["pid"] == agent.pid
        assert refused.facts["holder"]["client"] == "the agent"
        assert refused.facts["holder"]["connected"] is False
        assert other.call("session.open", id="s", access="read")["recovery"] is None
        assert other.call("session.messages", id="s")["recovery"] is None
        agent.close()
        agent.connect()
        opened = continued(agent, handle, 6)
        assert opened["session"]["nextSeq"] == 6
        assert opened["session"]["state"] == "active"
        held = other.refusal("session.open", id="s", access="write", takeover=True)
        assert held.kind == "SESSION_BUSY"
        assert held.facts["holder"]["connected"] is True
        result = [events.tool_result("x")]
        agent.call("session.append", **handle, events=result, expectedSeq=6)
        agent.call("checkpoint.tool", **handle, **turns.tool("y"), expectedSeq=7)
        agent.call("session.append", **handle, events=[events.tool_result("y")], expectedSeq=8)
        turns.end_turn(agent, handle)
        kinds = turns.types(read_all(other, "s"))
    assert kinds[5:] == [
        "tool/call",
        "tool/result",
        "tool/call",
        "tool/result",
        "step/end",
        "turn/end",
    ]


def test_what_was_not_durable_is_sent_again_from_the_seq_that_the_daemon_names(
    tmp_path: Path,
) -> None:
    with (
        open_daemon(tmp_path, flags=LONG_WINDOW) as daemon,
        open_puppets(daemon.socket, "the agent") as (agent,),
    ):
        handle = turns.begin_turn(agent, "s")
        pieces = [events.chunk("a"), events.chunk("b")]
        admitted = agent.call("session.append", **handle, events=pieces, expectedSeq=4)
        assert (admitted["nextSeq"], admitted["durableSeq"]) == (6, 4)
        daemon.kill()
        daemon.start()
        agent.close()
        agent.connect()
        assert continued(agent, handle, 6)["session"]["nextSeq"] == 4
        again = agent.call("session.append", **handle, events=pieces, expectedSeq=4)
        assert (again["firstSeq"], again["duplicate"]) == (4, False)


def test_the_agent_s_exit_frees_its_turn_for_repair(daemon: DaemonProcess, agent: Puppet) -> None:
    handle = turns.begin_turn(agent, "s", "x")
    agent.call("checkpoint.tool", **handle, **turns.tool("x"))
    daemon.kill()
    daemon.start()
    with daemon.connect() as other:
        assert other.refusal("session.open", id="s", access="write").kind == "SESSION_BUSY"
        agent.process.kill()
        assert other.call("session.stat", id="s")["session"]["state"] == "interrupted"
        recovery = other.call("session.open", id="s", access="write")["recovery"]
    assert [repair["code"] for repair in recovery["repairs"]] == [UNKNOWN]


@pytest.mark.parametrize("restart", [False, True], ids=["connection lost", "daemon killed"])
def test_takeover_takes_the_turn_from_a_living_agent_that_lost_its_connection(
    daemon: DaemonProcess, agent: Puppet, *, restart: bool
) -> None:
    handle = turns.begin_turn(agent, "s", "x")
    agent.call("checkpoint.tool", **handle, **turns.tool("x"))
    agent.close()
    if restart:
        daemon.kill()
        daemon.start()
    agent.connect()
    with daemon.connect() as other:
        assert other.refusal("session.open", id="s", access="write").kind == "SESSION_BUSY"
        taken = other.call("session.open", id="s", access="write", takeover=True)
        assert [repair["code"] for repair in taken["recovery"]["repairs"]] == [UNKNOWN]
        state = {"nextSeq": 6, "writer": handle["writer"]}
        wanted = {"id": "s", "access": "write", "continue": state}
        assert agent.refusal("session.open", **wanted).kind == "WRITER_LOST"
        other.call("session.recover", id="s", writer=taken["writer"])
        assert agent.refusal("session.open", **wanted).kind == "WRITER_LOST"
        other.call("session.close", id="s", writer=taken["writer"])
        assert agent.refusal("session.open", **wanted).kind == "WRITER_LOST"
        lost = agent.refusal("session.append", **handle, events=[events.tool_result("x")])
        assert lost.kind == "WRITER_LOST"


def test_continue_takes_the_handle_over_from_an_older_connection_of_the_same_process(
    daemon: DaemonProcess, agent: Puppet
) -> None:
    handle = turns.begin_turn(agent, "s", "x")
    old = dict(handle)
    agent.connect("b")
    state = {"nextSeq": 5, "writer": handle["writer"]}
    with daemon.connect() as other:  # another process, even with the writer's secret
        wanted = {"id": "s", "access": "write", "continue": state}
        assert other.refusal("session.open", **wanted).kind == "SESSION_BUSY"
    assert continued(agent, handle, 5, "b")["session"]["nextSeq"] == 5
    assert agent.refusal("session.flush", **old).kind == "WRITER_LOST"
    agent.close("a")
    started = agent.call("checkpoint.tool", "b", **handle, **turns.tool("x"), expectedSeq=5)
    assert started["decision"] == "DISPATCH"


@pytest.mark.parametrize("killed", [False, True])
def test_a_continue_whose_answer_was_lost_can_be_repeated_with_the_writer_that_is_known(
    daemon: DaemonProcess, agent: Puppet, *, killed: bool
) -> None:
    handle = turns.begin_turn(agent, "s", "x")
    known = dict(handle)
    agent.close()
    agent.connect()
    continued(agent, handle, 5)  # suppose that this answer never came
    agent.close()
    if killed:
        daemon.kill()
        daemon.start()
    agent.connect()
    assert continued(agent, known, 5)["session"]["nextSeq"] == 5
    assert agent.refusal("session.flush", **handle).kind == "WRITER_LOST"
    started = agent.call("checkpoint.tool", **known, **turns.tool("x"), expectedSeq=5)
    assert started["decision"] == "DISPATCH"


def test_a_session_that_was_never_durable_cannot_be_continued(tmp_path: Path) -> None:
    with (
        open_daemon(tmp_path, flags=LONG_WINDOW) as daemon,
        open_puppets(daemon.socket, "the agent") as (agent,),
    ):
        made = agent.call("session.create", id="s")
        agent.call(
            "session.append", id="s", writer=made["writer"], events=turns.opening(), expectedSeq=0
        )
        daemon.kill()
        daemon.start()
        agent.close()
        agent.connect()
        state = {"nextSeq": 4, "writer": made["writer"]}
        lost = agent.refusal("session.open", id="s", access="write", **{"continue": state})
        assert lost.kind == "SESSION_NOT_FOUND"
        handle = turns.begin_turn(agent, "s", "x")
        assert agent.call("session.flush", **handle)["durableSeq"] == 5


def test_a_lost_connection_is_never_seen_as_a_dead_agent_however_fast_the_next_one_asks(
    daemon: DaemonProcess, agent: Puppet
) -> None:
    handle = turns.begin_turn(agent, "s", "x")
    agent.call("checkpoint.tool", **handle, **turns.tool("x"))
    with daemon.connect() as other:
        for _ in range(15):
            agent.begin("close", "a")
            for _ in range(5):
                assert other.refusal("session.open", id="s", access="write").kind == "SESSION_BUSY"
            agent.outcome()
            agent.connect()
            assert continued(agent, handle, 6)["session"]["nextSeq"] == 6


def test_the_same_process_may_open_what_it_lost_and_gets_the_repairs_then(
    daemon: DaemonProcess, agent: Puppet
) -> None:
    handle = turns.begin_turn(agent, "s", "x")
    agent.connect("b")
    assert agent.refusal("session.open", "b", id="s", access="write").kind == "SESSION_BUSY"
    agent.close("a")
    with daemon.connect() as other:
        while other.call("session.stat", id="s")["session"]["writer"]["connected"]:
            pass
    opened = agent.call("session.open", "b", id="s", access="write")
    assert len(opened["recovery"]["repairs"]) == 1
    state = {"nextSeq": 5, "writer": handle["writer"]}
    lost = agent.refusal("session.open", "b", id="s", access="write", **{"continue": state})
    assert lost.kind == "WRITER_LOST"


def test_a_turn_that_was_closed_cleanly_is_reserved_for_nobody(
    daemon: DaemonProcess, agent: Puppet
) -> None:
    handle = turns.begin_turn(agent, "s", "x")
    agent.call("session.close", **handle)
    with daemon.connect() as other:
        opened = other.call("session.open", id="s", access="write")
        assert opened["recovery"]["committed"] is False
        state = {"nextSeq": 5, "writer": handle["writer"]}
        lost = agent.refusal("session.open", id="s", access="write", **{"continue": state})
        assert lost.kind == "WRITER_LOST"


def test_three_tool_checkpoints_in_one_send_cost_two_flushes_and_dispatch_each_body_once(
    daemon: DaemonProcess, agent: Puppet
) -> None:
    handle = turns.begin_turn(agent, "s", "x", "y", "z")
    calls = started_at(handle)
    before = figure(daemon, "dshd_flushes_total")
    first = [agent.answer(sent)["result"] for sent in agent.send(*calls)]
    assert figure(daemon, "dshd_flushes_total") - before <= 2
    assert [one["decision"] for one in first] == ["DISPATCH"] * 3
    assert [one["callSeq"] for one in first] == [5, 6, 7]
    assert len({one["idempotencyKey"] for one in first}) == 3
    for _ in range(3):
        again = [agent.answer(sent)["result"] for sent in agent.send(*calls)]
        assert again == [one | {"duplicate": True, "durableSeq": 8} for one in first]
    assert figure(daemon, "dshd_flushes_total") - before <= 2


@pytest.mark.parametrize("restart", [False, True], ids=["connection lost", "daemon killed"])
def test_three_tool_checkpoints_whose_replies_are_all_lost_start_each_call_once(
    daemon: DaemonProcess, agent: Puppet, *, restart: bool
) -> None:
    handle = turns.begin_turn(agent, "s", "x", "y", "z")
    agent.send(*started_at(handle))
    agent.close()
    if restart:
        daemon.kill()
        daemon.start()
    agent.connect()
    continued(agent, handle, 5)
    dispatched = [agent.answer(sent)["result"] for sent in agent.send(*started_at(handle))]
    assert [one["decision"] for one in dispatched] == ["DISPATCH"] * 3
    assert [one["callSeq"] for one in dispatched] == [5, 6, 7]
    repeated = [agent.answer(sent)["result"] for sent in agent.send(*started_at(handle))]
    assert all(one["duplicate"] for one in repeated)
    assert started_calls(daemon) == ["x", "y", "z"]
    agent.call("session.append", **handle, events=[events.tool_result("y")], expectedSeq=8)
    refused = agent.refusal("checkpoint.tool", **handle, **turns.tool("y"), expectedSeq=6)
    assert refused.kind == "EVENT_INVALID"
    assert (refused.facts["callSeq"], refused.facts["resultSeq"]) == (6, 8)


def started_at(handle: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The three checkpoints, each with the seq that follows the one before."""
    return [
        ("checkpoint.tool", {**handle, **turns.tool(call_id), "expectedSeq": 5 + at})
        for at, call_id in enumerate("xyz")
    ]


def started_calls(daemon: DaemonProcess) -> list[str]:
    """The calls that the log says were started."""
    with Connection(daemon.socket) as one:
        stored = read_all(one, "s")
    return [event["data"]["callId"] for event in stored if event["type"] == "tool/call"]


def test_an_agent_that_lost_its_connection_may_give_its_handle_up(
    daemon: DaemonProcess, agent: Puppet
) -> None:
    handle = turns.begin_turn(agent, "s", "x")
    agent.close()
    with daemon.connect() as other:
        assert other.refusal("session.open", id="s", access="write").kind == "SESSION_BUSY"
        assert other.refusal("session.close", id="s", writer="somebody else").kind == "WRITER_LOST"
        assert other.refusal("session.open", id="s", access="write").kind == "SESSION_BUSY"
        agent.connect()
        assert agent.call("session.close", **handle) == {"nextSeq": 5, "durableSeq": 5}
        assert other.call("session.stat", id="s")["session"]["writer"] is None
        opened = other.call("session.open", id="s", access="write")
        assert [repair["callId"] for repair in opened["recovery"]["repairs"]] == ["x"]
    assert agent.refusal("session.close", **handle).kind == "WRITER_LOST"


def test_a_writer_that_was_continued_closes_nothing(agent: Puppet) -> None:
    handle = turns.begin_turn(agent, "s", "x")
    before = handle.copy()
    agent.connect("b")
    continued(agent, handle, 5, "b")
    assert agent.refusal("session.close", **before).kind == "WRITER_LOST"
    assert agent.call("session.flush", "b", **handle)["durableSeq"] == 5
