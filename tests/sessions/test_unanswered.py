"""Calls that a log leaves without a result though their step or turn has ended."""

from __future__ import annotations

import json
from typing import Any

from dsh_protocol.events import Header
from dshd.sessions.closers import NOT_STARTED, NOT_STARTED_TEXT, OUTCOME_UNKNOWN, closers
from dshd.sessions.messages import Transcript
from dshd.sessions.unanswered import Unanswered, reports
from support.events import (
    assistant,
    step_end,
    step_start,
    stored,
    tool_call,
    tool_result,
    turn_end,
    turn_start,
    user,
)
from support.folds import folded
from support.vectors import vectors
from support.verdicts import check_history

HEADER = Header(id="s", created_at=1_700_000_000_000)
OPEN = (turn_start(), step_start(), user())
Log = list[dict[str, Any]]


def read(log: Log, *, closed: bool = True) -> tuple[Log, Log]:
    """The history of a log and what is reported of it; with the closers where `closed`."""
    fold = folded(log)
    events = [*log, *closers(fold)] if closed else log
    transcript, unanswered = Transcript(), Unanswered()
    for event in events:
        transcript.add(event)
        unanswered.add(event)
    answers = unanswered.answers(open_turn=fold.open_turn is not None and not closed)
    history = transcript.history(
        {seq: [one.message for one in due] for seq, due in answers.items()}
    )
    told = reports([one for due in answers.values() for one in due], HEADER)
    return history.messages, told


def codes(told: Log) -> list[tuple[str, str]]:
    return [(one["callId"], one["code"]) for one in told]


def test_calls_of_an_ended_step_are_answered_behind_the_results_that_it_got() -> None:
    log = stored(
        [
            *OPEN,
            assistant("a", "b", "c"),
            tool_call("b"),
            tool_call("c"),
            tool_result("c"),
            step_end(),
            step_start(2),
            user("next"),
            assistant(step=2),
        ]
    )
    messages, told = read(log)
    assert codes(told) == [("a", NOT_STARTED), ("b", OUTCOME_UNKNOWN)]
    assert [one["callSeq"] for one in told] == [None, 4]
    assert [message["id"] for message in messages] == [
        "u-hello",
        "a-1-1",
        "r-c",
        "unanswered-tool-result-a-3",
        "unanswered-tool-result-b-3",
        "u-next",
        "a-1-2",
    ]
    assert messages[3] == {
        "id": "unanswered-tool-result-a-3",
        "role": "user",
        "source": {"kind": "tool", "callId": "a"},
        "content": [
            {
                "type": "tool-result",
                "toolCallId": "a",
                "isError": True,
                "content": [{"type": "text", "text": NOT_STARTED_TEXT}],
            }
        ],
    }
    check_history(messages)


def test_calls_of_an_ended_turn_are_answered_and_the_next_turn_is_its_own() -> None:
    first = [*OPEN, assistant("a", "b"), tool_call("a"), turn_end(kind="aborted")]
    second = [turn_start(2), step_start(1, 2), user("two"), assistant("a", turn=2)]
    messages, told = read(stored([*first, *second]))
    check_history(messages)
    # turn 2 asks for another call by the same id: it has not begun, and recovery answers it
    assert codes(told) == [("a", OUTCOME_UNKNOWN), ("b", NOT_STARTED)]
    assert [one["turn"] for one in told] == [1, 1]


def test_calls_of_a_step_that_is_open_now_are_left_alone() -> None:
    log = stored([*OPEN, assistant("a"), tool_call("a")])
    messages, told = read(log, closed=False)
    assert told == []
    assert [message["id"] for message in messages] == ["u-hello", "a-1-1"]


def test_a_call_that_is_asked_for_twice_is_answered_where_it_was_asked_first() -> None:
    log = stored([*OPEN, assistant("a"), tool_call("a"), assistant("a"), tool_result("a")])
    messages, told = read([*log, *stored([step_end(), turn_end()], first_seq=len(log))])
    check_history(messages)
    assert codes(told) == [("a", OUTCOME_UNKNOWN)]


def test_a_result_that_came_late_is_a_result() -> None:
    log = stored([*OPEN, assistant("a"), tool_call("a"), step_end(), tool_result("a"), turn_end()])
    messages, told = read(log)
    assert told == []
    check_history(messages)


def test_a_call_with_an_empty_id_is_answered_too() -> None:
    messages, told = read(stored([*OPEN, assistant("", "b")]))
    check_history(messages)
    assert codes(told) == [("", NOT_STARTED)]


def test_a_rewrite_of_an_old_result_answers_no_new_call() -> None:
    first = [*OPEN, assistant("a"), tool_call("a"), tool_result("a"), step_end(), step_start(2)]
    rewrite = tool_result("a", surfaceOp={"op": "replace", "start": 5, "end": 5})
    rewrite["sourceEventSeqs"] = [5]
    log = stored([*first, assistant("a", step=2), rewrite, step_end(2), turn_end()])
    messages, told = read(log)
    check_history(messages)
    assert [(one["callId"], one["step"]) for one in told] == [("a", 2)]


def test_a_message_that_was_replaced_takes_its_answers_with_it() -> None:
    log = stored([*OPEN, assistant("a"), step_end(), turn_end(), turn_start(2), step_start(1, 2)])
    summary = user("summary", surfaceOp={"op": "replace", "start": 2, "end": 3})
    summary["sourceEventSeqs"] = [2, 3]
    messages, _ = read([*log, *stored([summary], first_seq=len(log))])
    assert [message["id"] for message in messages] == ["u-summary"]


def test_every_call_of_every_recorded_odd_crash_is_answered_in_the_history() -> None:
    table = json.loads((vectors() / "crash" / "synthetic.json").read_bytes())
    for case in table["cases"]:
        messages, _ = read(case["events"])
        awaited: list[str] = []
        for (
            message
        ) in messages:  # not `check_history`: two messages of one step may share their results
            for block in message["content"]:
                if block["type"] == "tool-call" and block["id"] not in awaited:
                    awaited.append(block["id"])
                elif block["type"] == "tool-result" and block["toolCallId"] in awaited:
                    awaited.remove(block["toolCallId"])
        assert not awaited, case["name"]


def test_prefixes_of_the_recorded_logs_leave_a_history_that_a_provider_takes() -> None:
    judged = 0
    for path in sorted((vectors() / "crash").glob("*.json")):
        table = json.loads(path.read_bytes())
        if "events" in table:
            for case in table["cases"][::4]:
                messages, _ = read(table["events"][: case["cut"]])
                check_history(messages)
                judged += 1
    assert judged > 100
