"""Items of the Responses API and the log's messages, both ways; for openai-agents and for the openai SDK.

Pure, and without either of them. The one rule: every `function_call` of a history has its `function_call_output` after
it; an answer with items that only the API understands (reasoning, hosted tools) is stored whole beside its text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from dsh_client.adapters.repairs import result_of, text_of
from dsh_client.adapters.seam import as_list, call_delta, jsonable, text_delta
from dsh_client.exchange import as_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsh_client.shapes import Json

_WHOLE = "openai-items"
_SAID = {"user", "system", "developer"}
_TEXT = {"response.output_text.delta", "response.refusal.delta"}
_REASONING = {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}
_ARGUMENTS = "response.function_call_arguments.delta"


def plain(item: Any) -> Json:
    """Return an item as a dictionary, whatever model class it is of."""
    dump = getattr(item, "model_dump", None)
    found: Any = dump(mode="json", exclude_unset=True) if dump else item
    return dict(found)


def is_prompt(item: Json) -> bool:
    """Whether an item was said to the model."""
    return item.get("role") in _SAID and item.get("type", "message") == "message"


def key_of(item: Json) -> str:
    """Return what tells a prompt from others: who said what."""
    return json.dumps([item["role"], text_or_content(item)], sort_keys=True, default=str)


def text_or_content(item: Json) -> Any:
    """Return a prompt's words; its content where that is more than text."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    blocks = [as_object(block) or {} for block in cast("list[Any]", content)]
    if all(block.get("type") in {"input_text", "text"} for block in blocks):
        return text_of(blocks)
    return blocks


def to_prompt(item: Json) -> Json:
    """Return the log's form of something said to the model."""
    words = text_or_content(item)
    blocks = [{"type": "text", "text": words}] if isinstance(words, str) else words
    return {"id": str(uuid4()), "role": "user", "source": {"kind": item["role"]}, "content": blocks}


def to_answer(items: Iterable[Any]) -> Json:
    """Return the log's form of what the model answered."""
    found = [plain(item) for item in items]
    blocks: list[Json] = []
    for item in found:
        if item.get("type") == "function_call":
            call = {"id": item["call_id"], "name": item["name"], "arguments": item["arguments"]}
            blocks.append({"type": "tool-call", **call})
        elif item.get("type") == "message":
            blocks.append({"type": "text", "text": _spoken(item)})
        elif item.get("type") == "reasoning":
            blocks.append({"type": "reasoning", "text": text_of(item.get("summary") or [])})
    if any(item.get("type") not in {"function_call", "message"} for item in found):
        blocks.append({"type": _WHOLE, "items": jsonable(found)})
    return {"id": str(uuid4()), "role": "assistant", "content": blocks}


def results_of(items: Iterable[Json]) -> dict[str, Json]:
    """Return the outputs among items, by call id."""
    return {
        item["call_id"]: to_result(item.get("output"))
        for item in items
        if item.get("type") == "function_call_output"
    }


def to_result(output: Any) -> Json:
    """Return the log's form of what a tool returned."""
    if isinstance(output, list):
        blocks = [as_object(b) or {"type": "text", "text": str(b)} for b in as_list(output)]
        return {"content": blocks}
    text = output if isinstance(output, str) else json.dumps(jsonable(output), ensure_ascii=False)
    return {"content": [{"type": "text", "text": text}]}


def from_log(messages: Sequence[Json]) -> list[Json]:
    """Return a history as input items."""
    found: list[Json] = []
    for message in messages:
        answered = result_of(message)
        if answered is not None:
            output = text_of(answered[1]["content"])
            found.append({"type": "function_call_output", "call_id": answered[0], "output": output})
        elif message["role"] == "assistant":
            found += _answer(message)
        else:
            kind = message["source"]["kind"]
            role = kind if kind in _SAID else "user"
            found.append({"role": role, "content": _said(message["content"])})
    return found


def _answer(message: Json) -> list[Json]:
    found: list[Json] = []
    for block in message["content"]:
        if block.get("type") == _WHOLE:
            whole: list[Json] = block["items"]
            return whole
        if block.get("type") == "tool-call":
            call = {"call_id": block["id"], "name": block["name"], "arguments": block["arguments"]}
            found.append({"type": "function_call", **call})
        elif block.get("type") == "text" and block["text"]:
            found.append({"role": "assistant", "content": block["text"]})
    return found


def _said(content: list[Json]) -> Any:
    if all(block.get("type") == "text" for block in content):
        return text_of(content)
    return [
        {"type": "input_text", "text": b["text"]} if b.get("type") == "text" else b for b in content
    ]


def _spoken(item: Json) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    blocks = [as_object(block) or {} for block in cast("list[Any]", content or [])]
    return "".join(str(block.get("text") or block.get("refusal") or "") for block in blocks)


class Chunks:
    """The pieces of one streamed answer, as the log has them."""

    def __init__(self) -> None:
        """Begin before the first event."""
        self._calls: dict[int, Json] = {}
        self._told: set[int] = set()

    def of(self, event: Any) -> list[Json]:
        """Return what an event of the stream adds; of an item that came without pieces, all of it at its end."""
        kind, index = event.type, getattr(event, "output_index", 0)
        if kind == "response.output_item.added":
            self._calls[index] = plain(event.item)
        elif kind in _TEXT or kind in _REASONING:
            self._told.add(index)
            return [text_delta(index, event.delta, reasoning=kind in _REASONING)]
        elif kind == _ARGUMENTS:
            return self._arguments(index, event.delta)
        elif kind == "response.output_item.done" and index not in self._told:
            return self._whole(index, plain(event.item))
        return []

    def _arguments(self, index: int, piece: str) -> list[Json]:
        call = self._calls.get(index, {})
        if "call_id" not in call:
            return []
        name = None if index in self._told else call["name"]
        self._told.add(index)
        return [call_delta(index, call["call_id"], name, piece)]

    def _whole(self, index: int, item: Json) -> list[Json]:
        if item.get("type") == "function_call":
            self._calls[index] = item
            return self._arguments(index, item["arguments"])
        words = _spoken(item) if item.get("type") == "message" else ""
        return [text_delta(index, words)] if words else []
