"""Logs that other programs left behind, read and gone on with through the real daemon."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from dsh_protocol.events import Header
from dshd.storage.jsonl.store import open_store
from support import events
from support.events import stored
from support.verdicts import check_history

if TYPE_CHECKING:
    from support.daemon import DaemonProcess
    from support.rpc import Connection

OPEN = (events.turn_start(), events.step_start(), events.user(), events.request_header())
UNKNOWN = "TOOL_OUTCOME_UNKNOWN"


def _laid(daemon: DaemonProcess, session_id: str, *log: dict[str, Any]) -> list[dict[str, Any]]:
    written = stored(log)
    with closing(open_store(daemon.root).create(Header(id=session_id, created_at=1))) as handle:
        handle.append(written)
    return written


def test_calls_of_ended_steps_are_answered_in_the_history_and_reported_and_the_log_is_untouched(
    shared_daemon: DaemonProcess, connection: Connection, fresh_id: str
) -> None:
    asked = (events.assistant("a", "b"), events.tool_call("a"), events.step_end())
    log = _laid(shared_daemon, fresh_id, *OPEN, *asked, events.turn_end())
    history = connection.call("session.messages", id=fresh_id)
    check_history(history["messages"])
    assert history["recovery"] is None
    told = [(one["callId"], one["code"], one["callSeq"]) for one in history["unanswered"]]
    assert told == [("a", UNKNOWN, 5), ("b", "TOOL_NOT_STARTED", None)]
    assert history == connection.call("session.messages", id=fresh_id)
    assert connection.call("session.read", id=fresh_id)["events"] == log

    opened = connection.call("session.open", id=fresh_id, access="write")
    assert opened["recovery"] is None
    handle = {"id": fresh_id, "writer": opened["writer"]}
    begun = [events.turn_start(2), events.step_start(1, 2), events.user("go on")]
    connection.call("session.append", **handle, events=begun)
    live = connection.call("session.messages", id=fresh_id)
    check_history(live["messages"])
    assert live["unanswered"] == history["unanswered"]
    pages = [
        connection.call("session.messages", id=fresh_id, offset=at, limit=1)
        for at in range(len(live["messages"]))
    ]
    assert [page["messages"][0] for page in pages] == live["messages"]
    assert [one for page in pages for one in page.get("unanswered", ())] == live["unanswered"]
    connection.call("session.close", **handle)


def test_a_begun_call_that_was_asked_for_again_stays_unknown_from_the_preview_to_the_stored_closer(
    shared_daemon: DaemonProcess, connection: Connection, fresh_id: str
) -> None:
    again = (events.assistant("a"), events.tool_call("a"), events.assistant("a"))
    _laid(shared_daemon, fresh_id, *OPEN, *again)
    preview = connection.call("session.open", id=fresh_id, access="read")["recovery"]
    assert [(one["code"], one["callSeq"]) for one in preview["repairs"]] == [(UNKNOWN, 5)]
    check_history(connection.call("session.messages", id=fresh_id)["messages"])
    opened = connection.call("session.open", id=fresh_id, access="write")
    handle = {"id": fresh_id, "writer": opened["writer"]}
    committed = connection.call("session.recover", **handle)
    assert committed == preview | {"committed": True}
    result = connection.call("session.read", id=fresh_id, offset=7)["events"][0]
    assert result["data"]["error"]["code"] == UNKNOWN
    assert result["sourceEventSeqs"] == [5]
    connection.call("session.close", **handle)
    again = connection.call("session.open", id=fresh_id, access="read")["recovery"]
    assert again["repairs"] == preview["repairs"]


def test_a_log_with_odd_numbers_and_an_empty_call_id_is_recovered_into_one_that_can_be_continued(
    shared_daemon: DaemonProcess, connection: Connection, fresh_id: str
) -> None:
    odd = (events.turn_start("x"), events.step_start("y"), events.assistant("", "b", step="z"))
    _laid(shared_daemon, fresh_id, *odd)
    opened = connection.call("session.open", id=fresh_id, access="write")
    handle = {"id": fresh_id, "writer": opened["writer"]}
    committed = connection.call("session.recover", **handle)
    assert [one["callId"] for one in committed["repairs"]] == ["b"]
    connection.call("session.close", **handle)
    history = connection.call("session.messages", id=fresh_id)
    check_history(history["messages"])
    assert [one["callId"] for one in history["unanswered"]] == [""]
    view = connection.call("session.stat", id=fresh_id)["session"]
    assert (view["state"], view["problem"]) == ("idle", None)
    again = connection.call("session.open", id=fresh_id, access="write")
    handle = {"id": fresh_id, "writer": again["writer"]}
    connection.call("session.append", **handle, events=[events.turn_start(1)])
    connection.call("session.close", **handle)
