"""Write handles and the order of calls: who may append, until when, and what is answered before what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support import events
from support.daemon import open_daemon
from support.rpc import CallRefusedError, Connection
from wire.shapes import OPENING, Recorder, until_accepted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.daemon import DaemonProcess

    FreshId = Callable[[], str]


def test_nothing_is_on_disk_before_the_first_durable_event(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id(), cwd="/not/written")
    assert not list(daemon.root.glob("*not-written*/*"))
    recorder.call("session.close")
    assert not list(daemon.root.glob("*not-written*/*"))
    again = Recorder(connection, recorder.id, cwd="/not/written")
    assert again.call("session.flush") == {"nextSeq": 0, "durableSeq": 0}
    assert list(daemon.root.glob("*not-written*/*/session.jsonl.zstd"))


def test_other_connections_may_use_the_writer_while_it_lives(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    with Connection(daemon.socket, name="holder") as holder:
        recorder = Recorder(holder, fresh_id())
        about = {"id": recorder.id, "writer": recorder.writer}
        answer = connection.call("session.append", events=OPENING, expectedSeq=0, **about)
        assert answer["nextSeq"] == 4
        assert connection.call("session.flush", **about)["durableSeq"] == 4
    while True:
        answer = connection.answer(connection.send("session.flush", **about))
        if "error" in answer:
            break
    assert answer["error"]["data"]["kind"] == "WRITER_LOST"
    shown = connection.call("session.stat", id=recorder.id)["session"]
    assert shown["state"] == "active", "the holder's process lives"
    assert shown["writer"]["connected"] is False


def test_what_was_admitted_is_flushed_when_the_connection_ends(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    with Connection(daemon.socket) as holder:
        Recorder(holder, name).append(events.turn_start(), events.turn_end(), expectedSeq=0)
    opened = until_accepted(connection, "session.open", id=name, access="write")
    session = opened["session"]
    assert (session["durableSeq"], session["nextSeq"]) == (2, 3), "an end-seed is reserved"
    assert opened["recovery"] is None
    answer = connection.call(
        "session.append",
        id=name,
        writer=opened["writer"],
        events=[events.turn_start(2)],
        expectedSeq=3,
    )
    assert answer["firstSeq"] == 3
    stored = connection.call("session.read", id=name, offset=2)["events"]
    assert [event["type"] for event in stored] == ["session/end-seed", "turn/start"]
    assert list(stored[0]) == ["type", "seq", "time", "data"]
    assert stored[0]["data"] == {}


def test_an_untouched_session_does_not_grow_by_being_opened(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(events.turn_start(), events.turn_end())
    recorder.call("session.close")
    size = connection.call("session.stat", id=recorder.id)["session"]["sizeBytes"]
    for _ in range(3):
        opened = connection.call("session.open", id=recorder.id, access="write")
        about = {"id": recorder.id, "writer": opened["writer"]}
        assert connection.call("session.flush", **about)["durableSeq"] == 2
        assert connection.call("session.recover", **about)["nextSeq"] == 3
        connection.call("session.close", **about)
    shown = connection.call("session.stat", id=recorder.id)["session"]
    assert (shown["sizeBytes"], shown["nextSeq"]) == (size, 2)


def test_replies_of_one_session_come_in_the_order_of_the_calls(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    about = {"id": recorder.id, "writer": recorder.writer}
    request = connection.request
    calls = [
        request("checkpoint.request", events=OPENING, expectedSeq=0, **about),
        request("session.append", events=[events.chunk("a")], expectedSeq=4, **about),
        request("session.read", id=recorder.id, offset=4),
        request("session.append", events=[events.turn_start(9)], **about),
        request("session.flush", **about),
        request("session.stat", id=recorder.id),
        request("session.append", events=[events.chunk("b")], expectedSeq=5, **about),
        request("session.messages", id=recorder.id),
    ]
    connection.send_together(*calls)
    answers = [connection.read_message() for _ in calls]
    assert [answer["id"] for answer in answers] == [call["id"] for call in calls]
    assert answers[0]["result"]["nextSeq"] == 4
    assert answers[0]["result"]["durableSeq"] >= 4, "what came meanwhile may be in its batch"
    assert answers[2]["result"]["events"][0]["data"]["chunk"]["text"] == "a"
    assert answers[4]["result"]["durableSeq"] >= 5


def test_a_read_serves_admitted_events_and_says_what_is_durable(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.call("checkpoint.request", events=OPENING)
    about = {"id": recorder.id, "writer": recorder.writer}
    ids = connection.send_together(
        connection.request("session.append", events=[events.chunk()], **about),
        connection.request("session.read", id=recorder.id),
    )
    found = connection.result(ids[1])
    assert (found["nextOffset"], found["durableSeq"], found["end"]) == (5, 4, True)


def test_three_tool_checkpoints_sent_in_one_go_are_each_dispatched_once(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.ask("a", "b", "c")
    about = {"id": recorder.id, "writer": recorder.writer, "name": "t"}
    calls = [
        connection.request(
            "checkpoint.tool",
            callId=call_id,
            arguments=f'{{"for":"{call_id}"}}',
            expectedSeq=5 + place,
            **about,
        )
        for place, call_id in enumerate("abc")
    ]
    for attempt in range(3):
        ids = connection.send_together(*calls)
        found = [connection.result(call_id) for call_id in ids]
        assert [one["decision"] for one in found] == ["DISPATCH"] * 3
        assert [one["callSeq"] for one in found] == [5, 6, 7]
        assert [one["duplicate"] for one in found] == [attempt > 0] * 3
    assert recorder.length() == 8


def test_a_reply_never_exceeds_a_line(connection: Connection, fresh_id: FreshId) -> None:
    recorder = Recorder(connection, fresh_id())
    longest = connection.call("daemon.status")["limits"]["maxLineBytes"]
    text = "x" * 3_900_000  # it stands in a message twice
    recorder.append(events.turn_start())
    for place in range(3):
        recorder.append(events.user(f"{place}{text}"))
    found = connection.call("session.read", id=recorder.id, maxBytes=2**53 - 1)
    assert 0 < len(found["events"]) < 4
    assert found["end"] is False
    small = connection.call("session.read", id=recorder.id, offset=1, maxBytes=1)
    assert small["nextOffset"] == 2, "one event at least"
    history = connection.call("session.messages", id=recorder.id)
    assert 0 < len(history["messages"]) < 3
    assert history["nextOffset"] == len(history["messages"])
    assert longest < 6 * len(text)
    recorder.append(events.turn_end())
    recorder.call("session.close")


def test_every_page_of_a_history_can_be_had_however_large_what_stands_beside_its_messages(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    large = "x" * 5_700_000
    header, asked = events.request_header(), events.user()
    header["data"]["header"]["system"] = large
    asked["data"]["content"][0]["text"] = large
    context = {"type": "request/context", "data": {"provider": large, "model": "m"}}
    for each in (events.turn_start(), events.user("first"), header, context, asked):
        recorder.append(each)
        recorder.call("session.flush")
    recorder.append(events.user("last"))
    found: list[Any] = []
    offset, left_out = 0, {}
    while offset is not None:
        page = connection.call("session.messages", id=recorder.id, offset=offset)
        for key in ("requestHeader", "requestContext"):
            assert (page[key] is None) is (key in page.get("leftOut", ()))
        left_out[offset] = len(page.get("leftOut", ()))
        found += page["messages"]
        offset = page["nextOffset"]
    assert [len(one["content"][0]["text"]) for one in found] == [5, 5_700_000, 4]
    assert left_out == {0: 0, 1: 1, 2: 0}
    recorder.append(events.turn_end())
    recorder.call("session.close")


def test_large_answers_of_a_batch_cost_no_small_one_its_place(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.call("checkpoint.request", events=OPENING)
    recorder.append({"type": "feedback/record", "data": {"text": "x" * 8_000_000}})
    recorder.append(events.assistant("a", "b"))
    recorder.call("session.flush")
    about = {"id": recorder.id, "writer": recorder.writer}
    reads = [connection.request("session.read", id=recorder.id, offset=4) for _ in range(3)]
    asked = {"name": "t", "arguments": '{"for":"a"}'}
    started = connection.request("checkpoint.tool", callId="a", expectedSeq=6, **asked, **about)
    refused = connection.request("checkpoint.tool", callId="c", **asked, **about)
    appended = connection.request("session.append", events=[events.chunk()], expectedSeq=7, **about)
    batch = [started, *reads[:2], refused, appended, reads[2], connection.request("session.none")]
    connection.send_line(json.dumps(batch).encode())
    answers = connection.read_message()
    assert [answer["id"] for answer in answers] == [call["id"] for call in batch]
    by_id = {answer["id"]: answer for answer in answers}
    assert by_id[started["id"]]["result"]["decision"] == "DISPATCH"
    assert by_id[started["id"]]["result"]["callSeq"] == 6
    assert by_id[refused["id"]]["error"]["data"]["kind"] == "EVENT_INVALID"
    assert by_id[appended["id"]]["result"]["firstSeq"] == 7
    whole = [by_id[read["id"]].get("error", {}).get("data", {}).get("limit") for read in reads]
    assert whole.count(None) == 2, "as many as fit"
    assert whole.count("maxLineBytes") == 1
    recorder.call("session.close")


def test_shutdown_makes_durable_what_was_admitted_and_ends_the_daemon(tmp_path: Path) -> None:
    with open_daemon(tmp_path, flags=("--batch-window", "60")) as daemon:
        with daemon.connect() as connection:
            recorder = Recorder(connection, "kept")
            recorder.append(*OPENING)
            assert connection.call("session.read", id="kept")["durableSeq"] == 0
            assert connection.call("daemon.shutdown") == {}
            assert connection.ends()
        assert daemon.process.wait(20) == 0
        assert not daemon.socket.exists()
        daemon.start()
        found = daemon.call("session.read", id="kept")
        assert (found["nextOffset"], found["durableSeq"]) == (4, 4)


def test_calls_during_the_shutdown_are_refused_or_not_answered(tmp_path: Path) -> None:
    with open_daemon(tmp_path) as daemon, daemon.connect() as connection:
        calls = [connection.request("daemon.shutdown")]
        calls += [connection.request("session.create", id=f"late-{n}") for n in range(50)]
        connection.send_together(*calls)
        try:
            for call in calls:
                answer = connection.answer(call["id"])
                if "error" in answer:
                    assert CallRefusedError(answer["error"]).kind == "SHUTTING_DOWN"
        except ConnectionRefusedError:
            pass  # it is gone
        assert daemon.process.wait(20) == 0
