"""Calls on one connection: their order, notifications, batches, and the end of one side."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from support import events, turns
from support.figures import figure
from support.rpc import Connection, notification
from support.verdicts import read_all

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

BAD: events.Event = {"type": "no/such-type", "data": {}}


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


@pytest.mark.parametrize("kind", ["session.append", "session.stat", "checkpoint.request"])
def test_a_notification_between_two_calls_lets_no_answer_overtake(
    connection: Connection, fresh_id: str, kind: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x")
    more = {} if kind == "session.stat" else {**handle, "events": [events.chunk()]}
    calls = [
        connection.request("checkpoint.tool", **handle, **turns.tool("x")),
        notification("session.append", **handle, events=[events.chunk()]),
        notification("session.append", **handle, events=[BAD]),
        connection.request(kind, **{"id": fresh_id, **more}),
    ]
    connection.send_together(*calls)
    answers = [connection.read_message() for _ in range(2)]
    assert [answer["id"] for answer in answers] == [calls[0]["id"], calls[3]["id"]]
    told = kind != "session.stat"  # of the notification that failed
    assert (answers[1].get("error", {}).get("data", {}).get("kind") == "EVENT_INVALID") == told


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
