"""Every method answers with the keys that programs outside this project are written against, and no others."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from support import events
from wire.shapes import (
    LIMITS,
    OPENING,
    POSITION,
    RECOVERY,
    REPAIR,
    SERVER,
    SESSION,
    WRITER,
    Recorder,
    keys,
    until_accepted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.daemon import DaemonProcess
    from support.rpc import Connection

    FreshId = Callable[[], str]


def test_initialize_says_who_answers_and_what_it_takes(connection: Connection) -> None:
    client = {"name": "n", "version": "1", "pid": 1}
    found = connection.call("initialize", protocolVersion=1, client=client)
    assert set(found) == keys("protocolVersion server limits capabilities")
    assert found["protocolVersion"] == 1
    assert set(found["server"]) == SERVER
    assert found["server"]["name"] == "dshd"
    assert set(found["limits"]) >= LIMITS
    assert found["limits"]["maxLineBytes"] == 16 * 1024 * 1024
    assert found["limits"]["maxValues"] == 100_000
    assert all(type(limit) is int and limit > 0 for limit in found["limits"].values())


def test_no_call_needs_initialize(daemon: DaemonProcess) -> None:
    with daemon.connect() as stranger:
        assert set(stranger.call("session.list")) == keys("sessions nextCursor")


def test_status_states_the_same_limits(daemon: DaemonProcess, connection: Connection) -> None:
    client = {"name": "n", "version": "1"}
    greeting = connection.call("initialize", protocolVersion=1, client=client)
    found = connection.call("daemon.status")
    assert set(found) == keys("server startedAt sessions limits socket root problems")
    assert found["server"] == greeting["server"]
    assert found["server"]["pid"] == daemon.pid
    assert found["limits"] == greeting["limits"]
    assert found["socket"] == str(daemon.socket)
    assert found["root"] == str(daemon.root)
    assert all(type(count) is int for count in found["sessions"].values())


def test_metrics_are_openmetrics_text(connection: Connection) -> None:
    found = connection.call("daemon.metrics")
    assert set(found) == keys("contentType text")
    assert found["contentType"].startswith("application/openmetrics-text")
    assert found["text"].endswith("# EOF\n")


def test_discover_describes_every_method_of_the_wire(connection: Connection) -> None:
    found = connection.call("rpc.discover")
    assert found["openrpc"].startswith("1.")
    methods = {method["name"] for method in found["methods"]}
    assert methods >= keys(
        "initialize session.create session.open session.append session.flush session.recover"
        " session.read session.messages session.stat session.list session.fork session.close"
        " session.subscribe session.unsubscribe checkpoint.request checkpoint.tool"
        " checkpoint.postStep checkpoint.turnEnd daemon.status daemon.metrics daemon.shutdown"
        " rpc.discover session.delete session.undelete session.purge session.setLabel"
        " session.search"
    )


def test_create_gives_a_session_and_its_writer(connection: Connection, fresh_id: FreshId) -> None:
    name = fresh_id()
    given = {
        "cwd": "/w",
        "parentSession": "p",
        "seedLength": 3,
        "origin": "subagent",
        "delegationDepth": 2,
        "agentPreset": "a",
    }
    found = connection.call("session.create", id=name, **given)
    assert set(found) == keys("session writer")
    session = found["session"]
    assert set(session) == SESSION
    header = session["header"]
    assert list(header) == [
        *("version", "id", "createdAt", "cwd", "parentSession", "seedLength", "origin"),
        *("delegationDepth", "agentPreset"),
    ]
    assert header == {"version": 0, "id": name, "createdAt": header["createdAt"], **given}
    assert session["createdAt"] == header["createdAt"]
    assert set(session["writer"]) == WRITER
    assert session["writer"]["client"] == "wire"
    assert session["writer"]["connected"] is True
    wanted = {"state": "idle", "nextSeq": 0, "durableSeq": 0, "title": None, "turns": 0}
    wanted |= {"openTurn": None, "openStep": None, "pendingCalls": [], "problem": None}
    assert session == {**session, **wanted}


def test_create_without_params_makes_an_id_and_a_bare_header(connection: Connection) -> None:
    found = connection.call("session.create")["session"]
    assert list(found["header"]) == ["version", "id", "createdAt", "delegationDepth"]
    assert found["header"]["delegationDepth"] == 0
    assert found["id"] == found["header"]["id"]


def test_append_flush_and_close_say_where_the_events_stand(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    found = recorder.append(*OPENING, expectedSeq=0)
    assert set(found) == keys("firstSeq nextSeq durableSeq duplicate")
    assert (found["firstSeq"], found["nextSeq"], found["duplicate"]) == (0, 4, False)
    assert recorder.call("session.flush") == {"nextSeq": 4, "durableSeq": 4}
    again = recorder.append(*OPENING, expectedSeq=0)
    assert again == {"firstSeq": 0, "nextSeq": 4, "durableSeq": 4, "duplicate": True}
    assert recorder.append() == {"firstSeq": 4, "nextSeq": 4, "durableSeq": 4, "duplicate": False}
    recorder.append(events.step_end(), events.turn_end())
    assert recorder.call("session.close") == {"nextSeq": 6, "durableSeq": 6}


def test_checkpoints_answer_with_a_durable_position(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    position = recorder.call("checkpoint.request", events=OPENING, expectedSeq=0)
    assert position == {"nextSeq": 4, "durableSeq": 4}
    recorder.append(events.assistant("a"))
    found = recorder.start("a", expectedSeq=5)
    assert set(found) == keys("decision callSeq nextSeq durableSeq idempotencyKey duplicate result")
    key = found.pop("idempotencyKey")
    assert found == {
        "decision": "DISPATCH",
        "callSeq": 5,
        "nextSeq": 6,
        "durableSeq": 6,
        "duplicate": False,
        "result": None,
    }
    created = connection.call("session.stat", id=recorder.id)["session"]["createdAt"]
    text = json.dumps([recorder.id, created, 5, "a"], separators=(",", ":"))
    assert key == f"dshd1-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    ended = recorder.call(
        "checkpoint.postStep", events=[events.tool_result("a"), events.step_end()], expectedSeq=6
    )
    assert ended == {"nextSeq": 8, "durableSeq": 8}
    closed = recorder.call("checkpoint.turnEnd", reason={"kind": "completed"}, expectedSeq=8)
    assert closed == {"nextSeq": 9, "durableSeq": 9}
    assert set(closed) == POSITION


def test_a_nested_dispatch_is_answered_like_a_call(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.ask("a")
    recorder.start("a")
    found = recorder.start("n", name="sub", arguments='{"x":1.0}', parentCallId="a", time=7)
    assert found["decision"] == "DISPATCH"
    assert found["callSeq"] == 6
    (event,) = connection.call("session.read", id=recorder.id, offset=6)["events"]
    assert event == {**events.dispatch_start(), "seq": 6, "time": 7}
    assert list(event["data"]) == ["rootCallId", "parentCallId", "subCallId", "name", "arguments"]


def test_read_and_messages_answer_pages(connection: Connection, fresh_id: FreshId) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.ask("a")
    found = connection.call("session.read", id=recorder.id, offset=1, length=2)
    assert set(found) == keys("events nextOffset end durableSeq")
    assert [event["seq"] for event in found["events"]] == [1, 2]
    assert (found["nextOffset"], found["end"]) == (3, False)
    assert [list(event) for event in found["events"]] == [
        ["type", "seq", "time", "data"],
        ["type", "seq", "time", "data", "surfaceOp"],
    ]
    beyond = connection.call("session.read", id=recorder.id, offset=99)
    assert (beyond["events"], beyond["end"]) == ([], True)
    history = connection.call("session.messages", id=recorder.id)
    fixed = keys("messages nextOffset requestHeader requestContext recovery problem")
    assert fixed <= set(history) <= fixed | {"unanswered"}
    assert [message["role"] for message in history["messages"]] == ["user", "assistant"]
    assert history["requestHeader"] == {"config": {"provider": "p", "model": "m"}}
    rest = (history["nextOffset"], history["requestContext"], history["recovery"])
    assert rest == (None, None, None), "an active turn is shown as it stands"
    first = connection.call("session.messages", id=recorder.id, limit=1)
    assert (len(first["messages"]), first["nextOffset"]) == (1, 1)


def test_stat_and_list_show_a_session(connection: Connection, fresh_id: FreshId) -> None:
    recorder = Recorder(connection, fresh_id(), cwd="/only/here")
    recorder.ask("a", "b")
    recorder.append(events.title())
    recorder.call("session.flush")
    shown = connection.call("session.stat", id=recorder.id)
    assert set(shown) == {"session"}
    session = shown["session"]
    assert set(session) == SESSION
    wanted = {"state": "active", "openTurn": 1, "openStep": 1, "pendingCalls": ["a", "b"]}
    wanted |= {"nextSeq": 6, "durableSeq": 6, "turns": 1, "title": "a title"}
    assert session == {**session, **wanted}
    page = connection.call("session.list", cwd="/only/here", limit=1)
    assert set(page) == keys("sessions nextCursor")
    assert page["sessions"] == [session]
    assert connection.call("session.list", cwd="/not/here") == {"sessions": [], "nextCursor": None}
    states = connection.call("session.list", states=["interrupted"])["sessions"]
    assert {one["state"] for one in states} <= {"interrupted", "unknown"}


def test_pages_of_a_list_are_newest_first_and_complete(
    connection: Connection, fresh_id: FreshId
) -> None:
    names = [fresh_id() for _ in range(5)]
    for name in names:
        Recorder(connection, name, cwd="/paged").call("session.flush")
    found: list[Any] = []
    cursor: str | None = None
    while True:
        params = {} if cursor is None else {"cursor": cursor}
        page = connection.call("session.list", cwd="/paged", limit=2, **params)
        found += page["sessions"]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert {one["id"] for one in found} == set(names)
    times = [one["updatedAt"] for one in found[:5]]
    assert times == sorted(times, reverse=True)


def test_open_for_reading_previews_what_recover_commits(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    with daemon.connect() as other:
        recorder = Recorder(other, name)
        recorder.ask("a", "b", "c")
        recorder.start("a")
        recorder.append(events.tool_result("a"))
        recorder.start("b")
        read = connection.call("session.open", id=name, access="read")
        assert set(read) == keys("session writer recovery")
        assert (read["writer"], read["recovery"]) == (None, None), "the turn is live"
    opened = until_accepted(connection, "session.open", id=name, access="write")
    recovery = opened["recovery"]
    assert set(recovery) == RECOVERY
    assert recovery["committed"] is False
    assert [set(repair) for repair in recovery["repairs"]] == [REPAIR, REPAIR]
    told = [(one["callId"], one["code"], one["callSeq"]) for one in recovery["repairs"]]
    assert told == [("b", "TOOL_OUTCOME_UNKNOWN", 7), ("c", "TOOL_NOT_STARTED", None)]
    assert recovery["repairs"][1]["idempotencyKey"] is None
    kinds = [event["type"] for event in recovery["closers"]]
    assert kinds == ["tool/result", "tool/result", "step/end", "turn/end"]
    assert recovery["nextSeq"] == 8 + 4 + 1
    assert opened["session"]["state"] == "interrupted" or opened["session"]["writer"] is not None
    writer = opened["writer"]
    committed = connection.call("session.recover", id=name, writer=writer)
    assert committed == {**recovery, "committed": True}
    assert connection.call("session.recover", id=name, writer=writer) == committed
    stored = connection.call("session.read", id=name, offset=8)["events"]
    assert stored[:-1] == recovery["closers"]
    assert stored[-1]["type"] == "session/end-seed"


def test_recover_has_nothing_to_do_on_a_closed_session(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(events.turn_start(), events.turn_end())
    found = recorder.call("session.recover")
    assert found == {"committed": True, "repairs": [], "closers": [], "nextSeq": 2}


def test_fork_answers_a_stored_session_without_a_writer(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id(), cwd="/w")
    recorder.append(events.turn_start(), events.turn_end(), events.title())
    name = fresh_id()
    found = connection.call("session.fork", id=recorder.id, boundary=1, newId=name)
    assert set(found) == {"session"}
    child = found["session"]
    assert set(child) == SESSION
    assert child["writer"] is None
    assert child["header"]["parentSession"] == recorder.id
    assert child["header"]["seedLength"] == 2
    stored = connection.call("session.read", id=name)["events"]
    assert [event["type"] for event in stored] == ["turn/start", "turn/end", "session/end-seed"]
    assert child["durableSeq"] == 3


def test_subscribe_tells_durable_events_after_its_reply(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(*OPENING)
    recorder.call("session.flush")
    found = connection.call("session.subscribe", id=recorder.id, fromSeq=1)
    assert set(found) == {"subscriptionId"}
    assert not connection.notifications
    seen: list[int] = []
    while len(seen) < 3:
        seen += told(connection, found["subscriptionId"])
    recorder.append(events.chunk(), events.chunk("b"))
    while len(seen) < 5:
        seen += told(connection, found["subscriptionId"])
    assert seen == [1, 2, 3, 4, 5]
    assert connection.call("session.unsubscribe", **found) == {}
    assert connection.call("session.unsubscribe", **found) == {}


def told(connection: Connection, subscription_id: str) -> list[int]:
    notice = connection.notification()
    assert set(notice) == {"jsonrpc", "method", "params"}
    assert notice["method"] == "session.event"
    assert set(notice["params"]) == {"subscriptionId", "events"}
    assert notice["params"]["subscriptionId"] == subscription_id
    return [event["seq"] for event in notice["params"]["events"]]


def test_a_subscription_ends_with_a_session_that_never_came_to_be(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    found = connection.call("session.subscribe", id=recorder.id, fromSeq=0)
    recorder.call("session.close")
    notice = connection.notification()
    assert notice["method"] == "session.ended"
    assert set(notice["params"]) == {"subscriptionId", "reason"}
    assert notice["params"]["subscriptionId"] == found["subscriptionId"]
    assert connection.refusal("session.stat", id=recorder.id).kind == "SESSION_NOT_FOUND"
