"""Closers of logs as no writer of ours would leave them: whatever stands there, the repair can be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as some

from dsh_protocol.events import Header
from dshd.sessions.closers import closers, committed_repairs, repairs
from dshd.storage.jsonl.rows import expand, pack
from dshd.storage.jsonl.vocabulary import stored_defect
from support import events
from support.events import stored
from support.folds import folded

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

HEADER = Header(id="s", created_at=1_700_000_000_000)

NUMBERS: SearchStrategy[Any] = some.sampled_from(
    [1, 2, 3, 0, -1, 1.5, 2**53, -(2**53), 1e300, "x", "", None, True, [], {}]
)
IDS = some.sampled_from(["a", "b", "", "a-1", "\u2028", "\x00"])
COUNTS = some.integers(1, 3)


def _asking(call_ids: list[str], step: Any) -> dict[str, Any]:
    return events.assistant(*call_ids, step=step)


ODD: SearchStrategy[dict[str, Any]] = some.one_of(
    some.builds(events.turn_start, NUMBERS),
    some.builds(events.turn_end, COUNTS),
    some.builds(events.step_start, NUMBERS, NUMBERS),
    some.builds(events.step_end, NUMBERS, NUMBERS),
    some.builds(_asking, some.lists(IDS), NUMBERS),
    some.builds(events.tool_call, IDS, NUMBERS, NUMBERS),
    some.builds(events.tool_result, some.sampled_from(["a", "b", "a-1"]), NUMBERS),
    some.just(events.user()),
    some.just(events.END_SEED),
)


@given(some.lists(ODD, max_size=24))
@settings(max_examples=400, deadline=None)
def test_a_repair_of_any_log_is_taken_by_our_own_reader_and_leaves_nothing_open(
    events_in: list[dict[str, Any]],
) -> None:
    log = [event for event in stored(events_in) if stored_defect(event) is None]
    for seq, event in enumerate(log):
        event["seq"] = seq
    fold = folded(log)
    preview, closing = repairs(fold, HEADER), closers(fold)
    began: set[str] = {event["data"]["callId"] for event in log if event["type"] == "tool/call"}
    for row in pack(closing):
        (event,) = expand(row)
        assert stored_defect(event) is None
        fold.apply(event)
        if event["type"] == "tool/result" and "sourceEventSeqs" not in event:
            call_id: str = event["data"]["message"]["source"]["callId"]
            assert call_id not in began or any(map(_answers(call_id), log))
    assert fold.open_turn is None
    assert closers(fold) == []
    if closing:
        assert (fold.open_step, fold.pending) == (None, {})
        assert committed_repairs(fold, HEADER) == preview


def _answers(call_id: str) -> Any:
    """Whether an event ends a call of that id, or the turn that it belonged to."""

    def answers(event: dict[str, Any]) -> bool:
        if event["type"] == "tool/result":
            return bool(event["data"]["message"]["source"]["callId"] == call_id)
        return event["type"] in {"turn/start", "turn/end"}

    return answers
