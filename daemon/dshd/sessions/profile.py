"""What a client may append next: the order of turns, steps, calls and results.

Each check looks at one completed event and at the fold before it. The one rule: this binds what clients append, never a
stored log and never the closers; those go to the fold unasked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_protocol import events as protocol_events
from dshd.sessions.fold import CLOSER_ID, result_call_id
from dshd.sessions.refusals import call_facts, refuse
from dshd.sessions.values import is_count, is_number, is_object, is_text, json_equal, members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsh_protocol.events import Event
    from dshd.sessions.fold import Call, Fold

MAX_TYPE_CHARS = 256


def check(fold: Fold, event: Event) -> None:
    """Refuse an event that may not come next in the log.

    Raises:
        EventInvalidError: With the fact `rule`; for a call's events also `callSeq` and `resultSeq`.
    """
    kind: str = event["type"]
    order = _CHECKS.get(kind)
    if order is not None:
        data = event["data"]
        if not is_object(data):
            refuse("data-not-object")
        order(fold, event, data)
    elif kind not in protocol_events.KNOWN_TYPES:
        _check_unknown(event, kind)


def check_turn_end(fold: Fold, reason: Any) -> None:
    """Refuse to end the turn: not open, a step open, or a reason of the wrong shape."""
    if fold.open_turn is None:
        refuse("no-open-turn")
    if fold.open_step is not None:
        refuse("step-open", f"step {fold.open_step!r}")
    _check_reason(reason)


def step_call(fold: Fold, call_id: Any) -> Call | None:
    """Return the call that a message of the open step asked for; None where none did."""
    call = fold.calls.get(call_id) if isinstance(call_id, str) else None
    if call is None or call.message_seq is None or fold.open_step is None:
        return None
    return call if call.step == fold.open_step else None


def check_start(fold: Fold, data: Mapping[str, Any]) -> None:
    """Refuse to start a call that was not asked for, or not so, or that has been started before."""
    call_id = data.get("callId")
    call = step_call(fold, call_id)
    if call is None:
        known = fold.calls.get(call_id) if isinstance(call_id, str) else None
        answered = known is not None and known.result_seq is not None
        rule = "call-answered" if answered else "call-not-asked"
        refuse(rule, f"call {call_id!r}", **call_facts(known))
    if call.result_seq is not None:
        refuse("call-answered", f"call {call_id!r}", **call_facts(call))
    if call.started_seq is not None:
        refuse("call-started", f"call {call_id!r}", **call_facts(call))
    if data.get("name") != call.name or data.get("arguments") != call.arguments:
        refuse("call-differs", f"call {call_id!r}", **call_facts(call))


def check_dispatch(fold: Fold, data: Mapping[str, Any]) -> None:
    """Refuse a nested dispatch whose outer calls are not running, or whose id is taken."""
    parent_id, root_id, call_id = (data.get(key) for key in _DISPATCH_IDS)
    if not (is_text(parent_id) and is_text(root_id) and is_text(call_id)):
        refuse("dispatch-shape")
    root = step_call(fold, root_id)
    if root is None or root.started_seq is None or root.result_seq is not None:
        refuse("call-not-started", f"outer call {root_id!r}", **call_facts(root))
    if parent_id != root_id:
        parent = fold.nested.get(parent_id)
        if parent is None or parent.root_call_id != root_id:
            refuse("dispatch-not-started", f"dispatch {parent_id!r}")
    if call_id in fold.nested_ids or step_call(fold, call_id) is not None:
        refuse("dispatch-id-repeated", f"dispatch {call_id!r}")


_DISPATCH_IDS = ("parentCallId", "rootCallId", "subCallId")
_DELTAS = frozenset({"text-delta", "reasoning-delta", "tool-call-delta"})
_RESERVED = frozenset({"session", "text-chunks", "reasoning-chunks", "tool-call-chunks"})


def _check_unknown(event: Event, kind: str) -> None:
    if len(kind) > MAX_TYPE_CHARS:
        refuse("invalid-envelope", f"a type has at most {MAX_TYPE_CHARS} characters")
    retired = protocol_events.retired_shape(event)
    if retired is not None:
        refuse(retired)
    if kind in _RESERVED:
        refuse("reserved-type")
    if event.get("ignorable") is not True:
        refuse("unknown-event-type")


def _check_shape(event: Event) -> None:
    rule = protocol_events.retired_shape(event) or protocol_events.message_defect(event)
    if rule is not None:
        refuse(rule)


def _check_turn(fold: Fold, data: dict[str, Any]) -> None:
    if fold.open_turn is None:
        refuse("no-open-turn")
    if not is_number(data.get("turn"), fold.open_turn):
        refuse("wrong-turn", f"turn {data.get('turn')!r} where {fold.open_turn!r} is open")


def _check_step(fold: Fold, data: dict[str, Any]) -> None:
    _check_turn(fold, data)
    if fold.open_step is None:
        refuse("no-open-step")
    if not is_number(data.get("step"), fold.open_step):
        refuse("wrong-step", f"step {data.get('step')!r} where {fold.open_step!r} is open")


def _turn_start(fold: Fold, event: Event, data: dict[str, Any]) -> None:
    _check_shape(event)
    if fold.open_turn is not None:
        refuse("turn-open", f"turn {fold.open_turn!r}")
    if not is_number(data.get("turn"), fold.last_turn + 1):
        refuse("turn-number", f"turn {data.get('turn')!r} where {fold.last_turn + 1} is next")


def _turn_end(fold: Fold, event: Event, data: dict[str, Any]) -> None:
    _check_turn(fold, data)
    check_turn_end(fold, data.get("reason"))
    _check_shape(event)


def _check_reason(reason: Any) -> None:
    if not is_object(reason) or not is_text(reason.get("kind")):
        refuse("turn-reason")
    kind = reason["kind"]
    if kind == "interrupted":
        refuse("closer", "reason 'interrupted'")
    if kind == "aborted" and not is_text(members(reason.get("reason")).get("kind")):
        refuse("turn-reason", "kind 'aborted'")
    if kind == "error":
        error = members(reason.get("error"))
        if not (isinstance(error.get("message"), str) and isinstance(error.get("code"), str)):
            refuse("turn-reason", "kind 'error'")


def _step_start(fold: Fold, _event: Event, data: dict[str, Any]) -> None:
    _check_turn(fold, data)
    if fold.open_step is not None:
        refuse("step-open", f"step {fold.open_step!r}")
    if not is_number(data.get("step"), fold.last_step + 1):
        refuse("step-number", f"step {data.get('step')!r} where {fold.last_step + 1} is next")


def _step_end(fold: Fold, _event: Event, data: dict[str, Any]) -> None:
    _check_step(fold, data)
    for call in fold.pending.values():
        refuse("call-unanswered", f"call {call.call_id!r}", **call_facts(call))


def _chunk(fold: Fold, _event: Event, data: dict[str, Any]) -> None:
    # nine in ten events are chunks: what is usual is compared in place, the rest goes to the checks
    turn, step, chunk = data.get("turn"), data.get("step"), data.get("chunk")
    usual = type(turn) is int and type(step) is int
    if not usual or turn != fold.open_turn or step != fold.open_step:
        _check_step(fold, data)
    if not is_object(chunk) or not is_text(chunk.get("type")):
        refuse("chunk-shape")
    if chunk["type"] in _DELTAS:
        index = chunk.get("index")
        if (type(index) is not int or index < 0) and not is_count(index):
            refuse("chunk-index")
        if chunk["type"] == "tool-call-delta" and not is_text(chunk.get("id")):
            refuse("chunk-call-id")


def _assistant_message(fold: Fold, event: Event, data: dict[str, Any]) -> None:
    _check_step(fold, data)
    _check_shape(event)
    _check_between(fold, event)
    asked: set[str] = set()
    for block in data["message"]["content"]:
        if not is_object(block) or block.get("type") != "tool-call":
            continue
        call_id = block.get("id")
        if not is_text(call_id) or not (
            isinstance(block.get("name"), str) and isinstance(block.get("arguments"), str)
        ):
            refuse("call-block")
        if call_id in asked or step_call(fold, call_id) is not None:
            refuse("call-id-repeated", f"call {call_id!r}")
        asked.add(call_id)


def _user_message(fold: Fold, event: Event, _data: dict[str, Any]) -> None:
    _check_shape(event)
    _check_between(fold, event)


def _check_between(fold: Fold, event: Event) -> None:
    """Refuse a message that would come, in the history, after a call and before its result.

    A replacement further up (a compaction) does not: it stands where the events stood that it replaces.
    """
    if not fold.pending:
        return
    open_calls = ", ".join(repr(call_id) for call_id in fold.pending)
    op = event["surfaceOp"]
    if is_object(op):
        asked = min(call.message_seq or 0 for call in fold.pending.values())
        place, first = fold.surface.position(op.get("end", -1)), fold.surface.position(asked)
        if place is None or first is None or place < first:
            return
    refuse("message-before-result", f"unanswered: {open_calls}")


def _tool_call(fold: Fold, _event: Event, data: dict[str, Any]) -> None:
    _check_step(fold, data)
    check_start(fold, data)


def _tool_result(fold: Fold, event: Event, data: dict[str, Any]) -> None:
    _check_shape(event)
    call_id: str = result_call_id(data)
    if isinstance(event["surfaceOp"], dict):
        if call_id in fold.pending:
            refuse("rewrite-of-unanswered-call", f"call {call_id!r}")
        return
    _check_step(fold, data)
    not_started = members(data.get("error")).get("code") == "TOOL_NOT_STARTED"
    if not_started or data["message"]["id"].startswith(CLOSER_ID):
        refuse("closer", "the result of a call that did not run to its end")
    call = step_call(fold, call_id)
    if call is None:
        refuse("call-not-asked", f"call {call_id!r}", **call_facts(fold.calls.get(call_id)))
    if call.result_seq is not None:
        refuse("call-answered", f"call {call_id!r}", **call_facts(call))
    if call.call_seq is None:
        refuse("call-not-started", f"call {call_id!r}", **call_facts(call))


def _in_turn(fold: Fold, event: Event, _data: dict[str, Any]) -> None:
    if fold.open_turn is None:
        refuse("no-open-turn")
    _check_shape(event)


def _dispatch_start(fold: Fold, _event: Event, data: dict[str, Any]) -> None:
    if not isinstance(data.get("name"), str) or "arguments" not in data:
        refuse("dispatch-shape")
    check_dispatch(fold, data)


def _dispatch(fold: Fold, _event: Event, data: dict[str, Any]) -> None:
    call_id = data.get("subCallId")
    started = fold.nested.get(call_id) if isinstance(call_id, str) else None
    if started is None:
        refuse("dispatch-not-started", f"dispatch {call_id!r}")
    same = (
        data.get("rootCallId") == started.root_call_id
        and data.get("parentCallId") == started.parent_call_id
        and data.get("name") == started.name
        and json_equal(data.get("arguments"), started.arguments)
    )
    if not same:
        refuse("dispatch-differs", f"dispatch {call_id!r}")


def _end_seed(_fold: Fold, _event: Event, _data: dict[str, Any]) -> None:
    refuse("end-seed")


_CHECKS: Mapping[str, Callable[[Fold, Event, dict[str, Any]], None]] = {
    "assistant/chunk": _chunk,
    "assistant/message": _assistant_message,
    "request/context": _in_turn,
    "request/header": _in_turn,
    "session/end-seed": _end_seed,
    "step/end": _step_end,
    "step/start": _step_start,
    "tool/call": _tool_call,
    "tool/code-dispatch": _dispatch,
    "tool/code-dispatch-start": _dispatch_start,
    "tool/result": _tool_result,
    "turn/end": _turn_end,
    "turn/start": _turn_start,
    "user/message": _user_message,
}
