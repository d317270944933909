"""pydantic-ai's messages and the log's, both ways.

Pure. The one rule: what the log gives back is a history that pydantic-ai takes; an answer with parts that only it
understands (thinking, native tools) is stored whole beside what everybody understands.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from dsh_client.adapters.repairs import result_of, text_of
from dsh_client.adapters.seam import call_delta, jsonable, load, text_delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsh_client.shapes import Json

_pai: Any = load("pydantic_ai.messages", "pydantic-ai-slim")
_core: Any = load("pydantic_core", "pydantic-ai-slim")

_WHOLE = "pydantic-ai"
_PROMPTS = {"user-prompt": "user", "system-prompt": "system", "retry-feedback": "retry"}
_PLAIN = {"text", "tool-call"}


def key_of(part: Any) -> tuple[Any, ...]:
    """Return what tells a part or an answer from others, also after pydantic-ai has copied or merged it."""
    if part.__class__.__name__ == "ModelResponse":
        calls = tuple(getattr(one, "tool_call_id", None) for one in part.parts)
        return ("answer", part.timestamp, calls, len(part.parts))
    return (part.part_kind, getattr(part, "timestamp", None), str(part.content)[:200])


def is_answer(message: Any) -> bool:
    """Whether a message is the model's."""
    return bool(message.kind == "response")


def prompt_parts(message: Any) -> list[Any]:
    """Return the parts of a request that somebody said to the model."""
    return [part for part in message.parts if part.part_kind in _PROMPTS]


def to_prompt(part: Any) -> Json:
    """Return the log's form of something said to the model."""
    content: Any = part.content
    blocks: list[Json] = []
    for item in [content] if isinstance(content, str) else content:
        if isinstance(item, str):
            blocks.append({"type": "text", "text": item})
        else:
            blocks.append({"type": _WHOLE, "content": _dumped(item)})
    return {
        "id": str(uuid4()),
        "role": "user",
        "source": {"kind": _PROMPTS[part.part_kind]},
        "content": blocks,
    }


def said(prompt: Any) -> Json:
    """Return the log's form of what the caller of a run says."""
    return to_prompt(_pai.UserPromptPart(content=prompt))


def to_answer(message: Any) -> Json:
    """Return the log's form of the model's message."""
    blocks: list[Json] = []
    for part in message.parts:
        if part.part_kind == "text":
            blocks.append({"type": "text", "text": part.content})
        elif part.part_kind == "thinking":
            blocks.append({"type": "reasoning", "text": part.content})
        elif part.part_kind == "tool-call":
            arguments = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
            call = {"id": part.tool_call_id, "name": part.tool_name, "arguments": arguments or "{}"}
            blocks.append({"type": "tool-call", **call})
    if any(part.part_kind not in _PLAIN for part in message.parts):
        blocks.append({"type": _WHOLE, "message": _dumped_messages([message])[0]})
    return {"id": str(uuid4()), "role": "assistant", "content": blocks}


class Chunks:
    """Turns the events of a stream into the log's deltas; one for each answer."""

    def __init__(self) -> None:
        """Begin before the first event."""
        self._ids: dict[int, str] = {}

    def of(self, event: Any) -> Json | None:
        """Return what an event adds to the answer; None where it adds nothing that the log has a form for."""
        part: Any = getattr(event, "part", None) or getattr(event, "delta", None)
        kind = getattr(part, "part_kind", None) or getattr(part, "part_delta_kind", None)
        if event.event_kind not in {"part_start", "part_delta"}:
            return None
        if kind in {"text", "thinking"}:
            text = getattr(part, "content", None) or getattr(part, "content_delta", None)
            return text_delta(event.index, text, reasoning=kind == "thinking") if text else None
        if kind not in {"tool-call", "tool_call"}:
            return None
        call_id = part.tool_call_id or self._ids.get(event.index)
        if call_id is None:
            return None
        self._ids[event.index] = call_id
        given = getattr(part, "args", None) or getattr(part, "args_delta", None)
        text = given if isinstance(given, str) else json.dumps(given) if given else ""
        name = getattr(part, "tool_name", None)
        return call_delta(event.index, call_id, name, text)


def to_usage(message: Any) -> Json:
    """Return the token counts of an answer."""
    return {"inputTokens": message.usage.input_tokens, "outputTokens": message.usage.output_tokens}


def to_result(value: Any, *, is_error: bool = False) -> Json:
    """Return the log's form of what a tool returned."""
    value = getattr(value, "return_value", value)
    text = (
        value if isinstance(value, str) else _core.to_json(value, serialize_unknown=True).decode()
    )
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def results_of(messages: Iterable[Any]) -> dict[str, Json]:
    """Return what pydantic-ai tells the model of calls, by call id."""
    found: dict[str, Json] = {}
    for message in messages:
        parts: list[Any] = [] if is_answer(message) else message.parts
        for part in parts:
            call_id = getattr(part, "tool_call_id", None)
            if call_id and part.part_kind not in _PROMPTS:
                told = getattr(part, "outcome", "success") == "success"
                found[call_id] = to_result(part.content, is_error=not told)
    return found


def from_log(messages: Sequence[Json]) -> list[Any]:
    """Return a history of pydantic-ai's messages."""
    found: list[Any] = []
    names: dict[str, str] = {}
    for message in messages:
        if message["role"] == "assistant":
            names.update(
                {b["id"]: b["name"] for b in message["content"] if b.get("type") == "tool-call"}
            )
            found.append(_answer(message))
        elif found and not is_answer(found[-1]):
            found[-1].parts = [*found[-1].parts, _part(message, names)]
        else:
            found.append(_pai.ModelRequest(parts=[_part(message, names)]))
    return found


def _answer(message: Json) -> Any:
    parts: list[Any] = []
    for block in message["content"]:
        if block.get("type") == _WHOLE:
            return _pai.ModelMessagesTypeAdapter.validate_python([block["message"]])[0]
        if block.get("type") == "text":
            parts.append(_pai.TextPart(content=block["text"]))
        elif block.get("type") == "tool-call":
            call = (block["name"], block["arguments"], block["id"])
            parts.append(_pai.ToolCallPart(*call))
    return _pai.ModelResponse(parts=parts)


def _part(message: Json, names: dict[str, str]) -> Any:
    answered = result_of(message)
    if answered is not None:
        call_id, result = answered
        outcome = "failed" if result["isError"] else "success"
        return _pai.ToolReturnPart(
            names.get(call_id, ""), text_of(result["content"]), call_id, outcome=outcome
        )
    kind = message["source"]["kind"]
    if kind == "system":
        return _pai.SystemPromptPart(content=text_of(message["content"]))
    blocks = cast("list[Json]", message["content"])
    items = [b["text"] if b.get("type") == "text" else _loaded(b.get("content")) for b in blocks]
    content = items[0] if len(items) == 1 and isinstance(items[0], str) else items
    return _pai.UserPromptPart(content=content)


def _dumped(item: Any) -> Any:
    part = _pai.UserPromptPart(content=[item])
    return _dumped_messages([_pai.ModelRequest(parts=[part])])[0]["parts"][0]["content"][0]


def _loaded(item: Any) -> Any:
    part = {"part_kind": "user-prompt", "content": [item]}
    made = _pai.ModelMessagesTypeAdapter.validate_python([{"kind": "request", "parts": [part]}])
    return made[0].parts[0].content[0]


def _dumped_messages(messages: list[Any]) -> list[Json]:
    found: list[Json] = jsonable(_pai.ModelMessagesTypeAdapter.dump_python(messages, mode="json"))
    return found
