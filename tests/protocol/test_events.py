from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_protocol.errors import FormatUnsupportedError
from dsh_protocol.events import (
    KNOWN_TYPES,
    SURFACE_TYPES,
    Header,
    HeaderDefectError,
    check_header,
    defect_text,
    envelope_defect,
    header_to_wire,
    is_count,
    message_defect,
    retired_shape,
    surface_metadata_defect,
)

STORED = {"type": "session", "version": 0, "id": "s1", "createdAt": 1000, "delegationDepth": 0}
FULL = STORED | {
    "cwd": "/work",
    "parentSession": "s0",
    "seedLength": 3,
    "origin": "subagent",
    "delegationDepth": 2,
    "agentPreset": "p",
}
EVENT: dict[str, Any] = {"type": "session/title", "seq": 0, "time": 1, "data": {}}
USER: dict[str, Any] = {"id": "u", "role": "user", "content": [], "source": {"kind": "user"}}
MODEL = {"kind": "model", "provider": "p", "model": "m"}
ASSISTANT: dict[str, Any] = {"id": "a", "role": "assistant", "content": [], "source": MODEL}
BLOCK: dict[str, Any] = {"type": "tool-result", "toolCallId": "c", "content": []}
RESULT: dict[str, Any] = {
    "id": "r",
    "role": "user",
    "content": [BLOCK],
    "source": {"kind": "tool", "callId": "c"},
}
CONFIG = {"provider": "p", "model": "m"}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


# ---------------------------------------------------------------- header


def test_a_header_goes_out_in_stored_order_without_what_is_absent() -> None:
    assert list(header_to_wire(check_header(STORED))) == [
        "version",
        "id",
        "createdAt",
        "delegationDepth",
    ]
    assert list(header_to_wire(check_header(FULL))) == [
        *("version", "id", "createdAt", "cwd", "parentSession", "seedLength", "origin"),
        *("delegationDepth", "agentPreset"),
    ]


def test_a_header_is_the_same_as_a_struct_on_the_wire() -> None:
    for stored in (STORED, FULL):
        header = check_header(stored)
        assert msgspec.json.decode(msgspec.json.encode(header)) == header_to_wire(header)
        assert msgspec.convert(header_to_wire(header), Header) == header


def test_keys_that_no_header_has_are_dropped_and_integral_floats_are_counts() -> None:
    header = check_header(FULL | {"isSeeded": True, "createdAt": 1000.0, "seedLength": 3.0})
    assert header == check_header(FULL)
    assert isinstance(header.created_at, int)


@pytest.mark.parametrize("version", [1, 2, -1, 0.5, 10**30])
def test_another_version_is_told_before_anything_else_is_looked_at(version: float) -> None:
    with pytest.raises(FormatUnsupportedError) as caught:
        check_header({"version": version})
    assert caught.value.facts == {"version": version}
    assert ("newer program" in caught.value.message) == (version > 0)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"type": "Session"}, "not-a-session-header"),
        ({"version": "0"}, "not-a-session-header"),
        ({"version": False}, "not-a-session-header"),
        ({"id": 1}, "not-a-session-header"),
        ({"createdAt": -1}, "not-a-session-header"),
        ({"createdAt": -0.0}, "not-a-session-header"),
        ({"createdAt": True}, "not-a-session-header"),
        ({"delegationDepth": None}, "not-a-session-header"),
        ({"delegationDepth": 1.5}, "not-a-session-header"),
        ({"origin": None}, "not-a-session-header"),
        ({"origin": "user"}, "not-a-session-header"),
        ({"agentPreset": None}, "not-a-session-header"),
        ({"sandboxMode": None}, "header-retired-fields"),
        ({"approvalPolicy": "x"}, "header-retired-fields"),
        ({"cwd": None}, "header-cwd"),
        ({"cwd": "work"}, "header-cwd"),
        ({"cwd": ""}, "header-cwd"),
        ({"parentSession": 1}, "header-parent-session"),
        ({"seedLength": None}, "header-seed-length"),
        ({"seedLength": -1}, "header-seed-length"),
    ],
)
def test_what_is_no_header_is_refused_by_name(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(HeaderDefectError) as caught:
        check_header(STORED | change)
    assert caught.value.rule == rule
    assert str(caught.value) == defect_text(rule) != rule


@pytest.mark.parametrize("key", ["type", "version", "id", "createdAt", "delegationDepth"])
def test_a_header_without_a_required_key_is_none(key: str) -> None:
    with pytest.raises(HeaderDefectError, match="not a session header"):
        check_header({name: each for name, each in STORED.items() if name != key})


@given(json_values)
def test_whatever_the_first_line_holds_it_is_a_header_or_refused(value: Any) -> None:
    with pytest.raises((HeaderDefectError, FormatUnsupportedError)):
        check_header(value)


# ---------------------------------------------------------------- vocabulary and envelope


def test_the_vocabulary_has_48_types_of_which_three_are_surface() -> None:
    assert len(KNOWN_TYPES) == 48
    assert {"user/message", "assistant/message", "tool/result"} == SURFACE_TYPES < KNOWN_TYPES


@pytest.mark.parametrize("value", [0, 1, 2**53 - 1, 0.0, 2.0])
def test_whole_numbers_however_spelled_are_counts(value: float) -> None:
    assert is_count(value)


@pytest.mark.parametrize(
    "value", [-1, 2**53, -0.0, 0.5, 1e300, float("inf"), float("nan"), True, None, "1", []]
)
def test_other_values_are_not(value: Any) -> None:
    assert not is_count(value)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"data": None},
        {"time": -5},
        {"seq": 3.0},
        {"ignorable": True},
        {"surfaceOp": 1, "sourceEventSeqs": 2},
    ],
)
def test_an_envelope_is_judged_by_its_keys_and_their_types_alone(change: dict[str, Any]) -> None:
    assert envelope_defect(EVENT | change) is None


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"x": 1},
            {"type": 7},
            {"type": None},
            {"seq": -1},
            {"seq": "0"},
            {"seq": True},
            {"seq": 2**53},
        ),
        *({"time": 1.5}, {"time": "1"}, {"time": None}, {"time": 2**53}, {"time": float("nan")}),
        *({"ignorable": False}, {"ignorable": None}, {"ignorable": 1}),
    ],
)
def test_a_broken_envelope_is_told(change: dict[str, Any]) -> None:
    assert envelope_defect(EVENT | change) == "invalid-envelope"


@pytest.mark.parametrize("key", ["type", "seq", "time", "data"])
def test_an_envelope_without_a_required_key_is_broken(key: str) -> None:
    assert (
        envelope_defect({name: each for name, each in EVENT.items() if name != key})
        == "invalid-envelope"
    )


@given(json_values)
def test_whatever_an_event_is_the_checks_answer(value: Any) -> None:
    assert envelope_defect(value) == "invalid-envelope"
    for kind in (*SURFACE_TYPES, "turn/start", "turn/end", "request/header", value):
        event = {"type": kind, "data": value, "surfaceOp": value, "sourceEventSeqs": value}
        for check in (envelope_defect, surface_metadata_defect, message_defect, retired_shape):
            rule = check(event)
            assert rule is None or defect_text(rule) != rule


# ---------------------------------------------------------------- surface

REPLACE = {"op": "replace", "start": 0, "end": 1}


SURFACE_CASES: list[tuple[dict[str, Any], str | None]] = [
    ({"type": "user/message", "surfaceOp": "append"}, None),
    ({"type": "user/message", "surfaceOp": REPLACE, "sourceEventSeqs": [0, 1], "seq": 2}, None),
    ({"type": "assistant/message", "surfaceOp": "append", "sourceEventSeqs": []}, None),
    ({"type": "turn/start"}, None),
    ({"type": "user/message"}, "surface-op-invalid"),
    ({"type": "user/message", "surfaceOp": "Append"}, "surface-op-invalid"),
    ({"type": "user/message", "surfaceOp": [REPLACE]}, "surface-op-invalid"),
    ({"type": "user/message", "surfaceOp": REPLACE | {"x": 1}}, "surface-op-invalid-replace"),
    (
        {"type": "user/message", "surfaceOp": REPLACE | {"op": "append"}},
        "surface-op-invalid-replace",
    ),
    (
        {"type": "user/message", "surfaceOp": REPLACE | {"start": -1}},
        "surface-op-invalid-replace",
    ),
    ({"type": "user/message", "surfaceOp": {}}, "surface-op-invalid-replace"),
    ({"type": "turn/start", "surfaceOp": None}, "surface-op-on-log-only"),
    ({"type": "future/x", "surfaceOp": "append"}, "surface-op-on-log-only"),
    ({"type": "turn/start", "sourceEventSeqs": []}, "sources-on-log-only"),
    (
        {"type": "user/message", "surfaceOp": "append", "sourceEventSeqs": None},
        "sources-not-array",
    ),
    (
        {"type": "user/message", "surfaceOp": "append", "sourceEventSeqs": [True]},
        "sources-not-counts",
    ),
    (
        {"type": "user/message", "surfaceOp": "append", "sourceEventSeqs": [[]]},
        "sources-not-counts",
    ),
    ({"type": "tool/result", "surfaceOp": "append", "sourceEventSeqs": []}, "sources-empty"),
    (
        {"type": "user/message", "surfaceOp": "append", "sourceEventSeqs": [0, 0.0]},
        "sources-duplicate",
    ),
    (
        {"type": "user/message", "surfaceOp": "append", "sourceEventSeqs": [4], "seq": 4},
        "sources-not-earlier",
    ),
]


@pytest.mark.parametrize(("event", "rule"), SURFACE_CASES)
def test_surface_metadata_has_its_rules(event: dict[str, Any], rule: str | None) -> None:
    assert surface_metadata_defect(event) == rule


# ---------------------------------------------------------------- messages, headers, turn ends


DATA_CASES: list[tuple[str, Any, str | None]] = [
    ("user/message", USER, None),
    ("user/message", USER | {"id": ""}, "message-unidentified"),
    ("user/message", USER | {"role": "assistant"}, "message-unidentified"),
    ("user/message", USER | {"source": {"kind": 1}}, "message-source"),
    ("user/message", USER | {"content": None}, "message-content"),
    ("assistant/message", {"message": ASSISTANT}, None),
    ("assistant/message", ASSISTANT, "message-unidentified"),
    (
        "assistant/message",
        {"message": ASSISTANT | {"source": {"kind": "user"}}},
        "message-model-source",
    ),
    (
        "assistant/message",
        {"message": ASSISTANT | {"source": MODEL | {"model": ""}}},
        "message-model-source",
    ),
    ("tool/result", {"message": RESULT}, None),
    ("tool/result", {"message": RESULT | {"source": {"kind": "user"}}}, "message-tool-source"),
    ("tool/result", {"message": RESULT | {"content": []}}, "message-tool-block"),
    ("tool/result", {"message": RESULT | {"content": [BLOCK, BLOCK]}}, "message-tool-block"),
    (
        "tool/result",
        {"message": RESULT | {"content": [BLOCK | {"content": "x"}]}},
        "message-tool-block",
    ),
    (
        "tool/result",
        {"message": RESULT | {"content": [BLOCK | {"toolCallId": "d"}]}},
        "message-call-id-mismatch",
    ),
    ("request/header", {"header": {"config": CONFIG}}, None),
    (
        "request/header",
        {"header": {"config": {"provider": "p"}}},
        "request-header-lacks-provider-model",
    ),
    ("request/header", {}, "request-header-lacks-provider-model"),
    (
        "request/header",
        {"header": {"config": CONFIG | {"reasoningEffort": 1}}},
        "invalid-reasoning-effort",
    ),
    ("turn/end", {"turn": 1, "reason": {"kind": "completed"}}, None),
    ("turn/end", {"turn": 1, "reason": {"kind": "plugin/why", "x": 1}}, None),
    ("turn/end", {"turn": 1, "reason": {"kind": "aborted", "reason": {"kind": "user"}}}, None),
    (
        "turn/end",
        {"turn": 1, "reason": {"kind": "error", "error": {"message": "m", "code": "C"}}},
        None,
    ),
    ("turn/end", None, None),  # what the DeepSeek Harness takes too
    ("turn/end", {"turn": 0, "reason": {"kind": "completed"}}, "malformed-turn-end"),
    ("turn/end", {"turn": 1}, "malformed-turn-end"),
    ("turn/end", {"turn": 1, "reason": {"kind": "completed"}, "x": 1}, "malformed-turn-end"),
    (
        "turn/end",
        {"turn": 1, "reason": {"kind": "aborted", "reason": "user"}},
        "malformed-turn-end",
    ),
    ("turn/end", [], "malformed-turn-end"),
    ("turn/start", None, None),
]


@pytest.mark.parametrize(("kind", "data", "rule"), DATA_CASES)
def test_data_has_its_rules_where_the_format_has_one(
    kind: str, data: Any, rule: str | None
) -> None:
    assert message_defect({"type": kind, "data": data}) == rule


@pytest.mark.parametrize(
    ("marks", "config", "good"),
    [
        ({}, CONFIG, True),
        ({"maxTokens": True}, CONFIG | {"maxTokens": 1}, True),
        ({"maxTokens": True}, CONFIG, False),
        ({"maxTokens": False}, CONFIG | {"maxTokens": 1}, False),
        ({"temperature": True}, CONFIG | {"temperature": 1}, False),
        (None, CONFIG, False),
    ],
)
def test_adapter_defaults_mark_two_fields_that_are_there(
    marks: Any, config: Any, *, good: bool
) -> None:
    event = {
        "type": "request/header",
        "data": {"header": {"config": config, "adapterDefaults": marks}},
    }
    assert message_defect(event) == (None if good else "invalid-adapter-defaults")


RETIRED_CASES: list[tuple[str, Any, str | None]] = [
    ("request/header-delta", None, "retired-header-delta"),
    ("mode/set", {}, "retired-mode-set"),
    ("steering/message", {}, "steering-message"),
    ("request/header", {"reason": "fallback"}, "retired-header-fallback"),
    ("turn/start", {"turn": 1, "trigger": None}, "turn-start-trigger"),
    ("turn/end", {"turn": 1, "reason": {"kind": "aborted"}}, "turn-end-aborted-bare"),
    ("turn/end", {"turn": 1, "reason": {"kind": "disposed"}}, "turn-end-disposed"),
    (
        "turn/end",
        {"turn": 1, "reason": {"kind": "error", "step": 1, "message": "m"}},
        "turn-end-error",
    ),
    ("user/message", {"content": [], "source": {}}, "unidentified-user"),
    ("assistant/message", {"content": [], "provenance": {}}, "unidentified-assistant"),
    ("tool/result", {"callId": "c", "content": [], "isError": False}, "flat-tool-result"),
    ("turn/start", {"turn": 1}, None),
    ("user/message", USER, None),
    ("turn/end", {"turn": 1, "reason": {"kind": "completed"}}, None),
]


@pytest.mark.parametrize(("kind", "data", "name"), RETIRED_CASES)
def test_retired_shapes_have_names(kind: str, data: Any, name: str | None) -> None:
    assert retired_shape({"type": kind, "data": data}) == name


def test_a_rule_of_somebody_else_is_its_own_text() -> None:
    assert defect_text("some-other-rule") == "some-other-rule"
