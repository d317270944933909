"""Turns whose number is none: whatever stands in a log, what is recovered of it can be read and gone on with."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.events import Header
from dshd.offline import new_judge
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.verify import Looker, verify
from support import events
from support.events import stored
from support.verdicts import check_history, read_all

if TYPE_CHECKING:
    from support.daemon import DaemonProcess
    from support.rpc import Connection

UNKNOWN = "TOOL_OUTCOME_UNKNOWN"
ABSENT = object()
NUMBERS: list[Any] = [None, ABSENT, "x", "", 0, -1, 1.5, 2**53, True, [], {}]
WHOLE = [events.turn_start(), events.turn_end()]
BEFORE: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "a whole turn": WHOLE,
    "an open turn": [*WHOLE, events.turn_start(2), events.step_start(1, 2)],
}


def turn_start(number: Any) -> dict[str, Any]:
    started = events.turn_start(number)
    if number is ABSENT:
        del started["data"]["turn"]
    return started


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("place", range(len(NUMBERS)), ids=[repr(n)[:12] for n in NUMBERS])
def test_a_turn_of_an_odd_number_is_recovered_into_a_log_that_goes_on(
    shared_daemon: DaemonProcess, connection: Connection, before: str, place: int
) -> None:
    number, name = NUMBERS[place], f"odd-{place}-{before}".replace(" ", "-")
    begun = [turn_start(number), events.step_start(), events.user(), events.request_header()]
    log = stored([*BEFORE[before], *begun, events.assistant("a", "b"), events.tool_call("a")])
    with closing(open_store(shared_daemon.root).create(Header(id=name, created_at=1))) as handle:
        handle.append(log)

    view = connection.call("session.stat", id=name)["session"]
    assert view["problem"] is None
    history = connection.call("session.messages", id=name)
    check_history(history["messages"])
    told: list[dict[str, Any]] = history.get("unanswered", [])
    if history["recovery"] is not None:
        told = [*history["recovery"]["repairs"], *told]
    assert {one["callId"]: one["code"] for one in told} == {"a": UNKNOWN, "b": "TOOL_NOT_STARTED"}

    preview = connection.call("session.open", id=name, access="read")["recovery"]
    opened = connection.call("session.open", id=name, access="write")
    handle_of = {"id": name, "writer": opened["writer"]}
    committed = connection.call("session.recover", **handle_of)
    if preview is not None:
        assert committed["closers"] == preview["closers"]
        assert view["state"] == "interrupted"
    turns = [e["data"].get("turn") for e in log if e["type"] == "turn/start"]
    last = [0, *(number for number in turns if type(number) is int and 0 <= number < 2**53)][-1]
    connection.call("session.append", **handle_of, events=[events.turn_start(last + 1)])
    ended = [events.step_start(1, last + 1), events.step_end(1, last + 1)]
    connection.call("session.append", **handle_of, events=[*ended, events.turn_end(last + 1)])
    connection.call("session.close", **handle_of)

    assert read_all(connection, name)[: len(log)] == log
    assert connection.call("session.stat", id=name)["session"]["state"] == "idle"
    check_history(connection.call("session.messages", id=name)["messages"])
    assert verify(name, shared_daemon.root, Looker(new_judge)).whole
    again = connection.call("session.open", id=name, access="write")
    assert again["recovery"] is None
    connection.call("session.close", id=name, writer=again["writer"])
