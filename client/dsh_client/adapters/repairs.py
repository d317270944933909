"""What the last run of an agent left unfinished, and how the next one learns of it.

Reads the session through a handle that was just opened, and rewrites the answers that recovery gave to cut-off calls
where more is known: what the tool says of itself, what a `verify` hook found. The one rule: an answer is rewritten in
place, its error mark stays, and nothing is called done that nobody looked at.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from dsh_client.adapters.effects import ASK, EVENT_TYPE, Ask, Unfinished, repeatable
from dsh_client.adapters.seam import jsonable
from dsh_client.exchange import as_object
from dsh_client.opening import Header
from dsh_client.ports import run
from dsh_client.shapes import blocks
from dsh_protocol.errors import EventInvalidError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_client.adapters.effects import Verify
    from dsh_client.blocking import Client
    from dsh_client.handle import Handle
    from dsh_client.shapes import Json

UNKNOWN = "TOOL_OUTCOME_UNKNOWN"
NOT_STARTED = "TOOL_NOT_STARTED"
TAIL = 64
"""How many of the last messages are kept to recognise a prompt that is said again."""


def new_header(client: Client, cwd: str | None, parent: str | None) -> Header:
    """Return the header of a session that may have to be made; a child's names its parent, one level deeper."""
    header = Header()
    if cwd is not None:
        header["cwd"] = cwd
    if parent is not None:
        found = client.call("session.stat", id=parent)["session"]["header"]
        header["parentSession"] = parent
        header["origin"] = "subagent"
        header["delegationDepth"] = found.get("delegationDepth", 0) + 1
    return header


def history(handle: Handle) -> tuple[list[Json], Json | None]:
    """Return the derived history of a session, and the header of its last request."""
    messages: list[Json] = []
    header: Json | None = None
    params: dict[str, Any] = {"id": handle.id}
    while True:
        page = run(handle.ask("session.messages", params))
        messages += page["messages"]
        header = page.get("requestHeader") or header  # a page of large messages has no room for it
        if page.get("nextOffset") is None or not page["messages"]:
            return messages, header
        params["offset"] = page["nextOffset"]


def known(handle: Handle) -> list[Json]:
    """Return the repairs of a handle that was just opened, each with the `effect` that was recorded with its call."""
    told: list[Json] = (handle.recovery or {}).get("repairs") or []
    found: list[Json] = [dict(one) for one in told]
    for repair in found:
        seq = repair.get("callSeq")
        if not seq:
            continue
        page = run(handle.ask("session.read", {"id": handle.id, "offset": seq - 1, "length": 1}))
        for event in page["events"]:
            data = as_object(event.get("data")) or {}
            if event["type"] == EVENT_TYPE and data.get("callId") == repair["callId"]:
                repair["effect"] = data.get("effect")
    return found


def revise(handle: Handle, repairs: Sequence[Json], verify: Verify | None) -> None:
    """Ask the hook about unknown outcomes and rewrite what the model will read about them; once for each recovery."""
    answers = _answers(handle)
    for repair in repairs:
        answer = answers.get(repair["callId"])
        if repair["code"] != UNKNOWN or answer is None:
            continue
        found = ASK if verify is None else verify(_unfinished(repair))
        if not isinstance(found, Ask):
            repair["verified"] = True
            said = [
                _text("This call was cut off; what came of it has been checked since. Its result:")
            ]
            _rewrite(handle, answer, [*said, *blocks(jsonable(found))])
        elif repair.get("effect"):
            _rewrite(handle, answer, [_text(f"{repair['message']} {_declared(repair['effect'])}")])


def may_repeat(repair: Json) -> bool:
    """Whether a cut-off call may be issued again without asking: it never began, or its body says it does no harm."""
    if repair.get("verified"):
        return False
    return repair["code"] == NOT_STARTED or repeatable(repair.get("effect"))


def issued_again(repairs: Sequence[Json]) -> Json:
    """Return an assistant message that issues cut-off calls again, under ids of their own."""
    blocks: list[Json] = [
        {
            "type": "tool-call",
            "id": f"{repair['callId']}-again-{uuid4().hex[:8]}",
            "name": repair["name"],
            "arguments": repair["arguments"],
        }
        for repair in repairs
    ]
    return {"id": str(uuid4()), "role": "assistant", "content": blocks}


def ends_with_prompts(tail: Sequence[Json], prompts: Sequence[Json]) -> bool:
    """Whether the turn that was cut off began with the same words and still waits for the model."""
    if not tail or tail[-1].get("role") == "assistant":
        return False
    said = [message for message in tail if message["source"]["kind"] == "user"]
    last = [_words(message) for message in said[-len(prompts) :]]
    return last == [_words(prompt) for prompt in prompts]


def result_of(message: Json) -> tuple[str, Json] | None:
    """Return the call and the result of a message that answers a call."""
    source = as_object(message.get("source")) or {}
    if source.get("kind") != "tool":
        return None
    block = as_object(message["content"][0]) or {}
    return source["callId"], {
        "content": block.get("content", []),
        "isError": bool(block.get("isError")),
    }


def text_of(content: Any) -> str:
    """Return the text of blocks, one after the other; what is no text is left out."""
    if isinstance(content, str):
        return content
    found = [as_object(block) or {} for block in cast("list[Any]", content)]
    return "\n".join(block["text"] for block in found if isinstance(block.get("text"), str))


def _words(message: Json) -> Any:
    content = message.get("content")
    return (
        content if isinstance(content, str) else [as_object(b) for b in cast("list[Any]", content)]
    )


def _answers(handle: Handle) -> dict[str, Json]:
    """Return recovery's answers to cut-off calls, as stored, by call id."""
    found: dict[str, Json] = {}
    closers: list[Json] = (handle.recovery or {}).get("closers") or []
    for event in closers:
        if event["type"] == "tool/result":
            found[event["data"]["message"]["source"]["callId"]] = event
    return found


def _rewrite(handle: Handle, answer: Json, content: list[Json]) -> None:
    data, seq = answer["data"], answer["seq"]
    message = data["message"]
    block = {**message["content"][0], "content": content}
    event = {
        "type": "tool/result",
        "data": {**data, "message": {**message, "content": [block]}},
        "surfaceOp": {"op": "replace", "start": seq, "end": seq},
        "sourceEventSeqs": [seq],
    }
    with suppress(
        EventInvalidError
    ):  # rewritten before, by a run that was cut off before its first turn
        run(handle.record([handle.stamp(event)]))


def _unfinished(repair: Json) -> Unfinished:
    return Unfinished(
        repair["callId"],
        repair["name"],
        repair["arguments"],
        repair["idempotencyKey"],
        repair.get("effect"),
    )


def _declared(effect: str) -> str:
    if repeatable(cast("Any", effect)):
        return f"The tool is declared {effect}: this call may be made again without asking."
    return f"The tool is declared {effect}: do not make this call again before you have looked or asked."


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
