"""The gate of the log: what a client sends becomes events, all of a call or none.

An event is completed (seq, time, defaults), judged (envelope, surface, message shape, the profile) and taken into the
fold. The one rule: after a refusal the fold is as it was before the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_protocol import events as protocol_events
from dsh_protocol.errors import DshdError, EventInvalidError, SeqConflictError
from dshd.sessions import profile
from dshd.sessions.refusals import call_facts, refuse
from dshd.sessions.surface import SurfaceDefectError
from dshd.sessions.values import MAX_SAFE_INTEGER, is_count, is_object, is_text, json_equal, members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_protocol.events import Event
    from dshd.sessions.fold import Fold

_PLAIN_KEYS = frozenset({"type", "seq", "time", "data"})
_KEYS = _PLAIN_KEYS | {"sourceEventSeqs", "surfaceOp", "ignorable"}
_SHOWN_CHARS = 64
_ABSENT = object()


def complete(event_in: Any, seq: int, now_ms: int) -> Event:
    """Return the event that is stored for what a client sent, keys in written order.

    `seq` and `time` are given where absent; a surface type without `surfaceOp` is an append. The data is not copied.

    Raises:
        EventInvalidError: The envelope is malformed; fact `rule`.
        SeqConflictError: It carries another seq than `seq`.
    """
    if not is_object(event_in):
        refuse("invalid-envelope", "an event is an object")
    plain = event_in.keys() <= _PLAIN_KEYS
    if not plain and not event_in.keys() <= _KEYS:
        extra = min(event_in.keys() - _KEYS)[:_SHOWN_CHARS]
        refuse("invalid-envelope", f"key {extra!r} does not belong to an event")
    kind = event_in.get("type")
    if not is_text(kind):
        refuse("invalid-envelope", "type must be a non-empty string")
    if "seq" in event_in:
        _check_seq(event_in["seq"], seq)
    time = event_in.get("time", now_ms)
    if type(time) is not int or not 0 <= time <= MAX_SAFE_INTEGER:
        time = _integral_time(time)
    data = event_in.get("data", _ABSENT)
    if data is _ABSENT:
        refuse("invalid-envelope", "data is missing")
    event: Event = {"type": kind, "seq": seq, "time": time, "data": data}
    if not plain or kind in protocol_events.SURFACE_TYPES:
        _copy_marks(event_in, event)
    return event


def admit(fold: Fold, events_in: Sequence[Any], now_ms: int, base_index: int = 0) -> list[Event]:
    """Judge a call's events and take them into the fold, all or none.

    Args:
        fold: Of the log that they continue; unchanged where this raises.
        events_in: As decoded from the wire.
        now_ms: The time of events that bring none.
        base_index: How many events of the same call were admitted before these; an error's index counts them.

    Raises:
        EventInvalidError: Facts `index` and `rule`.
        SeqConflictError: An event carries a seq that is not its own.
    """
    admitted: list[Event] = []
    if not events_in:
        return admitted
    fold.begin()
    try:
        for event_in in events_in:
            event = complete(event_in, fold.next_seq, now_ms)
            profile.check(fold, event)
            fold.apply(event)
            admitted.append(event)
    except (EventInvalidError, SurfaceDefectError, SeqConflictError) as error:
        fold.rollback()
        index = len(admitted)
        raise _placed(error, events_in[index], base_index + index) from None
    except BaseException:
        fold.rollback()
        raise
    fold.commit()
    return admitted


def same(stored: Event, sent: Any) -> bool:
    """Whether what is sent again is what is stored: defaults applied, key order, seq and time not compared."""
    if not is_object(sent) or not sent.keys() <= _KEYS:
        return False
    kind = sent.get("type")
    default_op = "append" if kind in protocol_events.SURFACE_TYPES else _ABSENT
    return (
        stored["type"] == kind
        and "data" in sent
        and json_equal(stored["data"], sent["data"])
        and json_equal(stored.get("surfaceOp", _ABSENT), sent.get("surfaceOp", default_op))
        and json_equal(stored.get("sourceEventSeqs", _ABSENT), sent.get("sourceEventSeqs", _ABSENT))
        and json_equal(stored.get("ignorable", _ABSENT), sent.get("ignorable", _ABSENT))
    )


# What the checkpoints demand of the log after their call's own events.


def check_request(fold: Fold) -> None:
    """Demand what `checkpoint.request` needs: an open step, and a request header in force."""
    if fold.open_step is None:
        refuse("no-open-step")
    if fold.request_header is None:
        refuse("no-request-header")


def check_post_step(fold: Fold) -> None:
    """Demand what `checkpoint.postStep` needs: that the step is ended."""
    if fold.open_step is not None:
        refuse("step-open", f"step {fold.open_step!r}")


def check_turn_end(fold: Fold, reason: Any) -> None:
    """Demand what `checkpoint.turnEnd` needs: an open turn, its steps ended, and a reason that a client may give."""
    profile.check_turn_end(fold, reason)


def tool_call_event(fold: Fold, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return the `tool/call` that starts a call of the open step, to be admitted.

    Raises:
        EventInvalidError: It was not asked for, or not so, or was started, answered or repaired before; facts
            `callSeq` and `resultSeq`.
    """
    data = {
        "turn": fold.open_turn,
        "step": fold.open_step,
        "callId": call_id,
        "name": name,
        "arguments": arguments,
    }
    profile.check_start(fold, data)
    return {"type": "tool/call", "data": data}


def nested_call_event(
    fold: Fold, call: tuple[str, str, Any], parent_call_id: str, durable_seq: int
) -> dict[str, Any]:
    """Return the `tool/code-dispatch-start` of a call that a running tool makes, to be admitted.

    Args:
        fold: Of the log.
        call: Its id, its name and its parsed arguments.
        parent_call_id: The running call, or another nested one.
        durable_seq: The outer call must be below it.

    Raises:
        EventInvalidError: The outer call is not started, durable and unanswered, or the id is taken.
    """
    parent = fold.nested.get(parent_call_id)
    root_id = parent_call_id if parent is None else parent.root_call_id
    call_id, name, arguments = call
    data = {
        "rootCallId": root_id,
        "parentCallId": parent_call_id,
        "subCallId": call_id,
        "name": name,
        "arguments": arguments,
    }
    profile.check_dispatch(fold, data)
    root = fold.calls[root_id]
    if root.started_seq is None or root.started_seq >= durable_seq:
        refuse("call-not-durable", f"call {root_id!r}", **call_facts(root))
    return {"type": "tool/code-dispatch-start", "data": data}


def _placed(error: Exception, event_in: Any, index: int) -> DshdError:
    """Return the error with the event's place in the call told."""
    kind = members(event_in).get("type")
    shown = repr(kind[:_SHOWN_CHARS]) if isinstance(kind, str) else "of no type"
    text = f"event {index} ({shown}) is refused: {error}"
    if isinstance(error, SeqConflictError):
        return SeqConflictError(text, index=index, **error.facts)
    if isinstance(error, EventInvalidError):
        return EventInvalidError(text, index=index, **error.facts)
    rule = error.rule if isinstance(error, SurfaceDefectError) else "invalid-envelope"
    return EventInvalidError(text, index=index, rule=rule)


def _copy_marks(event_in: dict[str, Any], event: Event) -> None:
    if "sourceEventSeqs" in event_in:
        event["sourceEventSeqs"] = event_in["sourceEventSeqs"]
    if "surfaceOp" in event_in:
        event["surfaceOp"] = event_in["surfaceOp"]
    elif event["type"] in protocol_events.SURFACE_TYPES:
        event["surfaceOp"] = "append"
    if "ignorable" in event_in:
        if event_in["ignorable"] is not True:
            refuse("invalid-envelope", "ignorable may only be true")
        event["ignorable"] = True


def _check_seq(given: Any, seq: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float):
        refuse("invalid-envelope", "seq must be an integer")
    if given != seq:
        text = f"seq {given!r} where {seq} is the next; read on from there and append anew"
        raise SeqConflictError(text, expected=seq, got=given)


def _integral_time(time: Any) -> int:
    # a stored time may lie before 1970; one that is sent does not, on any clock that is set
    if not is_count(time):
        refuse("invalid-envelope", "time must be an integer of milliseconds since 1970")
    return int(time)
