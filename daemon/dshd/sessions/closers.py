"""How an interrupted turn is closed, and what the next agent is told about each unanswered call.

Pure: from a fold to events and to repairs. The one rule: nothing that may have run is ever called safe to run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_protocol.ids import idempotency_key
from dshd.sessions.fold import CLOSER_ID

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_protocol.events import Event, Header
    from dshd.sessions.fold import Call, Fold

NOT_STARTED = "TOOL_NOT_STARTED"
OUTCOME_UNKNOWN = "TOOL_OUTCOME_UNKNOWN"

NOT_STARTED_TEXT = (
    "This tool call was cut off before there was any record that it began, so it did not run. "
    "Make the call again if its effect is still wanted."
)
OUTCOME_UNKNOWN_TEXT = (
    "This tool call had begun when the session was cut off, and its result was lost: it may have "
    "run in full, in part or not at all. Do not just run it again. Repeat it only if it is "
    "read-only or idempotent; otherwise check first what it has done outside, or ask the user."
)

_ERRORS = {
    NOT_STARTED: ("ToolNotStartedError", NOT_STARTED_TEXT),
    OUTCOME_UNKNOWN: ("ToolOutcomeUnknownError", OUTCOME_UNKNOWN_TEXT),
}


def closers(fold: Fold) -> list[Event]:
    """Return the events that close the open turn; none where no turn is open.

    They continue the log at `fold.next_seq`, copy its last time, and are not applied to the fold. What they say can be
    read again, however odd the log: a turn whose number no reader takes is closed under the last number that one does,
    and a call whose id is empty gets no result, which no reader would take either.
    """
    if fold.open_turn is None:
        return []
    events: list[Event] = []
    turn = max(fold.last_turn, 1)  # the open turn's own number, where that is one

    def close(kind: str, data: dict[str, Any], **surface: Any) -> None:
        seq = fold.next_seq + len(events)
        events.append({"type": kind, "seq": seq, "time": fold.last_time, "data": data, **surface})

    for call in filter(_can_be_answered, fold.pending.values()):
        data = _result_data(turn, call, fold.next_seq + len(events))
        if call.started_seq is None:
            close("tool/result", data, surfaceOp="append")
        else:
            close("tool/result", data, surfaceOp="append", sourceEventSeqs=[call.started_seq])
    if fold.open_step is not None:
        close("step/end", {"turn": turn, "step": fold.open_step})
    close("turn/end", {"turn": turn, "reason": {"kind": "interrupted"}})
    return events


def _can_be_answered(call: Call) -> bool:
    return bool(call.call_id)


def repairs(fold: Fold, header: Header) -> list[dict[str, Any]]:
    """Return the wire's `Repair` for each unanswered call of the open turn, in transcript order.

    A call that an earlier recovery answered before it was cut off is told again.
    """
    due = filter(_can_be_answered, fold.pending.values())
    return _repairs([*fold.half_closed, *due], header)


def committed_repairs(fold: Fold, header: Header) -> list[dict[str, Any]]:
    """Return the repairs of the last turn as recovery stored them, until a new turn starts; else an empty list."""
    return [] if fold.committed is None else _repairs(fold.committed.calls, header)


def _result_data(turn: int, call: Call, seq: int) -> dict[str, Any]:
    code = code_of(call)
    return {
        "turn": turn,
        "step": call.step,
        "message": answer(call, f"{CLOSER_ID}{call.call_id}-{seq}"),
        "error": {"name": _ERRORS[code][0], "code": code},
    }


def code_of(call: Call) -> str:
    """Return what is to be told of an unanswered call: begun once, however it was asked for since, is begun."""
    return NOT_STARTED if call.started_seq is None else OUTCOME_UNKNOWN


def answer(call: Call, message_id: str) -> dict[str, Any]:
    """Return the message that answers an unanswered call, for a provider to take."""
    block = {
        "type": "tool-result",
        "toolCallId": call.call_id,
        "isError": True,
        "content": [{"type": "text", "text": _ERRORS[code_of(call)][1]}],
    }
    return {
        "id": message_id,
        "role": "user",
        "source": {"kind": "tool", "callId": call.call_id},
        "content": [block],
    }


def _repairs(calls: Iterable[Call], header: Header) -> list[dict[str, Any]]:
    return [repair(call, header) for call in calls]


def repair(call: Call, header: Header | None) -> dict[str, Any]:
    """Return the wire's `Repair` for an unanswered call; of a session whose header is lost, without its key."""
    seq, code = call.started_seq, code_of(call)
    return {
        "callId": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
        "turn": call.turn,
        "step": call.step,
        "code": code,
        "callSeq": seq,
        "idempotencyKey": None
        if seq is None or header is None
        else idempotency_key(header.id, header.created_at, seq, call.call_id),
        "message": _ERRORS[code][1],
    }
