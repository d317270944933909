"""Where events go in a log: given seqs, repeated calls, conflicts, and the end of the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.verdicts import read_all

if TYPE_CHECKING:
    from support.daemon import DaemonProcess
    from support.rpc import Connection

CHUNKS = [events.chunk("a"), events.chunk("b")]


@pytest.fixture
def handle(connection: Connection, fresh_id: str) -> dict[str, Any]:
    """A session inside its first step; its next seq is 4."""
    return turns.begin_turn(connection, fresh_id)


# ---------------------------------------------------------------------- repeated calls and conflicts


def test_a_repeated_append_answers_the_first_one_again(
    connection: Connection, handle: dict[str, Any]
) -> None:
    first = connection.call("session.append", **handle, events=CHUNKS, expectedSeq=4)
    assert first == {"firstSeq": 4, "nextSeq": 6, "durableSeq": 4, "duplicate": False}
    connection.call("session.flush", **handle)
    again = connection.call("session.append", **handle, events=CHUNKS, expectedSeq=4)
    assert again == {"firstSeq": 4, "nextSeq": 6, "durableSeq": 6, "duplicate": True}
    timed = [{"time": 12345, **event} for event in CHUNKS]
    turned = [{"data": event["data"], "type": event["type"]} for event in CHUNKS]
    for same in (timed, turned, [{**CHUNKS[0], "seq": 4}, CHUNKS[1]]):
        repeated = connection.call("session.append", **handle, events=same, expectedSeq=4)
        assert repeated["duplicate"] is True
    assert len(read_all(connection, handle["id"])) == 6


def test_the_defaults_of_a_surface_event_count_when_it_is_repeated(
    connection: Connection, handle: dict[str, Any]
) -> None:
    plain = events.assistant()
    connection.call("session.append", **handle, events=[plain], expectedSeq=4)
    marked = {**plain, "surfaceOp": "append"}
    again = connection.call("session.append", **handle, events=[marked], expectedSeq=4)
    assert again["duplicate"] is True
    cited = {**plain, "sourceEventSeqs": [3]}
    refused = connection.refusal("session.append", **handle, events=[cited], expectedSeq=4)
    assert refused.kind == "SEQ_CONFLICT"


@pytest.mark.parametrize(
    ("sent", "seq"),
    [
        ([events.chunk("other")], 4),
        ([CHUNKS[0], CHUNKS[1], events.chunk("c")], 4),
        ([CHUNKS[1], events.chunk("c")], 5),
        ([events.chunk("c")], 7),
        ([events.chunk("c")], 2),
    ],
    ids=["different", "longer than stored", "only partly stored", "beyond next seq", "long past"],
)
def test_anything_else_at_another_seq_is_a_conflict_and_writes_nothing(
    connection: Connection, handle: dict[str, Any], sent: list[events.Event], seq: int
) -> None:
    connection.call("session.append", **handle, events=CHUNKS, expectedSeq=4)
    refused = connection.refusal("session.append", **handle, events=sent, expectedSeq=seq)
    assert refused.kind == "SEQ_CONFLICT"
    assert (refused.facts["expected"], refused.facts["got"]) == (6, seq)
    assert len(read_all(connection, handle["id"])) == 6


def test_every_checkpoint_may_be_repeated_and_adds_nothing(
    connection: Connection, fresh_id: str
) -> None:
    writer = connection.call("session.create", id=fresh_id)["writer"]
    handle = {"id": fresh_id, "writer": writer}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("checkpoint.request", {"events": turns.opening(), "expectedSeq": 0}),
        (
            "checkpoint.tool",
            {"events": [events.assistant("x")], **turns.tool("x"), "expectedSeq": 4},
        ),
        (
            "checkpoint.postStep",
            {"events": [events.tool_result("x"), events.step_end()], "expectedSeq": 6},
        ),
        ("checkpoint.turnEnd", {"reason": {"kind": "completed"}, "expectedSeq": 8}),
    ]
    for method, params in calls:
        first = connection.call(method, **handle, **params)
        again = connection.call(method, **handle, **params)
        assert again == first | ({"duplicate": True} if "duplicate" in first else {})
        assert again["durableSeq"] == again["nextSeq"]
    for method, params in calls:
        if method != "checkpoint.tool":  # that one is answered: it is not started again
            assert connection.call(method, **handle, **params)["durableSeq"] == 9
    assert len(read_all(connection, fresh_id)) == 9


def test_a_call_is_admitted_whole_or_not_at_all(
    connection: Connection, handle: dict[str, Any]
) -> None:
    bad = [*CHUNKS, events.step_end(7), *CHUNKS]
    refused = connection.refusal("session.append", **handle, events=bad, expectedSeq=4)
    assert refused.kind == "EVENT_INVALID"
    assert refused.facts["index"] == 2
    assert refused.facts["rule"]
    assert connection.call("session.flush", **handle)["nextSeq"] == 4
    unmet = connection.refusal("checkpoint.postStep", **handle, events=CHUNKS, expectedSeq=4)
    assert unmet.kind == "EVENT_INVALID"
    assert len(read_all(connection, handle["id"])) == 4


def test_a_lost_writer_and_a_due_recovery_are_told_before_a_conflict(
    connection: Connection, handle: dict[str, Any]
) -> None:
    old = dict(handle)
    connection.call("session.close", **handle)
    handle["writer"] = connection.call("session.open", id=handle["id"], access="write")["writer"]
    wrong = {"events": CHUNKS, "expectedSeq": 99}
    assert connection.refusal("session.append", **old, **wrong).kind == "WRITER_LOST"
    assert connection.refusal("session.append", **handle, **wrong).kind == "RECOVERY_REQUIRED"
    assert connection.refusal("checkpoint.request", **handle).kind == "RECOVERY_REQUIRED"
    assert connection.refusal("checkpoint.tool", **handle, **turns.tool("x")).kind == (
        "RECOVERY_REQUIRED"
    )


def test_a_flush_without_anything_new_leaves_the_log_as_it_is(
    connection: Connection, handle: dict[str, Any]
) -> None:
    for _ in range(3):
        assert connection.call("session.flush", **handle) == {"nextSeq": 4, "durableSeq": 4}
    assert connection.call("session.append", **handle, events=[])["nextSeq"] == 4


# ---------------------------------------------------------------------- the end of the seed


def test_a_session_that_is_opened_again_gets_its_end_seed_with_the_first_event(
    connection: Connection, fresh_id: str
) -> None:
    next_seq = turns.write_session(connection, fresh_id)
    handle = {"id": fresh_id}
    for _ in range(3):  # opening, flushing and closing alone do not grow it
        opened = connection.call("session.open", id=fresh_id, access="write")
        handle["writer"] = opened["writer"]
        assert opened["session"]["nextSeq"] == next_seq + 1
        assert opened["recovery"] is None
        assert connection.call("session.flush", **handle)["nextSeq"] == next_seq + 1
        assert connection.call("session.recover", **handle) == {
            "committed": True,
            "repairs": [],
            "closers": [],
            "nextSeq": next_seq + 1,
        }
        connection.call("session.close", **handle)
        assert len(read_all(connection, fresh_id)) == next_seq
    handle["writer"] = connection.call("session.open", id=fresh_id, access="write")["writer"]
    reserved = connection.refusal(
        "session.append", **handle, events=[events.turn_start(2)], expectedSeq=next_seq
    )
    assert (reserved.kind, reserved.facts["expected"]) == ("SEQ_CONFLICT", next_seq + 1)
    begun = connection.call(
        "session.append", **handle, events=[events.turn_start(2)], expectedSeq=next_seq + 1
    )
    assert (begun["firstSeq"], begun["nextSeq"]) == (next_seq + 1, next_seq + 2)
    again = connection.call(
        "session.append", **handle, events=[events.turn_start(2)], expectedSeq=next_seq + 1
    )
    assert again["duplicate"] is True
    connection.call("session.flush", **handle)
    kinds = turns.types(read_all(connection, fresh_id))
    assert kinds[next_seq:] == ["session/end-seed", "turn/start"]


def test_a_log_that_ends_with_an_end_seed_gets_no_second_one(
    connection: Connection, fresh_id: str
) -> None:
    next_seq = turns.write_session(connection, fresh_id)
    child = f"{fresh_id} child"
    forked = connection.call("session.fork", id=fresh_id, newId=child)["session"]
    assert forked["writer"] is None
    assert turns.types(read_all(connection, child))[-1] == "session/end-seed"
    opened = connection.call("session.open", id=child, access="write")
    assert opened["session"]["nextSeq"] == next_seq + 1 == forked["nextSeq"]
    handle = {"id": child, "writer": opened["writer"]}
    connection.call("session.append", **handle, events=[events.turn_start(2)])
    kinds = turns.types(read_all(connection, child))
    assert kinds.count("session/end-seed") == 1


def test_a_session_without_events_gets_no_end_seed(
    connection: Connection, shared_daemon: DaemonProcess, fresh_id: str
) -> None:
    writer = connection.call("session.create", id=fresh_id)["writer"]
    handle = {"id": fresh_id, "writer": writer}
    assert connection.call("session.flush", **handle) == {"nextSeq": 0, "durableSeq": 0}
    connection.call("session.close", **handle)
    opened = connection.call("session.open", id=fresh_id, access="write")
    assert opened["session"]["nextSeq"] == 0
    handle["writer"] = opened["writer"]
    asked = connection.call("checkpoint.request", **handle, events=turns.opening(), expectedSeq=0)
    assert asked["nextSeq"] == 4


def test_a_session_that_was_closed_before_its_first_event_never_existed(
    connection: Connection, fresh_id: str
) -> None:
    writer = connection.call("session.create", id=fresh_id)["writer"]
    followed = connection.call("session.subscribe", id=fresh_id, fromSeq=0)["subscriptionId"]
    connection.call("session.close", id=fresh_id, writer=writer)
    told = connection.notification()
    assert told["method"] == "session.ended"
    assert told["params"]["subscriptionId"] == followed
    assert connection.refusal("session.stat", id=fresh_id).kind == "SESSION_NOT_FOUND"
    connection.call("session.create", id=fresh_id)


def test_a_recovery_without_unanswered_calls_says_that_the_next_step_is_a_request(
    connection: Connection, fresh_id: str
) -> None:
    handle = turns.begin_turn(connection, fresh_id, "x")
    connection.call("checkpoint.tool", **handle, **turns.tool("x"))
    connection.call("session.append", **handle, events=[events.tool_result("x")])
    connection.call("session.close", **handle)
    opened = connection.call("session.open", id=fresh_id, access="write")
    assert opened["recovery"]["repairs"] == []
    assert [event["type"] for event in opened["recovery"]["closers"]] == ["step/end", "turn/end"]
    assert opened["session"]["openStep"] == 1
    history = connection.call("session.messages", id=fresh_id)
    assert history["recovery"] == opened["recovery"]
    assert [message["role"] for message in history["messages"]] == ["user", "assistant", "user"]
