"""Events that would make a log unloadable or ambiguous: refused by index and rule, their whole call with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support import events
from support.rpc import CallRefusedError
from wire.shapes import OPENING, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.rpc import Connection

    FreshId = Callable[[], str]

GOOD = json.dumps(events.title())

# The data of a known log-only event, and the rule that refuses it.
BAD_JSON = [
    ('{"text":"\\ud800"}', "lone-surrogate"),
    ('{"text":"\\udc00\\ud800"}', "lone-surrogate"),
    ('{"\\ud800":1}', "lone-surrogate"),
    ('{"text":1,"text":2}', "duplicate-key"),
    ('{"text":1,"t\\u0065xt":1}', "duplicate-key"),
    ('{"text":[{"a":{"b":1,"b":1}}]}', "duplicate-key"),
    ('{"text":-0}', "negative-zero"),
    ('{"text":-0.0}', "negative-zero"),
    ('{"text":[-0e1]}', "negative-zero"),
    ('{"text":-1e-999}', "negative-zero"),
    ('{"text":1e400}', "number-range"),
    ('{"text":-1e400}', "number-range"),
    ('{"text":9007199254740992}', "number-range"),
    ('{"text":-9007199254740993}', "number-range"),
    ('{"text":' + "1" * 5000 + "}", "number-range"),
    ('{"text":' + "[" * 70 + "]" * 70 + "}", "too-deep"),
]

GOOD_JSON = [
    '{"text":"\\ud83d\\ude00"}',
    '{"text":9007199254740991}',
    '{"text":1e308}',
    '{"text":5e-324}',
    '{"text":0.1}',
    '{"text":1e21}',
    '{"text":9007199254740993.0}',
    '{"text":-1e16}',
    '{"text":{"10":1,"2":2}}',
    '{"text":"\\u0000\\u007f\\u2028"}',
    "null",
    "[]",
    '"text"',
    "0",
]


def append_line(recorder: Recorder, *texts: str) -> bytes:
    return (
        f'{{"jsonrpc":"2.0","id":1,"method":"session.append","params":{{"id":"{recorder.id}",'
        f'"writer":"{recorder.writer}","expectedSeq":0,"events":[{",".join(texts)}]}}}}'
    ).encode()


def log_only(data: str) -> str:
    return f'{{"type":"feedback/record","data":{data}}}'


@pytest.mark.parametrize(("data", "rule"), BAD_JSON)
def test_what_a_log_cannot_hold_is_refused_with_its_place(
    connection: Connection, fresh_id: FreshId, data: str, rule: str
) -> None:
    recorder = Recorder(connection, fresh_id())
    for index, texts in ((0, [log_only(data)]), (2, [GOOD, GOOD, log_only(data), GOOD])):
        connection.send_line(append_line(recorder, *texts))
        error = connection.read_message()["error"]
        assert error["code"] == 1003
        found = error["data"]
        assert (found["kind"], found["retryable"]) == ("EVENT_INVALID", False)
        assert (found["index"], found["rule"]) == (index, rule)
        assert f"event {index}" in error["message"]
        assert recorder.length() == 0


@pytest.mark.parametrize("data", GOOD_JSON)
def test_what_a_log_can_hold_comes_back_as_it_was(
    connection: Connection, fresh_id: FreshId, data: str
) -> None:
    recorder = Recorder(connection, fresh_id())
    connection.send_line(append_line(recorder, log_only(data)))
    assert connection.read_message()["result"]["nextSeq"] == 1
    recorder.call("session.flush")
    (event,) = connection.call("session.read", id=recorder.id)["events"]
    sent = json.loads(data)
    assert event["data"] == sent
    assert json.dumps(event["data"]) == json.dumps(sent)
    connection.send_line(append_line(recorder, log_only(data)))
    assert connection.read_message()["result"]["duplicate"] is True


def test_null_is_taken_where_the_schema_says_so_and_nowhere_else(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(events.turn_start())
    schema = connection.call("rpc.discover")["components"]["schemas"]["EventIn"]
    takes_null = {
        key
        for key, each in schema["properties"].items()
        if not each.keys() & {"type", "anyOf", "enum"} or {"type": "null"} in each.get("anyOf", ())
    }
    assert takes_null == {"data"}
    assert recorder.append({"type": "feedback/record", "data": None})["nextSeq"] == 2
    for key in schema["properties"].keys() - takes_null:
        for event in (events.user(), {"type": "plugin/any", "data": None, "ignorable": True}):
            refused = recorder.refusal("session.append", events=[event | {key: None}])
            assert refused.kind == "EVENT_INVALID", key
            assert "default" not in schema["properties"][key]
    assert recorder.length() == 2


def with_marks(**marks: Any) -> dict[str, Any]:
    return {**events.user(), **marks}


def data_of(event: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {**event, "data": {**event["data"], **changed}}


BAD_EVENTS: list[tuple[Any, str]] = [
    (7, "invalid-envelope"),
    (None, "invalid-envelope"),
    ([], "invalid-envelope"),
    ({}, "invalid-envelope"),
    ({"data": {}}, "invalid-envelope"),
    ({"type": "feedback/record"}, "invalid-envelope"),
    ({"type": 7, "data": {}}, "invalid-envelope"),
    ({"type": "", "data": {}}, "invalid-envelope"),
    ({"type": "x" * 1_000_000, "data": {}, "ignorable": True}, "invalid-envelope"),
    ({**events.title(), "extra": 1}, "invalid-envelope"),
    ({**events.title(), "time": "now"}, "invalid-envelope"),
    ({**events.title(), "time": -1}, "invalid-envelope"),
    ({**events.title(), "time": 1.5}, "invalid-envelope"),
    ({**events.title(), "time": 1e18}, "invalid-envelope"),
    ({**events.title(), "time": True}, "invalid-envelope"),
    ({**events.title(), "seq": "0"}, "invalid-envelope"),
    ({**events.title(), "ignorable": False}, "invalid-envelope"),
    ({**events.title(), "ignorable": 1}, "invalid-envelope"),
    ({"type": "plugin/unknown", "data": {}}, "unknown-event-type"),
    ({"type": "session", "data": {}, "ignorable": True}, "reserved-type"),
    ({"type": "text-chunks", "data": {}, "ignorable": True}, "reserved-type"),
    ({"type": "session/end-seed", "data": {}}, "end-seed"),
    ({**events.title(), "surfaceOp": "append"}, "surface-op-on-log-only"),
    ({**events.title(), "sourceEventSeqs": [0]}, "sources-on-log-only"),
    (with_marks(surfaceOp="prepend"), "surface-op-invalid"),
    (with_marks(surfaceOp={"op": "replace", "start": 2}), "surface-op-invalid-replace"),
    (with_marks(surfaceOp={"op": "replace", "start": 9, "end": 9}), "replace-start-missing"),
    (with_marks(sourceEventSeqs=[]), "sources-empty"),
    (with_marks(sourceEventSeqs=[2, 2]), "sources-duplicate"),
    (with_marks(sourceEventSeqs=[99]), "sources-not-earlier"),
    (with_marks(sourceEventSeqs=[-1]), "sources-not-counts"),
    (with_marks(sourceEventSeqs="2"), "sources-not-array"),
    (data_of(events.user(), id=""), "message-unidentified"),
    (data_of(events.user(), source={}), "message-source"),
    (data_of(events.user(), content="text"), "message-content"),
    ({"type": "request/header", "data": {"header": {}}}, "request-header-lacks-provider-model"),
    ({"type": "request/header-delta", "data": {}}, "retired-header-delta"),
    ({"type": "mode/set", "data": {}}, "retired-mode-set"),
    (events.turn_start(2), "turn-open"),
    (events.turn_start(1), "turn-open"),
    (events.step_start(2), "step-open"),
    (events.step_end(2), "wrong-step"),
    (events.chunk(step=2), "wrong-step"),
    (events.chunk(turn=2), "wrong-turn"),
    (events.turn_end(), "step-open"),
    (events.tool_call("a"), "call-not-asked"),
    (events.tool_result("a"), "call-not-asked"),
    ({"type": "turn/start", "data": 7}, "data-not-object"),
]


@pytest.mark.parametrize(
    ("event", "rule"), BAD_EVENTS, ids=[f"{n}-{rule}" for n, (_, rule) in enumerate(BAD_EVENTS)]
)
def test_an_event_that_may_not_come_next_is_refused_and_its_call_with_it(
    connection: Connection, fresh_id: FreshId, event: Any, rule: str
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(*OPENING)
    for method in ("session.append", "checkpoint.request", "checkpoint.postStep"):
        refused = recorder.refusal(method, events=[events.chunk(), event], expectedSeq=4)
        assert refused.kind == "EVENT_INVALID"
        assert (refused.facts["index"], refused.facts["rule"]) == (1, rule)
        assert len(refused.error["message"]) < 500
    assert recorder.length() == 4
    assert recorder.append(events.chunk(), expectedSeq=4)["nextSeq"] == 5


def test_calls_are_answered_once_and_only_when_started(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.ask("a", "b")
    assert rule_of(recorder, events.tool_result("a")) == "call-not-started"
    assert rule_of(recorder, events.user("between")) == "message-before-result"
    assert rule_of(recorder, events.step_end()) == "call-unanswered"
    recorder.start("b")
    recorder.start("a")
    assert rule_of(recorder, events.tool_call("a")) == "call-started"
    recorder.append(events.tool_result("a"))
    assert rule_of(recorder, events.tool_result("a")) == "call-answered"
    assert rule_of(recorder, events.step_end()) == "call-unanswered"
    recorder.append(events.tool_result("b"), events.step_end())


def rule_of(recorder: Recorder, event: Any) -> str:
    refused = recorder.refusal("session.append", events=[event])
    assert refused.kind == "EVENT_INVALID"
    return str(refused.facts["rule"])


def test_a_tool_checkpoint_tells_where_the_call_stands(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.ask("a")
    asked = {"callId": "a", "name": "t", "arguments": '{"for":"a"}'}
    for changed, rule in (
        ({"callId": "z"}, "call-not-asked"),
        ({"name": "other"}, "call-differs"),
        ({"arguments": '{"for": "a"}'}, "call-differs"),
        ({"parentCallId": "a"}, "call-not-started"),
    ):
        refused = recorder.refusal("checkpoint.tool", **{**asked, **changed})
        assert (refused.kind, refused.facts["rule"]) == ("EVENT_INVALID", rule)
        assert (refused.facts["callSeq"], refused.facts["resultSeq"]) == (None, None)
    assert recorder.start("a", expectedSeq=5)["callSeq"] == 5
    for params in ({}, {"expectedSeq": 6}, {"expectedSeq": 4}):
        refused = recorder.refusal("checkpoint.tool", **asked, **params)
        assert (refused.kind, refused.facts["callSeq"]) == ("EVENT_INVALID", 5)
        assert refused.facts["resultSeq"] is None
    again = recorder.start("a", expectedSeq=5)
    assert (again["decision"], again["callSeq"], again["duplicate"]) == ("DISPATCH", 5, True)
    recorder.append(events.tool_result("a"))
    refused = recorder.refusal("checkpoint.tool", **asked, expectedSeq=5)
    assert (refused.kind, refused.facts["callSeq"]) == ("EVENT_INVALID", 5)
    assert refused.facts["resultSeq"] == 6
    assert recorder.length() == 7


@pytest.mark.parametrize(
    ("method", "appended", "rule"),
    [
        ("checkpoint.request", [], "no-open-step"),
        ("checkpoint.request", OPENING[:2], "no-request-header"),
        ("checkpoint.postStep", OPENING, "step-open"),
        ("checkpoint.turnEnd", [], "no-open-turn"),
        ("checkpoint.turnEnd", OPENING, "step-open"),
    ],
)
def test_a_checkpoint_whose_conditions_do_not_hold_admits_nothing(
    connection: Connection, fresh_id: FreshId, method: str, appended: list[Any], rule: str
) -> None:
    recorder = Recorder(connection, fresh_id())
    more = {"reason": {"kind": "completed"}} if method == "checkpoint.turnEnd" else {}
    refused = recorder.refusal(method, events=appended, **more)
    assert (refused.kind, refused.facts["rule"]) == ("EVENT_INVALID", rule)
    assert recorder.length() == 0


@pytest.mark.parametrize(
    ("reason", "rule"),
    [
        ({"kind": "interrupted"}, "closer"),
        ({}, "turn-reason"),
        ({"kind": ""}, "turn-reason"),
        ({"kind": "aborted"}, "turn-reason"),
        ({"kind": "error", "error": {"message": "m"}}, "turn-reason"),
    ],
)
def test_a_reason_of_the_wrong_shape_ends_no_turn(
    connection: Connection, fresh_id: FreshId, reason: dict[str, Any], rule: str
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(events.turn_start())
    refused = recorder.refusal("checkpoint.turnEnd", reason=reason)
    assert (refused.kind, refused.facts["rule"]) == ("EVENT_INVALID", rule)
    for fine in (
        {"kind": "aborted", "reason": {"kind": "user"}},
        {"kind": "error", "error": {"message": "m", "code": "c"}},
        {"kind": "max-tokens"},
        {"kind": "plugin-made", "more": [1]},
    ):
        recorder.call("checkpoint.turnEnd", reason=fine)
        recorder.append(events.turn_start(recorder.length() // 2 + 1))


def test_unknown_types_are_kept_where_they_are_ignorable(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    event = {"type": "plugin/thing", "time": 5, "data": {"x": 1}, "ignorable": True}
    recorder.append(event)
    (stored,) = connection.call("session.read", id=recorder.id)["events"]
    assert stored == {**event, "seq": 0}
    assert list(stored) == ["type", "seq", "time", "data", "ignorable"]


def test_the_same_events_in_other_words_are_a_duplicate(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(*OPENING, expectedSeq=0)
    words = [
        {"data": {"turn": 1.0}, "type": "turn/start", "time": 9},
        {"data": {"step": 1, "turn": 1}, "type": "step/start", "seq": 1},
        {**events.user(), "surfaceOp": "append"},
        events.request_header(),
    ]
    assert recorder.append(*words, expectedSeq=0)["duplicate"] is True
    with pytest.raises(CallRefusedError, match="SEQ_CONFLICT"):
        recorder.append(data_of(events.turn_start(), extra=None), expectedSeq=0)
