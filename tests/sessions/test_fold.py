from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from dshd.sessions.fold import CLOSER_ID, Fold
from dshd.sessions.surface import SurfaceDefectError
from dshd.sessions.values import is_count
from support.events import (
    END_SEED,
    assistant,
    dispatch_end,
    dispatch_start,
    request_header,
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
from support.folds import folded, state


def test_an_empty_log_has_nothing_open() -> None:
    fold = Fold()
    assert (fold.next_seq, fold.last_time, fold.turns, fold.last_turn) == (0, None, 0, 0)
    assert (fold.open_turn, fold.open_step, fold.pending, fold.calls) == (None, None, {}, {})


def test_a_fold_tells_where_the_log_stands() -> None:
    context = {"type": "request/context", "data": {"provider": "p"}}
    fold = folded(
        stored([turn_start(), step_start(), user(), title("it"), request_header(), context])
    )
    assert (fold.next_seq, fold.last_time, fold.turns, fold.last_turn) == (6, 1050, 1, 1)
    assert (fold.open_turn, fold.open_step, fold.last_step, fold.title) == (1, 1, 1, "it")
    assert fold.request_header == {"config": {"provider": "p", "model": "m"}}
    assert fold.request_context == {"provider": "p"}
    assert not fold.ends_with_end_seed
    fold.apply(stored([END_SEED], first_seq=6)[0])
    assert fold.ends_with_end_seed


def test_calls_are_pending_until_answered_and_told_until_the_next_turn() -> None:
    log = stored(
        [turn_start(), step_start(), assistant("a", "b"), tool_call("b"), tool_result("b")]
    )
    fold = folded(log)
    assert list(fold.pending) == ["a"]
    asked, answered = fold.calls["a"], fold.calls["b"]
    assert (asked.message_seq, asked.call_seq, asked.result_seq) == (2, None, None)
    assert (answered.call_seq, answered.started_seq, answered.result_seq) == (3, 3, 4)
    for event in stored([step_end(), turn_end()], first_seq=5):
        fold.apply(event)
    assert fold.pending == {}
    assert fold.calls["b"] == answered
    fold.apply(stored([turn_start(2)], first_seq=7)[0])
    assert fold.calls == {}


def test_nested_dispatches_are_open_until_settled() -> None:
    log = [turn_start(), step_start(), assistant("a"), tool_call("a")]
    log += [dispatch_start("n"), dispatch_start("m", parent="n"), dispatch_end("m", parent="n")]
    fold = folded(stored(log))
    assert list(fold.nested) == ["n"]
    assert fold.nested["n"].arguments == {"x": 1}
    assert fold.nested_ids == {"n", "m"}
    fold.apply(stored([step_end()], first_seq=7)[0])
    assert not fold.nested
    assert not fold.nested_ids


@pytest.mark.parametrize(
    ("number", "last_turn"), [(9, 9), (2.0, 2), (None, 1), (1.5, 1), ("x", 1), (-3, 1), (True, 1)]
)
def test_an_odd_turn_number_never_spoils_the_next_one(number: Any, last_turn: int) -> None:
    fold = folded(stored([turn_start(), turn_end(), turn_start(number)]))
    assert (fold.turns, fold.last_turn) == (2, last_turn)
    assert fold.open_turn == number


@pytest.mark.parametrize(
    "data", [None, 1, "x", [], {}, {"message": None}, {"message": {"source": 1}}]
)
def test_any_data_is_taken_in(data: Any) -> None:
    kinds = "turn/start step/start assistant/message tool/call tool/result tool/code-dispatch-start"
    kinds += " tool/code-dispatch session/title request/header request/context step/end turn/end"
    fold = folded(stored({"type": kind, "data": data} for kind in kinds.split()))
    assert fold.next_seq == 12
    assert fold.open_turn is None


def test_an_event_out_of_sequence_is_refused_and_changes_nothing() -> None:
    fold = folded(stored([turn_start()]))
    before = state(fold)
    for seq in (0, 2):
        with pytest.raises(SurfaceDefectError) as caught:
            fold.apply(stored([step_start()], first_seq=seq)[0])
        assert caught.value.rule == "seq-not-contiguous"
    assert state(fold) == before


def test_what_was_applied_can_be_taken_back_and_marks_nest() -> None:
    fold = folded(stored([turn_start(), step_start(), assistant("a"), tool_call("a")]))
    before = state(fold)
    fold.begin()
    fold.apply(stored([dispatch_start()], first_seq=4)[0])
    between = state(fold)
    fold.begin()
    rest = [tool_result("a"), step_end(), title(), turn_end(), turn_start(2), request_header()]
    for event in stored(rest, first_seq=5):
        fold.apply(event)
    fold.rollback()
    assert state(fold) == between
    fold.begin()
    fold.apply(stored([dispatch_end()], first_seq=5)[0])
    fold.commit()
    assert state(fold) != between
    fold.rollback()
    assert state(fold) == before


@pytest.mark.parametrize("inner", ["kept", "taken back"])
def test_wherever_groups_begin_and_end_what_is_taken_back_was_never_there(inner: str) -> None:
    log = [turn_start(), step_start(), assistant("a", "b"), tool_call("b"), tool_result("b")]
    log += [tool_call("a"), closer("a", 6), step_end()]
    log += [step_start(2), assistant("b", "c"), tool_call("b"), tool_result("b"), step_end()]
    log += [turn_end(), turn_start(2), step_start(), assistant("a"), tool_call("a")]
    events = stored(log)
    for begin, middle, end in combinations(range(len(events) + 1), 3):
        fold = folded(events[:begin])
        fold.begin()
        _apply(fold, events[begin:middle])
        fold.begin()
        _apply(fold, events[middle:end])
        if inner == "kept":
            fold.commit()
        else:
            fold.rollback()
            assert everything(fold) == everything(folded(events[:middle]))
        fold.rollback()
        assert everything(fold) == everything(folded(events[:begin]))
        _apply(fold, events[begin:])
        assert everything(fold) == everything(folded(events))


def everything(fold: Fold) -> Any:
    return state(fold), list(fold.calls), fold.unsettled


def closer(call_id: str, seq: int) -> dict[str, Any]:
    """Return the result that a recovery writes for a call at `seq`."""
    result = tool_result(call_id, surfaceOp="append")
    result["data"]["message"]["id"] = f"{CLOSER_ID}{call_id}-{seq}"
    return result


def _apply(fold: Fold, events: list[dict[str, Any]]) -> None:
    for event in events:
        fold.apply(event)


@pytest.mark.parametrize("value", [0, 1, 2**53 - 1, 1.0])
def test_counts_are_the_integers_that_every_program_holds_exactly(value: Any) -> None:
    assert is_count(value)


@pytest.mark.parametrize(
    "value", [-1, 2**53, 2.0**53, 0.5, True, False, None, "1", float("inf"), -1.0]
)
def test_nothing_else_is_a_count(value: Any) -> None:
    assert not is_count(value)
