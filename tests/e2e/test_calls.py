"""Calls on one connection: their order, their cancellation, notifications, batches, and the end of one side."""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.daemon import open_daemon
from support.figures import figure
from support.rpc import Connection, notification
from support.verdicts import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.daemon import DaemonProcess

BAD: events.Event = {"type": "no/such-type", "data": {}}


@pytest.fixture(scope="module")
def slow_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon on whose disk each sync of a session `slow…` takes long."""
    base = tmp_path_factory.mktemp("slow")
    with open_daemon(base, module="support.misbehaving", env={"SLOW_S": "0.4"}) as daemon:
        yield daemon


# ---------------------------------------------------------------------- order


def test_the_answers_of_one_session_come_in_the_order_of_its_calls(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x", "y")
    sent = connection.send_together(
        connection.request("checkpoint.tool", **handle, **turns.tool("x")),
        connection.request("session.append", **handle, events=[events.tool_result("x")]),
        connection.request("session.read", id=fresh_id, offset=5),
        connection.request("checkpoint.tool", **handle, **turns.tool("nobody asked for")),
        connection.request("checkpoint.tool", **handle, **turns.tool("y")),
        connection.request("session.stat", id=fresh_id),
    )
    answers = [connection.read_message() for _ in sent]
    assert [answer["id"] for answer in answers] == sent
    assert len(answers[2]["result"]["events"]) == 2
    assert answers[3]["error"]["data"]["kind"] == "EVENT_INVALID"
    assert answers[4]["result"]["callSeq"] == 7


def test_a_slow_session_does_not_hold_up_another_one_of_the_connection(
    slow_disk: DaemonProcess,
) -> None:
    with Connection(slow_disk.socket) as one:
        slow, quick = turns.begin_turn(one, "slow one"), turns.begin_turn(one, "quick one")
        first = one.send("checkpoint.request", **slow, events=[events.chunk()])
        second = one.send("session.append", **quick, events=[events.chunk()])
        assert one.read_message()["id"] == second
        assert one.result(first)["durableSeq"] == 5


def test_more_calls_than_may_be_in_flight_are_all_admitted_in_order(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    calls = [
        connection.request("session.append", **handle, events=[events.chunk()], expectedSeq=seq)
        for seq in range(4, 1004)
    ]
    sent = connection.send_together(*calls)
    assert [connection.result(call_id)["firstSeq"] for call_id in sent] == list(range(4, 1004))


def test_a_half_closed_connection_still_gets_its_answers_and_then_ends(
    shared_daemon: DaemonProcess, fresh_id: str
) -> None:
    with Connection(shared_daemon.socket) as one:
        handle = turns.begin_turn(one, fresh_id, "x", "y", "z")
        sent = [one.send("checkpoint.tool", **handle, **turns.tool(name)) for name in "xyz"]
        one.half_close()
        answers = [one.result(call_id)["decision"] for call_id in sent]
        assert answers == ["DISPATCH"] * 3
        assert one.ends()
    assert len(started(shared_daemon, fresh_id)) == 3


def started(daemon: DaemonProcess, session_id: str) -> list[str]:
    with Connection(daemon.socket) as one:
        stored = read_all(one, session_id)
    return [event["data"]["callId"] for event in stored if event["type"] == "tool/call"]


# ---------------------------------------------------------------------- cancel


@pytest.mark.parametrize("method", ["$/cancelRequest", "$/cancel_request"])
def test_a_call_cancelled_before_it_was_admitted_does_nothing(
    connection: Connection, fresh_id: str, method: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x")
    call = connection.request("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
    connection.send_together(call, notification(method, id=call["id"]))
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
    assert answer["error"]["data"]["kind"] == "CANCELLED"


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


# ---------------------------------------------------------------------- notifications


def test_notified_events_are_admitted_in_order_without_an_answer(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    for seq in range(4, 54):
        connection.notify(
            "session.append", **handle, events=[events.chunk(str(seq))], expectedSeq=seq
        )
    assert connection.call("session.flush", **handle) == {"nextSeq": 54, "durableSeq": 54}
    texts = [event["data"]["chunk"]["text"] for event in read_all(connection, fresh_id)[4:]]
    assert texts == [str(seq) for seq in range(4, 54)]


def test_after_a_failed_notification_nothing_is_done_until_the_failure_was_told(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x")
    connection.notify("session.append", **handle, events=[events.chunk()])
    connection.notify("session.append", **handle, events=[events.chunk(), BAD])
    connection.notify("session.append", **handle, events=[events.chunk()])
    told = connection.refusal("checkpoint.tool", **handle, **turns.tool("x"))
    assert told.kind == "EVENT_INVALID"
    assert told.facts["index"] == 1
    assert told.facts["notification"] is True
    assert told.facts["nextSeq"] == 6
    assert len(read_all(connection, fresh_id)) == 6
    connection.notify("session.append", **handle, events=[events.chunk()], expectedSeq=6)
    started = connection.call("checkpoint.tool", **handle, **turns.tool("x"))
    assert started["callSeq"] == 7


@pytest.mark.parametrize("method", ["session.flush", "session.append", "checkpoint.request"])
def test_every_call_of_a_writer_tells_a_failed_notification_first(
    connection: Connection, fresh_id: str, method: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    more = {"events": [events.chunk()]} if method != "session.flush" else {}
    connection.notify("session.append", **handle, events=[BAD])
    told = connection.refusal(method, **handle, **more)
    assert (told.facts["notification"], told.facts["nextSeq"]) == (True, 4)
    assert connection.call(method, **handle, **more)["nextSeq"] == (5 if more else 4)


def test_close_runs_and_carries_the_failure_of_a_notification(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    connection.notify("session.append", **handle, events=[events.chunk()])
    connection.notify("session.append", **handle, events=[BAD])
    closed = connection.call("session.close", **handle)
    assert (closed["nextSeq"], closed["durableSeq"]) == (5, 5)
    assert closed["notificationError"]["data"]["kind"] == "EVENT_INVALID"


def test_recover_runs_and_carries_the_failure_of_a_notification(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    connection.call("session.close", **handle)
    handle["writer"] = connection.call("session.open", id=fresh_id, access="write")["writer"]
    connection.notify("session.append", **handle, events=[events.chunk()])
    recovered = connection.call("session.recover", **handle)
    assert recovered["committed"] is True
    assert recovered["notificationError"]["data"]["kind"] == "RECOVERY_REQUIRED"
    assert "notificationError" not in connection.call("session.recover", **handle)


def test_other_notifications_are_dropped_and_counted(
    shared_daemon: DaemonProcess, connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x")
    before = figure(shared_daemon, "dshd_notifications_dropped_total")
    connection.notify("checkpoint.tool", **handle, **turns.tool("x"))
    connection.notify("daemon.shutdown")
    connection.notify("no.such.method")
    assert connection.call("session.flush", **handle)["nextSeq"] == 5
    assert figure(shared_daemon, "dshd_notifications_dropped_total") == before + 3


def test_a_notification_of_a_writer_that_is_lost_is_dropped(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    connection.call("session.close", **handle)
    connection.notify("session.append", **handle, events=[events.chunk()])
    assert len(read_all(connection, fresh_id)) == 4


# ---------------------------------------------------------------------- batches


def test_a_batch_is_admitted_in_order_and_answered_in_one_line(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x", "y")
    sent = connection.send_batch(
        connection.request("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5),
        notification("session.append", **handle, events=[events.tool_result("x")], expectedSeq=6),
        connection.request("no.such.method"),
        connection.request("checkpoint.tool", **handle, **turns.tool("y"), expectedSeq=7),
        connection.request("session.append", **handle, events=[BAD]),
        connection.request("daemon.status"),
    )
    answers = connection.read_message()
    by_id = {answer["id"]: answer for answer in answers}
    assert list(by_id) == [call_id for call_id in sent if call_id is not None]
    assert by_id[sent[0]]["result"]["decision"] == "DISPATCH"
    assert by_id[sent[2]]["error"]["code"] == -32601
    assert by_id[sent[3]]["result"]["callSeq"] == 7
    assert by_id[sent[4]]["error"]["data"]["kind"] == "EVENT_INVALID"
    assert len(read_all(connection, fresh_id)) == 8


def test_the_whole_first_request_of_an_agent_fits_one_batch(
    connection: Connection, fresh_id: str
) -> None:
    writer = connection.call("session.create", id=fresh_id)["writer"]
    handle = {"id": fresh_id, "writer": writer}
    first, second = turns.opening()[:2], turns.opening()[2:]
    sent = connection.send_batch(
        connection.request("session.append", **handle, events=first, expectedSeq=0),
        connection.request("checkpoint.request", **handle, events=second, expectedSeq=2),
    )
    assert connection.result(sent[1]) == {"nextSeq": 4, "durableSeq": 4}


def test_a_batch_of_notifications_alone_is_not_answered(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    connection.send_batch(
        notification("session.append", **handle, events=[events.chunk()]),
        notification("session.append", **handle, events=[events.chunk()]),
    )
    flush = connection.send("session.flush", **handle)
    assert connection.read_message() == {
        "jsonrpc": "2.0",
        "id": flush,
        "result": {"nextSeq": 6, "durableSeq": 6},
    }


def test_an_empty_batch_and_a_batch_of_nonsense_are_refused_item_by_item(
    connection: Connection,
) -> None:
    connection.send_line(b"[]")
    assert connection.read_message()["error"]["code"] == -32600
    connection.send_line(b'[1, null, "x", {"id": 7}, {"jsonrpc": "2.0", "id": 8, "method": "x"}]')
    answers = connection.read_message()
    assert [answer["error"]["code"] for answer in answers] == [-32600] * 4 + [-32601]
    assert [answer["id"] for answer in answers] == [None, None, None, 7, 8]


def test_a_cancel_in_a_batch_reaches_the_calls_before_it(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x")
    call = connection.request("checkpoint.tool", **handle, **turns.tool("x"))
    connection.send_batch(call, notification("$/cancelRequest", id=call["id"]))
    (answer,) = connection.read_message()
    assert answer["error"]["code"] == -32800
    assert len(read_all(connection, fresh_id)) == 5


# ---------------------------------------------------------------------- the end of a handle


def test_a_call_that_waits_when_its_handle_ends_is_never_a_dispatch(
    shared_daemon: DaemonProcess, connection: Connection, fresh_id: str
) -> None:
    with Connection(shared_daemon.socket) as holder:
        handle = turns.begin_turn(holder, fresh_id, "x")
        large = [events.chunk(secrets.token_hex(2_000_000))]
        waiting = connection.send("checkpoint.tool", **handle, **turns.tool("x"), events=large)
        with Connection(shared_daemon.socket) as other:
            while not other.call("session.read", id=fresh_id, offset=6)["events"]:
                pass
    answer = connection.answer(waiting)
    if "error" in answer:
        assert answer["error"]["data"]["kind"] == "WRITER_LOST"
    else:
        assert answer["result"]["decision"] == "DISPATCH"  # it was answered before the end
    assert len(read_all(connection, fresh_id)) == 7


def test_another_connection_may_use_the_writer_while_it_lives(
    shared_daemon: DaemonProcess, connection: Connection, fresh_id: str
) -> None:
    with Connection(shared_daemon.socket) as holder:
        handle = turns.begin_turn(holder, fresh_id, "x")
        assert connection.call("checkpoint.tool", **handle, **turns.tool("x"))["callSeq"] == 5
    while True:
        lost = connection.answer(connection.send("session.append", **handle, events=[]))
        if "error" in lost:
            break
    assert lost["error"]["data"]["kind"] == "WRITER_LOST"


def test_many_batches_at_once_over_the_same_sessions_are_all_answered(
    connection: Connection, fresh_id: str
) -> None:
    names = [f"{fresh_id} {number}" for number in range(3)]
    for name in names:
        turns.begin_turn(connection, name)
    sent: list[int] = []
    for number in range(60):
        batch = [
            connection.request("session.read", id=names[number % 3]),
            connection.request("session.stat", id=names[(number + 1) % 3]),
            connection.request("session.read", id=names[(number + 2) % 3]),
        ]
        sent += connection.send_batch(*batch)
        sent.append(connection.send("session.messages", id=names[number % 3]))
    assert all(connection.result(call_id) for call_id in sent)
