"""LangChain's messages and the log's, both ways.

Pure. The one rule: what the log gives back is a history that a provider takes, and as rich as what went in: blocks that
only LangChain understands are stored as they are, its extras of an answer in a block of type `langchain`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from dsh_client.adapters.repairs import result_of
from dsh_client.adapters.seam import as_mapping, call_delta, jsonable, load, text_delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dsh_client.shapes import Json

_messages: Any = load("langchain_core.messages", "langchain")

_EXTRAS = "langchain"


def is_prompt(message: Any) -> bool:
    """Whether a message is neither the model's nor a tool's."""
    return message.type not in {"ai", "tool"}


def is_answer(message: Any) -> bool:
    """Whether a message is the model's."""
    return bool(message.type == "ai")


def to_prompt(message: Any) -> Json:
    """Return the log's form of a user's (or the system's) message."""
    kind = "user" if message.type == "human" else message.type
    source: Json = {"kind": kind}
    found: Json = {"role": "user", "source": source, "content": _blocks(message.content)}
    return {"id": message.id, **found} if message.id else found


def to_answer(message: Any) -> Json:
    """Return the log's form of the model's message; calls without an id get one, in the message too."""
    content = _blocks(message.content)
    for number, call in enumerate(message.tool_calls):
        if not call.get("id"):
            call["id"] = f"{message.id or 'call'}-{number}"
        arguments = json.dumps(call["args"], ensure_ascii=False)
        block = {
            "type": "tool-call",
            "id": call["id"],
            "name": call["name"],
            "arguments": arguments,
        }
        content.append(block)
    if message.additional_kwargs:
        content.append({"type": _EXTRAS, "additional_kwargs": jsonable(message.additional_kwargs)})
    found: Json = {"role": "assistant", "content": content}
    return {"id": message.id, **found} if message.id else found


def to_result(message: Any) -> Json:
    """Return the log's form of what a tool answered."""
    return {"content": _blocks(message.content), "isError": message.status == "error"}


def to_usage(message: Any) -> Json | None:
    """Return the token counts of an answer, where it has any."""
    found: Any = message.usage_metadata
    if not found:
        return None
    return {"inputTokens": found["input_tokens"], "outputTokens": found["output_tokens"]}


def results_of(messages: Iterable[Any]) -> dict[str, Json]:
    """Return what tools answered, by call id."""
    return {m.tool_call_id: to_result(m) for m in messages if m.type == "tool"}


def from_log(messages: Sequence[Json]) -> list[Any]:
    """Return a history of LangChain's messages, with the ids that the log has."""
    names: dict[str, str] = {}
    return [_from_log(message, names) for message in messages]


def tool_message(call_id: str, name: str, result: Json, message_id: str | None = None) -> Any:
    """Return LangChain's message for a result that the log has."""
    status = "error" if result.get("isError") else "success"
    content = _content(result["content"])
    return _messages.ToolMessage(
        content=content, tool_call_id=call_id, name=name, status=status, id=message_id
    )


def _from_log(message: Json, names: dict[str, str]) -> Any:
    if message["role"] == "assistant":
        calls = [_call(block) for block in message["content"] if block.get("type") == "tool-call"]
        names.update({call["id"]: call["name"] for call in calls})
        blocks: list[Json] = message["content"]
        extras = next((block for block in blocks if block.get("type") == _EXTRAS), dict[str, Any]())
        return _messages.AIMessage(
            content=_content([b for b in message["content"] if b.get("type") not in _NOT_CONTENT]),
            tool_calls=calls,
            additional_kwargs=extras.get("additional_kwargs", {}),
            id=message["id"],
        )
    answered = result_of(message)
    if answered is not None:
        call_id, result = answered
        return tool_message(call_id, names.get(call_id, ""), result, message["id"])
    kind = message["source"]["kind"]
    made = _messages.SystemMessage if kind == "system" else _messages.HumanMessage
    return made(content=_content(message["content"]), id=message["id"])


_NOT_CONTENT = {"tool-call", _EXTRAS}


def _call(block: Json) -> Json:
    try:
        parsed: Any = json.loads(block["arguments"])
    except ValueError:
        parsed = {"arguments": block["arguments"]}
    args: Any = {"arguments": parsed} if as_mapping(parsed) is None else parsed
    return {"type": "tool_call", "id": block["id"], "name": block["name"], "args": args}


def _blocks(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    found = [
        {"type": "text", "text": b} if isinstance(b, str) else b for b in cast("list[Any]", content)
    ]
    return [dict(cast("Mapping[str, Any]", block)) for block in found]


def _content(content: Sequence[Json]) -> Any:
    """Return a text where there is nothing else, which every provider takes."""
    if not content:
        return ""
    if len(content) == 1 and content[0].keys() == {"type", "text"}:
        return content[0]["text"]
    return list(content)


class Chunks:
    """Turns the pieces of streamed answers into the log's deltas."""

    def __init__(self) -> None:
        """Begin before the first piece."""
        self._ids: dict[int, str] = {}

    def of(self, generated: Any) -> list[Json]:
        """Return what a piece adds to the answer."""
        message = getattr(generated, "message", None)
        if message is None:
            return []
        text = str(message.text)
        found: list[Json] = [text_delta(0, text)] if text else []
        pieces: list[Json] = getattr(message, "tool_call_chunks", None) or []
        for piece in pieces:
            at = 1 + (piece.get("index") or 0)
            if piece.get("id"):
                self._ids[at] = piece["id"]
            if at in self._ids:
                given = piece.get("args") or ""
                found.append(call_delta(at, self._ids[at], piece.get("name"), given))
        return found
