"""Subscriptions and lists: whoever watches sees everything durable, in order, once; or is told where to read on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.rpc import Connection
from support.verdicts import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.daemon import DaemonProcess


@pytest.fixture
def watcher(shared_daemon: DaemonProcess) -> Iterator[Connection]:
    with Connection(shared_daemon.socket, name="the watcher") as watcher:
        yield watcher


def take(watcher: Connection, count: int) -> list[events.Event]:
    """Return the next events that a watcher is told, `count` of them."""
    found: list[events.Event] = []
    while len(found) < count:
        told = watcher.notification()
        assert told["method"] == "session.event", told
        found += told["params"]["events"]
    assert len(found) == count
    return found


def test_a_watcher_gets_stored_events_first_and_then_live_ones_whoever_writes(
    connection: Connection, watcher: Connection, shared_daemon: DaemonProcess, fresh_id: str
) -> None:
    next_seq = turns.write_session(connection, fresh_id)
    sent = watcher.send("session.subscribe", id=fresh_id, fromSeq=2)
    assert watcher.read_message()["id"] == sent, "an event came before the reply"
    assert take(watcher, next_seq - 2) == read_all(connection, fresh_id)[2:]
    for turn in (2, 3):  # two more writers, and nobody in between
        with Connection(shared_daemon.socket) as writer:
            opened = writer.call("session.open", id=fresh_id, access="write")
            handle = {"id": fresh_id, "writer": opened["writer"]}
            first = opened["session"]["nextSeq"] - 1
            writer.call("session.append", **handle, events=turns.opening(turn))
            turns.end_turn(writer, handle, turn)
            writer.call("session.close", **handle)
            assert take(watcher, 7) == read_all(writer, fresh_id)[first:]


def test_a_watcher_gets_durable_events_only(
    connection: Connection, watcher: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    watcher.call("session.subscribe", id=fresh_id, fromSeq=4)
    for seq in range(4, 24):
        connection.call("session.append", **handle, events=[events.chunk(str(seq))])
    seen: list[int] = []
    while len(seen) < 20:
        told = [event["seq"] for event in watcher.notification()["params"]["events"]]
        seen += told
        durable = connection.call("session.read", id=fresh_id, offset=0, length=1)["durableSeq"]
        assert durable > told[-1]
    assert seen == list(range(4, 24))


def test_an_ended_subscription_is_told_nothing_more(
    connection: Connection, watcher: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    followed = watcher.call("session.subscribe", id=fresh_id, fromSeq=4)
    other = watcher.call("session.subscribe", id=fresh_id, fromSeq=4)
    assert watcher.call("session.unsubscribe", **followed) == {}
    assert watcher.call("session.unsubscribe", **followed) == {}
    connection.call("session.append", **handle, events=[events.chunk()])
    connection.call("session.flush", **handle)
    assert watcher.notification()["params"]["subscriptionId"] == other["subscriptionId"]
    watcher.call("daemon.status")
    assert not watcher.notifications


def test_nothing_can_be_subscribed_that_is_not_there(connection: Connection) -> None:
    refused = connection.refusal("session.subscribe", id="nobody", fromSeq=0)
    assert refused.kind == "SESSION_NOT_FOUND"


def test_a_watcher_that_does_not_read_is_told_that_it_lags_and_reads_on_without_a_gap(
    connection: Connection, watcher: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    watcher.call("session.subscribe", id=fresh_id, fromSeq=0)
    assert len(take(watcher, 4)) == 4
    piece = {"type": "assistant/chunk", "data": events.chunk("x" * 200)["data"]}
    for _ in range(6):
        connection.call("session.append", **handle, events=[piece] * 7_000)
        connection.call("session.flush", **handle)
    end = 4 + 6 * 7_000
    seen, told = 4, watcher.notification()
    while told["method"] == "session.event":
        assert told["params"]["events"][0]["seq"] == seen
        seen += len(told["params"]["events"])
        told = watcher.notification()
    assert told["method"] == "session.lagged"
    assert told["params"]["fromSeq"] == seen < end
    followed = watcher.call("session.subscribe", id=fresh_id, fromSeq=seen)
    while seen < end:
        told = watcher.notification()
        assert told["params"]["subscriptionId"] == followed["subscriptionId"]
        assert told["params"]["events"][0]["seq"] == seen
        seen += len(told["params"]["events"])
    connection.call("session.append", **handle, events=[piece])
    assert take(watcher, 1)[0]["seq"] == end


def test_a_watcher_that_is_gone_disturbs_nobody(
    connection: Connection, shared_daemon: DaemonProcess, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id)
    for _ in range(5):
        with Connection(shared_daemon.socket) as gone:
            gone.call("session.subscribe", id=fresh_id, fromSeq=0)
    connection.call("session.append", **handle, events=[events.chunk()])
    assert connection.call("session.flush", **handle)["durableSeq"] == 5


# ---------------------------------------------------------------------- lists


def pages(one: Connection, limit: int, **params: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the pages of a list, the next one asked for when the caller is ready."""
    asked = {"limit": limit, **params}
    while True:
        page = one.call("session.list", **asked)
        assert len(page["sessions"]) <= limit
        yield page["sessions"]
        if page["nextCursor"] is None:
            return
        asked["cursor"] = page["nextCursor"]


def test_no_session_is_missed_by_a_list_while_sessions_change_between_its_pages(
    daemon: DaemonProcess,
) -> None:
    with daemon.connect() as one, daemon.connect() as writer:
        for number in range(20):
            turns.write_session(writer, f"s{number}")
        seen: list[str] = []
        changed = iter(range(20))
        for page in pages(one, 3):
            seen += [view["id"] for view in page]
            if len(seen) < 12:
                number = next(changed)
                opened = writer.call("session.open", id=f"s{number}", access="write")
                handle = {"id": f"s{number}", "writer": opened["writer"]}
                writer.call("session.append", **handle, events=[events.title()])
                writer.call("session.close", **handle)
                turns.write_session(writer, f"new{number}")
        assert {f"s{number}" for number in range(20)} <= set(seen)
        assert any(name.startswith("new") for name in seen)
        whole = one.call("session.list")["sessions"]
        times = [view["updatedAt"] for view in whole]
        assert times == sorted(times, reverse=True)
        assert len(whole) == len({view["id"] for view in whole})


def test_a_list_is_filtered_by_folder_and_state(daemon: DaemonProcess) -> None:
    with daemon.connect() as one:
        turns.write_session(one, "idle")
        handle = turns.begin_turn(one, "interrupted", "x")
        one.call("session.close", **handle)
        turns.begin_turn(one, "active")
        made = one.call("session.create", id="elsewhere", cwd="/elsewhere")
        one.call("session.flush", id="elsewhere", writer=made["writer"])

        def listed(**params: Any) -> set[str]:
            return {view["id"] for view in one.call("session.list", **params)["sessions"]}

        assert listed(cwd="/elsewhere") == {"elsewhere"}
        assert listed(states=["active"]) == {"active"}
        assert listed(states=["interrupted"]) == {"interrupted"}
        assert listed(states=["idle"], cwd="/w") == {"idle"}
        counted = one.call("daemon.status")["sessions"]
        assert counted == {"idle": 2, "interrupted": 1, "active": 1}


@pytest.mark.parametrize(
    "params",
    [{"limit": 0}, {"limit": -1}, {"cursor": "nonsense"}, {"cursor": ""}, {"limit": True}],
    ids=json.dumps,
)
def test_a_list_refuses_what_is_no_limit_and_no_cursor_of_its_own(
    connection: Connection, params: dict[str, Any]
) -> None:
    assert connection.refusal("session.list", **params).kind == "INVALID_PARAMS"
