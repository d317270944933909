"""Cancelled calls: what a cancel reaches, what it leaves, and what it comes too late for."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.rpc import Connection, notification
from support.verdicts import read_all

if TYPE_CHECKING:
    from support.daemon import DaemonProcess


@pytest.mark.parametrize("method", ["$/cancelRequest", "$/cancel_request"])
def test_a_call_cancelled_before_it_was_admitted_does_nothing(
    connection: Connection, fresh_id: str, method: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x")
    before = connection.request("session.stat", id=fresh_id)  # needs a task, for which others wait
    call = connection.request("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
    connection.send_together(before, call, notification(method, id=call["id"]))
    failed = connection.failure(call["id"])
    assert failed.error["code"] == -32800
    assert failed.kind == "CANCELLED"
    assert "admitted" not in failed.facts
    assert len(read_all(connection, fresh_id)) == 5
    again = connection.call("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
    assert (again["decision"], again["duplicate"]) == ("DISPATCH", False)


def test_a_cancel_is_answered_and_one_for_a_call_that_is_over_changes_nothing(
    connection: Connection,
) -> None:
    done = connection.send("daemon.status")
    connection.result(done)
    assert connection.call("$/cancelRequest", id=done) == {}


def tool_call(handle: dict[str, str], call_id: str) -> bytes:
    """The line of a tool checkpoint under an id that is spelled as given."""
    asked = json.dumps({**handle, **turns.tool("x")})
    return (
        f'{{"jsonrpc":"2.0","id":{call_id},"method":"checkpoint.tool","params":{asked}}}'.encode()
    )


def cancel_of(call_id: str, head: str = "") -> bytes:
    """The line of a cancel of that id; a notification, unless `head` has an id of its own."""
    cancel = '"method":"$/cancelRequest","params":{"id":%s}}'
    return f'{{"jsonrpc":"2.0",{head}{cancel % call_id}'.encode()


@pytest.mark.parametrize(
    ("call_id", "named"),
    [
        ("1", "1"),
        ("1", "1.0"),
        ("1", "1e0"),
        ("1.0", "1"),
        ("0", "0.0"),
        ("-2.0", "-2"),
        ('"x"', '"\\u0078"'),
    ],
)
def test_a_call_is_cancelled_by_its_id_however_that_is_spelled(
    connection: Connection, fresh_id: str, call_id: str, named: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x")
    connection.send_line(tool_call(handle, call_id) + b"\n" + cancel_of(named))
    answer = connection.read_message()
    assert answer["id"] == json.loads(call_id)
    assert answer["result"]["decision"] == "ABORTED_BEFORE_DISPATCH"


@pytest.mark.parametrize(
    ("call_id", "named"),
    [
        ("1", "true"),
        ("0", "false"),
        ("1", '"1"'),
        ('"1"', "1"),
        ("1", "1.5"),
        ("0", "null"),
        ("1", "[1]"),
    ],
)
def test_a_call_is_not_cancelled_by_what_is_not_its_id(
    connection: Connection, fresh_id: str, call_id: str, named: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x")
    connection.send_line(tool_call(handle, call_id) + b"\n" + cancel_of(named))
    assert connection.read_message()["result"]["decision"] == "DISPATCH"


@pytest.mark.parametrize("named", ["true", "1.5", "null", "[1]", "{}"])
def test_a_cancel_that_names_no_id_is_refused_alone_and_in_a_batch(
    connection: Connection, named: str
) -> None:
    asked = cancel_of(named, '"id":7,')
    for line in (asked, b"[%b,%b]" % (asked, cancel_of(named))):
        connection.send_line(line)
        found: Any = connection.read_message()
        answer = found[0] if line.startswith(b"[") else found
        assert answer["id"] == 7
        assert answer["error"]["data"]["kind"] == "INVALID_PARAMS"
        assert answer["error"]["data"]["path"] == "params.id"


def cancel_when_admitted(one: Connection, other: Connection, *calls: dict[str, Any]) -> Any:
    """Send calls, cancel the first as soon as another connection sees its events admitted, and return its answer."""
    call = calls[0]
    session_id, seq = call["params"]["id"], call["params"]["expectedSeq"]
    one.send_together(*calls)
    while other.call("session.read", id=session_id, offset=seq)["events"] == []:
        pass
    one.notify("$/cancelRequest", id=call["id"])
    return one.answer(call["id"])


def test_what_a_cancelled_call_had_admitted_stays_and_the_answer_says_so(
    slow_disk: DaemonProcess,
) -> None:
    with Connection(slow_disk.socket) as one, Connection(slow_disk.socket) as other:
        handle = turns.begin_turn(one, "slow request")
        first = one.send("checkpoint.request", **handle, events=[events.chunk()], expectedSeq=4)
        time.sleep(
            0.1
        )  # its sync has begun, by the real clock; the next call waits for the next one
        asked = {**handle, "events": [events.chunk()], "expectedSeq": 5}
        answer = cancel_when_admitted(one, other, one.request("checkpoint.request", **asked))
        assert answer["error"]["data"]["kind"] == "CANCELLED"
        assert answer["error"]["data"]["admitted"] == {"firstSeq": 5, "nextSeq": 6}
        assert one.result(first)["durableSeq"] == 5
        flushed = one.call("session.flush", **handle)
        assert flushed["durableSeq"] == flushed["nextSeq"] == 6


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("checkpoint.request", {"events": [events.chunk()]}),
        ("checkpoint.postStep", {"events": [events.step_end()]}),
        ("session.flush", {}),
    ],
)
def test_a_call_whose_batch_is_being_written_is_not_cancelled_any_more(
    slow_disk: DaemonProcess, method: str, params: dict[str, Any], fresh_id: str
) -> None:
    with Connection(slow_disk.socket) as one, Connection(slow_disk.socket) as other:
        handle = turns.begin_turn(one, f"slow {fresh_id}")
        if method == "session.flush":
            one.call("session.append", **handle, events=[events.chunk()], expectedSeq=4)
        call = one.send(method, **handle, **params)
        while other.call("session.read", id=handle["id"], offset=4)["events"] == []:
            pass
        time.sleep(0.1)  # the sync has begun, by the real clock
        one.notify("$/cancelRequest", id=call)
        assert one.result(call)["durableSeq"] == 5


def test_a_tool_that_is_asked_for_again_while_it_is_written_gets_the_one_decision(
    slow_disk: DaemonProcess,
) -> None:
    with Connection(slow_disk.socket) as one, Connection(slow_disk.socket) as other:
        handle = turns.begin_turn(one, "slow decision", "x")
        asked = {**handle, **turns.tool("x"), "expectedSeq": 5}
        calls = [one.request("checkpoint.tool", **asked) for _ in range(40)]
        answers = [cancel_when_admitted(one, other, *calls)["result"]]
        answers += [one.result(again["id"]) for again in calls[1:]]
        assert {answer["decision"] for answer in answers} == {"ABORTED_BEFORE_DISPATCH"}
        assert [answer["duplicate"] for answer in answers] == [False, *[True] * 39]


def test_a_tool_cancelled_while_its_start_is_written_is_aborted_before_its_dispatch(
    slow_disk: DaemonProcess,
) -> None:
    with Connection(slow_disk.socket) as one, Connection(slow_disk.socket) as other:
        handle = turns.begin_turn(one, "slow tool", "x")
        asked = {**handle, **turns.tool("x"), "expectedSeq": 5}
        call = one.request("checkpoint.tool", **asked)
        answer = cancel_when_admitted(one, other, call)["result"]
        assert (answer["callSeq"], answer["durableSeq"]) == (5, 6)
        check_aborted(one, asked, answer)


def check_aborted(one: Connection, asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Demand that an aborted call stays aborted when it is repeated, and that its canonical result is taken."""
    assert answer["decision"] == "ABORTED_BEFORE_DISPATCH"
    assert answer["result"]["isError"] is True
    again = one.call("checkpoint.tool", **asked)
    assert again["decision"] == "ABORTED_BEFORE_DISPATCH"
    assert again["duplicate"] is True
    result = events.tool_result(asked["callId"])
    result["data"]["message"]["content"][0] |= {
        "content": answer["result"]["content"],
        "isError": True,
    }
    handle = {"id": asked["id"], "writer": asked["writer"]}
    one.call("session.append", **handle, events=[result], expectedSeq=answer["nextSeq"])
