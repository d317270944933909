from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dsh_protocol.events import Header
from dsh_protocol.ids import idempotency_key
from dshd.sessions.closers import (
    NOT_STARTED_TEXT,
    OUTCOME_UNKNOWN,
    OUTCOME_UNKNOWN_TEXT,
    closers,
    committed_repairs,
    repairs,
)
from dshd.sessions.fold import Fold
from dshd.storage.jsonl.vocabulary import stored_defect
from support.events import (
    END_SEED,
    assistant,
    step_end,
    step_start,
    stored,
    title,
    tool_call,
    tool_result,
    turn_end,
    turn_start,
    user,
)
from support.folds import folded
from support.vectors import vectors

HEADER = Header(id="s", created_at=1_700_000_000_000)
OPEN = (turn_start(), step_start(), user())


def without_text(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for event in events:
        if event["type"] == "tool/result":
            event["data"]["message"]["content"][0]["content"][0]["text"] = "<TEXT>"
    return events


def told(closer: dict[str, Any]) -> str:
    """A closer in short, as the table of differences has it."""
    data = closer["data"]
    if closer["type"] == "tool/result":
        cited = closer.get("sourceEventSeqs", [])
        return f"tool/result {data['error']['code']} {cited}"
    return f"turn/end {data['turn']}" if closer["type"] == "turn/end" else str(closer["type"])


def differences() -> dict[str, list[str]]:
    table = Path(__file__).with_name("crash_differences.toml").read_text("utf-8")
    return {
        name: closing
        for row in tomllib.loads(table)["difference"]
        for name, closing in row["closers"].items()
    }


def test_closers_of_every_recorded_crash_are_the_recorded_ones_or_those_of_the_table() -> None:
    judged, better = 0, differences()
    for path in sorted((vectors() / "crash").glob("*.json")):
        table = json.loads(path.read_bytes())
        for case in table["cases"]:
            events = case["events"] if "events" in case else table["events"][: case["cut"]]
            closing = without_text(closers(folded(events)))
            ours = better.pop(case["name"], None)
            if ours is None:
                assert json.dumps(closing) == json.dumps(case["closers"]), case["name"]
            else:
                assert case["upstream_defect"], f"{case['name']} is not open"
                assert closing != case["closers"], f"{case['name']} is as recorded"
                assert [told(closer) for closer in closing] == ours, case["name"]
            assert not any(map(stored_defect, closing)), case["name"]
            judged += 1
    assert judged > 700
    assert not better, "no such case"


@pytest.mark.parametrize("number", [0, 1.5, "x", -1, True])
def test_a_turn_of_an_odd_number_is_closed_under_one_that_every_reader_takes(number: Any) -> None:
    begun = [turn_start(3), turn_end(3), turn_start(number), step_start(1, number)]
    last = 1 if number == 0 else 3  # nought is a count, so it is the last number there was
    for log, closed_as in ((begun, last), (begun[2:], 1)):
        step, turn = closers(folded(stored(log)))
        assert step["data"] == {"turn": closed_as, "step": 1}
        assert turn["data"] == {"turn": closed_as, "reason": {"kind": "interrupted"}}


def test_a_call_without_an_id_gets_no_result_and_no_repair() -> None:
    fold = folded(stored([*OPEN, assistant("", "b")]))
    assert [event["type"] for event in closers(fold)] == ["tool/result", "step/end", "turn/end"]
    assert [repair["callId"] for repair in repairs(fold, HEADER)] == ["b"]


def test_a_closed_log_needs_no_closers() -> None:
    assert closers(Fold()) == []
    assert closers(folded(stored([*OPEN, step_end(), turn_end(), title()]))) == []


def test_closers_leave_the_fold_as_it_was_and_close_it_when_applied() -> None:
    fold = folded(stored([*OPEN, assistant("a", "b"), tool_call("b")]))
    closing = closers(fold)
    assert closing == closers(fold)
    for event in closing:
        fold.apply(event)
    assert (fold.open_turn, fold.open_step, fold.pending) == (None, None, {})
    assert closers(fold) == []


def test_the_texts_say_what_may_be_run_again() -> None:
    fold = folded(stored([*OPEN, assistant("a", "b"), tool_call("b")]))
    not_started, unknown, *_ = closers(fold)
    texts = [
        event["data"]["message"]["content"][0]["content"][0]["text"]
        for event in (not_started, unknown)
    ]
    assert texts == [NOT_STARTED_TEXT, OUTCOME_UNKNOWN_TEXT]
    assert "again if" in texts[0]
    for word in ("read-only", "idempotent", "ask the user"):
        assert word in texts[1]
        assert word not in texts[0]
    assert [event["data"]["error"] for event in (not_started, unknown)] == [
        {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"},
        {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"},
    ]


def test_repairs_tell_each_unanswered_call_in_transcript_order() -> None:
    events = [*OPEN, assistant("a", "b", "c"), tool_call("c"), tool_call("b"), tool_result("b")]
    found = repairs(folded(stored(events)), HEADER)
    assert [list(repair) for repair in found] == [
        [
            "callId",
            "name",
            "arguments",
            "turn",
            "step",
            "code",
            "callSeq",
            "idempotencyKey",
            "message",
        ]
    ] * 2
    assert found[0] == {
        "callId": "a",
        "name": "t",
        "arguments": '{"for":"a"}',
        "turn": 1,
        "step": 1,
        "code": "TOOL_NOT_STARTED",
        "callSeq": None,
        "idempotencyKey": None,
        "message": NOT_STARTED_TEXT,
    }
    assert found[1]["code"] == "TOOL_OUTCOME_UNKNOWN"
    assert found[1]["callSeq"] == 4
    assert found[1]["idempotencyKey"] == idempotency_key("s", HEADER.created_at, 4, "c")


@pytest.mark.parametrize("states", list(itertools.product("NSA", repeat=3)))
def test_three_parallel_calls_get_the_right_verdict_in_each_state(states: tuple[str, ...]) -> None:
    events = [*OPEN, assistant("a", "b", "c")]
    events += [tool_call(call) for call, state in zip("abc", states, strict=True) if state != "N"]
    events += [tool_result(call) for call, state in zip("abc", states, strict=True) if state == "A"]
    verdicts = {"N": "TOOL_NOT_STARTED", "S": "TOOL_OUTCOME_UNKNOWN"}
    expected = [
        (call, verdicts[state]) for call, state in zip("abc", states, strict=True) if state != "A"
    ]
    fold = folded(stored(events))
    assert [(repair["callId"], repair["code"]) for repair in repairs(fold, HEADER)] == expected
    codes = [event["data"]["error"]["code"] for event in closers(fold)[:-2]]
    assert codes == [code for _, code in expected]


@pytest.mark.parametrize(
    "began",
    [
        [assistant("a"), tool_call("a"), assistant("a")],
        [tool_call("a"), assistant("a")],
        [assistant("a"), tool_call("a"), assistant("a"), assistant("a")],
        [assistant("a"), tool_call("a"), step_end(), step_start(2), assistant("a", step=2)],
        [assistant("a"), tool_call("a"), step_start(2), assistant("a", step=2)],
        [assistant("a", "b"), tool_call("a"), tool_result("b"), assistant("a")],
    ],
)
def test_a_call_that_began_is_never_called_safe_whatever_an_odd_log_says_after(
    began: list[dict[str, Any]],
) -> None:
    log = stored([*OPEN, *began])
    call_seq = next(event["seq"] for event in log if event["type"] == "tool/call")
    fold = folded(log)
    preview = repairs(fold, HEADER)
    assert [(one["code"], one["callSeq"]) for one in preview] == [(OUTCOME_UNKNOWN, call_seq)]
    closing = closers(fold)
    assert closing[0]["data"]["error"]["code"] == OUTCOME_UNKNOWN
    assert closing[0]["sourceEventSeqs"] == [call_seq]
    for event in closing:
        fold.apply(event)
    assert committed_repairs(fold, HEADER) == preview


def test_an_id_of_an_answered_call_may_be_asked_anew_and_is_not_started() -> None:
    first = [assistant("a"), tool_call("a"), tool_result("a"), step_end()]
    second = [step_start(2), assistant("a", step=2)]
    (repair,) = repairs(folded(stored([*OPEN, *first, *second])), HEADER)
    assert (repair["code"], repair["step"], repair["callSeq"]) == ("TOOL_NOT_STARTED", 2, None)


def test_committed_repairs_are_those_of_the_preview_until_a_turn_starts() -> None:
    events = stored([*OPEN, assistant("a", "b", "c"), tool_call("b"), tool_call("c")])
    events += stored([tool_result("c")], first_seq=len(events), time=5000)
    fold = folded(events)
    preview, closing = repairs(fold, HEADER), closers(fold)
    for event in [*closing, *stored([END_SEED, title()], first_seq=len(events) + len(closing))]:
        fold.apply(event)
        if event["type"] == "turn/end":
            assert fold.committed is not None
    assert fold.committed is not None
    assert fold.committed.closers == closing
    assert committed_repairs(fold, HEADER) == preview
    assert [repair["callId"] for repair in preview] == ["a", "b"]
    fold.apply(stored([turn_start(2)], first_seq=fold.next_seq)[0])
    assert fold.committed is None
    assert committed_repairs(fold, HEADER) == []


@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_a_recovery_that_is_itself_cut_off_tells_every_call_again(written: int) -> None:
    fold = folded(stored([*OPEN, assistant("a", "b", "c"), tool_call("b"), tool_call("c")]))
    whole = repairs(fold, HEADER)
    for event in closers(fold)[:written]:
        fold.apply(event)
    assert repairs(fold, HEADER) == whole
    for event in closers(fold):
        fold.apply(event)
    assert committed_repairs(fold, HEADER) == whole
    assert repairs(fold, HEADER) == []


def test_a_step_that_ended_before_the_crash_is_not_counted_among_the_closers() -> None:
    fold = folded(stored([*OPEN, assistant(), step_end()]))
    for event in closers(fold):
        fold.apply(event)
    assert fold.committed is not None
    assert [event["type"] for event in fold.committed.closers] == ["turn/end"]


def test_a_turn_that_ends_by_itself_commits_nothing() -> None:
    fold = folded(stored([*OPEN, step_end(), turn_end(kind="aborted")]))
    assert fold.committed is None


def test_a_call_of_a_step_that_has_ended_is_left_alone() -> None:
    left = [assistant("a"), tool_call("a"), step_end()]
    fold = folded(stored([*OPEN, *left, step_start(2), assistant("b", step=2)]))
    assert list(fold.pending) == ["b"]
    assert [repair["callId"] for repair in repairs(fold, HEADER)] == ["b"]
