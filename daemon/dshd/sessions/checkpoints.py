"""The four semantic checkpoints: answered only when what they stand for is durable, else with an error.

Fail closed is the one rule: an answer other than success means no model request and no tool body, and a tool's body
runs on `DISPATCH` alone.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import trio

from dsh_protocol import jsontext
from dsh_protocol.errors import DshdError, EventInvalidError, WriterLostError
from dsh_protocol.ids import idempotency_key
from dshd.sessions import rules
from dshd.sessions.asked import Asked
from dshd.sessions.at_once import need_task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from dsh_protocol.events import Event
    from dshd.sessions.asked import Admission, Caller
    from dshd.sessions.fold import Call, Fold
    from dshd.sessions.session import Session

DISPATCH = "DISPATCH"
ABORTED = "ABORTED_BEFORE_DISPATCH"
_ABORTED_TEXT = "tool call aborted before dispatch"


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A tool call as the model asked for it; `arguments` is the raw text, `parent_call_id` makes it a nested one."""

    call_id: str
    name: str
    arguments: str
    parent_call_id: str | None = None
    time: int | None = None


def request_condition(fold: Fold) -> Sequence[dict[str, Any]]:
    """Demand what `checkpoint.request` needs; it adds no event."""
    rules.check_request(fold)
    return ()


def post_step_condition(fold: Fold) -> Sequence[dict[str, Any]]:
    """Demand what `checkpoint.postStep` needs; it adds no event."""
    rules.check_post_step(fold)
    return ()


def turn_end_condition(
    reason: dict[str, Any], time: int | None
) -> Callable[[Fold], Sequence[dict[str, Any]]]:
    """Return the condition of `checkpoint.turnEnd`, which adds the `turn/end`."""

    def condition(fold: Fold) -> Sequence[dict[str, Any]]:
        rules.check_turn_end(fold, reason)
        data = {"turn": fold.open_turn, "reason": reason}
        return (_timed({"type": "turn/end", "data": data}, time),)

    return condition


def tool_condition(
    start: ToolStart, durable_seq: int
) -> Callable[[Fold], Sequence[dict[str, Any]]]:
    """Return the condition of `checkpoint.tool`, which adds the start of the call.

    Args:
        start: The call.
        durable_seq: A nested call needs its outer one below it.
    """

    def condition(fold: Fold) -> Sequence[dict[str, Any]]:
        if start.parent_call_id is None:
            event = rules.tool_call_event(fold, start.call_id, start.name, start.arguments)
        else:
            call = (start.call_id, start.name, parse_arguments(start.call_id, start.arguments))
            event = rules.nested_call_event(fold, call, start.parent_call_id, durable_seq)
        return (_timed(event, start.time),)

    return condition


def _timed(event: dict[str, Any], time: int | None) -> dict[str, Any]:
    return event if time is None else {**event, "time": time}


async def checkpoint(session: Session, writer: str, asked: Asked, caller: Caller) -> dict[str, Any]:
    """Admit `asked` with its condition and wait until everything up to its end is durable."""
    admission = await session.admit(writer, asked)
    claim = session.require_writer(writer)
    if admission.duplicate:
        _check_again(session, asked, admission)
    caller.admitted(admission)
    await session.wait_durable(claim, admission, begun=caller.hold_cancel)
    return {"nextSeq": admission.next_seq, "durableSeq": session.durable_seq}


def _check_again(session: Session, asked: Asked, admission: Admission) -> None:
    """Demand the condition of a repeated checkpoint, too, where the log still stands at its place.

    It may be no repetition: its events may have come by another call, and one without events proves nothing. Where the
    log has gone on, the present state says nothing about events that were found at their place.
    """
    there = asked.count == 0 or admission.next_seq == session.fold.next_seq
    if there and asked.then is not None and asked.added is None:
        asked.then(session.fold)


def ends_turn(reason: dict[str, Any]) -> Callable[[Event], bool]:
    """Return what recognises the `turn/end` that `checkpoint.turnEnd` adds for this reason."""

    def added(stored: Event) -> bool:
        data = stored["data"]
        if stored["type"] != "turn/end" or not isinstance(data, dict):
            return False
        return rules.same(stored, {"type": "turn/end", "data": {**data, "reason": reason}})

    return added


def starts_call(start: ToolStart) -> Callable[[Event], bool]:
    """Return what recognises the event that `checkpoint.tool` adds for this call."""

    def added(stored: Event) -> bool:
        if not isinstance(stored["data"], dict):
            return False
        data = cast("dict[str, Any]", stored["data"])
        if start.parent_call_id is None:
            asked = (start.call_id, start.name, start.arguments)
            found = (data.get("callId"), data.get("name"), data.get("arguments"))
            return stored["type"] == "tool/call" and found == asked
        asked = (start.call_id, start.name, start.parent_call_id)
        found = (data.get("subCallId"), data.get("name"), data.get("parentCallId"))
        return stored["type"] == "tool/code-dispatch-start" and found == asked

    return added


async def checkpoint_tool(
    session: Session, writer: str, start: ToolStart, asked: Asked, caller: Caller
) -> dict[str, Any]:
    """Record that a tool call starts, durably, and decide whether its body may run.

    A nested start is recorded and answered at once: the outer call's checkpoint stands for it.

    Args:
        session: Where the call was asked for.
        writer: Proves the claim.
        start: The call.
        asked: Events before it, and the seq of the first of all.
        caller: Whom to tell.

    Raises:
        EventInvalidError: The call was not asked for, or is started, answered or repaired already.
        DshdError: It could not be made durable; the fact `result` is what to record for the call.
    """
    session.check_writer(writer)
    condition = tool_condition(start, session.durable_seq)
    added = starts_call(start)
    asked = Asked(asked.events, asked.expected_seq, asked.size, condition, added)
    known = None if start.parent_call_id is not None else _known_start(session, start, asked)
    if known is None:
        admission = await session.admit(writer, asked)
        if admission.duplicate and not _is_open(session.fold, start, admission.next_seq - 1):
            raise _settled(start, admission.next_seq - 1, len(asked.events))
    else:
        admission = await _repeated(session, start, asked, known)
    claim = session.require_writer(writer)
    if start.parent_call_id is not None:
        caller.admitted(admission)
        return await _decided(session, start.call_id, admission)
    caller.hold_cancel()
    with _deciding(session, admission, caller):
        caller.admitted(admission)
        try:
            await session.wait_durable(claim, admission, begun=caller.hold_cancel)
        except WriterLostError:
            raise
        except DshdError as error:
            raise error.with_facts(result=error_result(error)) from None
    return await _decided(session, start.call_id, admission)


@contextmanager
def _deciding(session: Session, admission: Admission, caller: Caller) -> Generator[None]:
    """Keep whoever asks again waiting until the first call has its decision: there is one, and a cancel is in it."""
    if admission.duplicate:
        yield
        return
    call_seq = admission.next_seq - 1
    decided = session.undecided[call_seq] = trio.Event()
    try:
        yield
    finally:
        if caller.cancelled():
            session.aborted_calls.add(call_seq)
        del session.undecided[call_seq]
        decided.set()


def parse_arguments(call_id: str, arguments: str) -> Any:
    """Return the parsed arguments of a nested call.

    Raises:
        EventInvalidError: They are not JSON.
    """
    try:
        return jsontext.decode(arguments.encode("utf-8", "surrogatepass"))
    except jsontext.JsonTextError as error:
        raise EventInvalidError(
            f"the arguments of nested call '{call_id}' are not JSON ({error.rule}); send what the model wrote",
            index=0,
            rule="arguments-not-json",
        ) from error


async def _decided(session: Session, call_id: str, admission: Admission) -> dict[str, Any]:
    call_seq = admission.next_seq - 1
    undecided = session.undecided.get(call_seq)
    if undecided is not None:
        need_task()
        await undecided.wait()
    aborted = call_seq in session.aborted_calls
    header = session.header
    return {
        "decision": ABORTED if aborted else DISPATCH,
        "callSeq": call_seq,
        "nextSeq": admission.next_seq,
        "durableSeq": session.durable_seq,
        "idempotencyKey": idempotency_key(header.id, header.created_at, call_seq, call_id),
        "duplicate": admission.duplicate,
        "result": aborted_result() if aborted else None,
    }


def _known_start(session: Session, start: ToolStart, asked: Asked) -> Call | None:
    """The call as the last turn knows it, if it was started or answered.

    Some providers use an id again in a later step: a fresh call whose own events ask for it anew is judged after them.
    """
    known = session.fold.calls.get(start.call_id)
    if known is None or (known.started_seq is None and known.result_seq is None):
        return None
    if known.result_seq is not None:
        fresh = asked.expected_seq in {None, session.next_seq}
        if start.call_id in session.fold.pending or (fresh and asked.events):
            return None
    return known


def _is_open(fold: Fold, start: ToolStart, seq: int) -> bool:
    """Whether the start at `seq` is of a call that still waits for its result."""
    if start.parent_call_id is not None:
        nested = fold.nested.get(start.call_id)
        return nested is not None and nested.seq == seq
    call = fold.calls.get(start.call_id)
    return call is not None and call.started_seq == seq and call.result_seq is None


def _settled(start: ToolStart, seq: int, index: int) -> EventInvalidError:
    return EventInvalidError(
        f"tool call '{start.call_id}' was started at seq {seq} and is settled since; a call is started once",
        index=index,
        rule="call-answered",
        callSeq=seq,
        resultSeq=None,
    )


async def _repeated(session: Session, start: ToolStart, asked: Asked, known: Call) -> Admission:
    """Answer a repeated start with the first admission; refuse anything else."""
    first = asked.expected_seq
    if known.result_seq is None and known.started_seq is not None and first is not None:
        need_task()
        found = await session.find(asked)
        if found is not None and found.next_seq == known.started_seq + 1:
            return found
    state = "started" if known.result_seq is None else "answered"
    at = known.started_seq if known.result_seq is None else known.result_seq
    raise EventInvalidError(
        f"tool call '{start.call_id}' was {state} at seq {at}; a call is started once:"
        " record its result, or let the model ask again under a new id",
        index=len(asked.events),
        rule="call-started" if known.result_seq is None else "call-answered",
        callSeq=known.started_seq,
        resultSeq=known.result_seq,
    )


def aborted_result() -> dict[str, Any]:
    """The canonical result of a call that was cancelled before its body ran."""
    return {
        "content": [{"type": "text", "text": f"Error: {_ABORTED_TEXT}"}],
        "isError": True,
        "error": {
            "message": _ABORTED_TEXT,
            "info": {"name": "AbortError", "code": ABORTED},
        },
    }


def error_result(error: DshdError) -> dict[str, Any]:
    """The result to record for a call whose start could not be made durable: its body did not run."""
    return {
        "content": [{"type": "text", "text": f"Error: {error.message}"}],
        "isError": True,
        "error": {
            "message": error.message,
            "info": {"name": type(error).__name__, "code": error.kind},
        },
    }
