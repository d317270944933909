"""What each checkpoint demands, and that a refused one leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.figures import figure
from support.rpc import Connection
from support.verdicts import idempotency_key, read_all

if TYPE_CHECKING:
    from support.daemon import DaemonProcess


@pytest.fixture
def handle(connection: Connection, fresh_id: str) -> dict[str, Any]:
    """A session whose first answer asks for x and y; its next seq is 5."""
    return turns.begin_turn(connection, fresh_id, "x", "y")


def check_refused(
    one: Connection, method: str, handle: dict[str, Any], next_seq: int, **params: Any
) -> dict[str, Any]:
    """Demand that a checkpoint is refused for its conditions and has admitted nothing; return the facts."""
    refused = one.refusal(method, **handle, **params)
    assert refused.kind == "EVENT_INVALID", refused.error
    assert refused.facts["rule"]
    assert one.call("session.flush", **handle)["nextSeq"] == next_seq
    return refused.facts


@pytest.mark.parametrize(
    "begun",
    [
        [],
        [events.turn_start()],
        [events.turn_start(), events.request_header(), events.user()],
        [events.turn_start(), events.step_start(), events.user()],
    ],
    ids=["nothing", "no step", "a header, no step", "no header"],
)
def test_a_request_needs_an_open_step_and_a_header(
    connection: Connection, fresh_id: str, begun: list[events.Event]
) -> None:
    writer = connection.call("session.create", id=fresh_id)["writer"]
    handle = {"id": fresh_id, "writer": writer}
    check_refused(connection, "checkpoint.request", handle, 0, events=begun)


@pytest.mark.parametrize(
    "changed",
    [
        {"callId": "z"},
        {"name": "another tool"},
        {"arguments": '{"for": "x"}'},
        {"arguments": "{}"},
    ],
    ids=["not asked for", "another name", "other spaces", "other arguments"],
)
def test_a_tool_starts_only_as_the_model_asked_for_it(
    connection: Connection, handle: dict[str, Any], changed: dict[str, str]
) -> None:
    asked = turns.tool("x") | changed
    check_refused(connection, "checkpoint.tool", handle, 5, **asked)


def test_a_call_is_started_once_and_answered_once(
    connection: Connection, handle: dict[str, Any]
) -> None:
    started = connection.call("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
    stored = connection.call("session.stat", id=handle["id"])["session"]["header"]
    assert started["idempotencyKey"] == idempotency_key(stored, 5, "x")
    for wrong in ({}, {"expectedSeq": 6}, {"expectedSeq": 4}):
        facts = check_refused(connection, "checkpoint.tool", handle, 6, **turns.tool("x"), **wrong)
        assert (facts["callSeq"], facts["resultSeq"]) == (5, None)
    connection.call("session.append", **handle, events=[events.tool_result("x")])
    facts = check_refused(
        connection, "checkpoint.tool", handle, 7, **turns.tool("x"), expectedSeq=5
    )
    assert (facts["callSeq"], facts["resultSeq"]) == (5, 6)
    check_refused(connection, "session.append", handle, 7, events=[events.tool_result("x")])
    check_refused(connection, "session.append", handle, 7, events=[events.tool_result("y")])


def test_no_step_or_turn_ends_over_an_unanswered_call(
    connection: Connection, handle: dict[str, Any]
) -> None:
    ended = {"events": [events.step_end()]}
    reason = {"kind": "completed"}
    check_refused(connection, "checkpoint.postStep", handle, 5, **ended)
    check_refused(connection, "checkpoint.turnEnd", handle, 5, **ended, reason=reason)
    check_refused(connection, "checkpoint.postStep", handle, 5)
    check_refused(connection, "checkpoint.turnEnd", handle, 5, reason=reason)
    check_refused(connection, "session.append", handle, 5, events=[events.user("not yet")])


@pytest.mark.parametrize(
    "reason",
    [
        {"kind": "interrupted"},
        {},
        {"kind": ""},
        {"kind": 1},
        {"kind": "error"},
        {"kind": "aborted"},
    ],
    ids=str,
)
def test_a_turn_ends_for_a_reason_that_an_agent_can_have(
    connection: Connection, fresh_id: str, reason: dict[str, Any]
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    ended = {"events": [events.step_end()], "reason": reason}
    check_refused(connection, "checkpoint.turnEnd", handle, 4, **ended)


def test_closers_and_end_seeds_are_the_daemon_s_to_write(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    check_refused(connection, "session.append", handle, 4, events=[events.END_SEED])
    closing = [events.step_end(), events.turn_end(kind="interrupted")]
    check_refused(connection, "session.append", handle, 4, events=closing)


def test_a_nested_call_is_recorded_under_its_running_call_without_a_flush(
    shared_daemon: DaemonProcess, connection: Connection, handle: dict[str, Any]
) -> None:
    nested = {
        "callId": "n",
        "name": "sub",
        "arguments": '{"x":1}',
        "parentCallId": "x",
        "expectedSeq": 6,
    }
    early = check_refused(connection, "checkpoint.tool", handle, 5, **nested | {"expectedSeq": 5})
    assert early["rule"]
    connection.call("checkpoint.tool", **handle, **turns.tool("x"))
    before = figure(shared_daemon, "dshd_flushes_total")
    started = connection.call("checkpoint.tool", **handle, **nested)
    assert figure(shared_daemon, "dshd_flushes_total") == before
    assert (started["decision"], started["callSeq"], started["durableSeq"]) == ("DISPATCH", 6, 6)
    again = connection.call("checkpoint.tool", **handle, **nested)
    assert (again["decision"], again["duplicate"]) == ("DISPATCH", True)
    deeper = {**nested, "callId": "m", "parentCallId": "n", "expectedSeq": 7}
    assert connection.call("checkpoint.tool", **handle, **deeper)["callSeq"] == 7
    recorded = read_all(connection, handle["id"])[6:]
    assert [event["type"] for event in recorded] == ["tool/code-dispatch-start"] * 2
    assert recorded[0]["data"]["arguments"] == {"x": 1}
    assert [event["data"]["rootCallId"] for event in recorded] == ["x", "x"]
    settled = [events.dispatch_end("m", "n", "x"), events.dispatch_end("n", "x", "x")]
    connection.call("session.append", **handle, events=settled)
    connection.call("session.append", **handle, events=[events.tool_result("x")])
    late = {**nested, "callId": "o", "expectedSeq": 11}
    check_refused(connection, "checkpoint.tool", handle, 11, **late)


def test_a_flush_is_shared_by_all_who_wait_for_it(
    shared_daemon: DaemonProcess, connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    others = [Connection(shared_daemon.socket) for _ in range(8)]
    before = figure(shared_daemon, "dshd_flushes_total")
    connection.call("session.append", **handle, events=[events.chunk()])
    sent = [(one, one.send("session.flush", **handle)) for one in others]
    assert {one.result(call)["durableSeq"] for one, call in sent} == {5}
    assert figure(shared_daemon, "dshd_flushes_total") - before == 1
    for one in others:
        one.close()


def test_what_looks_like_a_repetition_needs_the_condition_all_the_same(
    connection: Connection, fresh_id: str
) -> None:
    writer = connection.call("session.create", id=fresh_id, cwd="/w")["writer"]
    handle = {"id": fresh_id, "writer": writer}
    begun = {"events": [events.turn_start()], "expectedSeq": 0}
    connection.call("session.append", **handle, **begun)
    check_refused(connection, "checkpoint.request", handle, 1, **begun)
    check_refused(connection, "checkpoint.request", handle, 1, expectedSeq=0)
    rest = {"events": turns.opening()[1:], "expectedSeq": 1}
    connection.call("session.append", **handle, **rest)
    check_refused(connection, "checkpoint.postStep", handle, 4, **rest)
    again = connection.call("checkpoint.request", **handle, **rest)
    assert again["nextSeq"] == again["durableSeq"] == 4
    ended = {"events": [events.step_end()], "expectedSeq": 4}
    connection.call("checkpoint.postStep", **handle, **ended)
    connection.call("checkpoint.turnEnd", **handle, reason={"kind": "completed"})
    check_refused(connection, "checkpoint.request", handle, 6, expectedSeq=4)
    assert connection.call("checkpoint.request", **handle, **rest)["nextSeq"] == 4
    assert connection.call("checkpoint.postStep", **handle, **ended)["nextSeq"] == 5
