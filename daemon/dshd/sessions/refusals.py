"""The rules that an appended event can break, by name, and how a refusal says so.

The one rule: a name, once given, stays; programs branch on it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from dsh_protocol import events as protocol_events
from dsh_protocol.errors import EventInvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dshd.sessions.fold import Call

RULES: Mapping[str, str] = MappingProxyType(
    {
        "call-answered": "the call already has its result",
        "call-block": "a tool-call block needs a non-empty id, a name and its arguments as text",
        "call-differs": "name and arguments of the call must be those of the message that asked for it",
        "call-id-repeated": "a call id may be used once in a step",
        "call-not-asked": "no assistant message of this step asks for the call",
        "call-not-durable": "the outer call must be durable before a nested one starts",
        "call-not-started": "the call has not been started; start it with checkpoint.tool first",
        "call-started": "the call has already been started, and a call is started once",
        "call-unanswered": "a call of this step has no result yet; record it first",
        "chunk-call-id": "a tool-call delta needs the id of its call",
        "chunk-index": "a chunk's index must be an integer from 0",
        "chunk-shape": "an assistant/chunk needs a chunk object with a type",
        "closer": "only recovery writes this event",
        "data-not-object": "data must be an object",
        "dispatch-differs": "the settled dispatch must repeat what its start says",
        "dispatch-id-repeated": "the id of this dispatch is taken",
        "dispatch-not-started": "no unsettled dispatch of that id",
        "dispatch-shape": "a nested dispatch needs rootCallId, parentCallId, subCallId, name and arguments",
        "end-seed": "session/end-seed is written by the daemon",
        "invalid-envelope": "the event's envelope is malformed",
        "message-before-result": "no message may stand between a message's calls and their results",
        "no-open-step": "no step is open",
        "no-open-turn": "no turn is open",
        "no-request-header": "no request/header is in force",
        "reserved-type": "the type names a row of the log",
        "rewrite-of-unanswered-call": "the replacement would answer a call that has no result yet",
        "step-number": "the step's number must follow the one before it",
        "step-open": "a step is open; end it first",
        "turn-number": "the turn's number must follow the one before it",
        "turn-open": "a turn is open; end it first",
        "turn-reason": "a turn/end needs a reason with a kind, aborted its inner reason, error its message and code",
        "unknown-event-type": "the type is not of format version 0; mark it ignorable: true",
        "wrong-step": "the event names another step than the open one",
        "wrong-turn": "the event names another turn than the open one",
    }
)
"""Every rule of the order of a log; the rules for one event alone are in `dsh_protocol.events`."""


def refuse(rule: str, detail: str = "", **facts: Any) -> NoReturn:
    """Raise `EventInvalidError` for a broken rule; `admit` adds which event it was."""
    text = RULES.get(rule) or protocol_events.defect_text(rule)
    raise EventInvalidError(f"{text} ({detail})" if detail else text, rule=rule, **facts)


def call_facts(call: Call | None) -> dict[str, int | None]:
    """Return what is known of a call, as the facts of a refusal."""
    if call is None:
        return {"callSeq": None, "resultSeq": None}
    return {"callSeq": call.started_seq, "resultSeq": call.result_seq}
