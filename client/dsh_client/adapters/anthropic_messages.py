"""Messages of Anthropic's API and the log's, both ways; and the pieces of a streamed one.

Pure, and without the SDK. The one rule: every `tool_use` of a history is answered in the message that follows it, all
answers first; an answer with blocks that only the API understands (thinking, server tools) is stored whole.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from dsh_client.adapters.repairs import result_of
from dsh_client.adapters.seam import as_list, call_delta, jsonable, text_delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsh_client.adapters.recorder import Recorder
    from dsh_client.shapes import Json

_WHOLE = "anthropic"
_PLAIN = {"text", "tool_use"}


def plain(value: Any) -> Any:
    """Return a message or block without model classes in it."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json", exclude_none=True)
    if isinstance(value, dict):
        return {key: plain(member) for key, member in cast("Json", value).items()}
    return [plain(one) for one in as_list(value)] if isinstance(value, list | tuple) else value


def blocks(content: Any) -> list[Json]:
    """Return content as blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    found: list[Json] = [plain(block) for block in content]
    return found


def text_or_json(system: Any) -> str:
    """Return a system prompt as text."""
    found = blocks(system)
    return "\n\n".join(str(block.get("text", "")) for block in found)


def to_prompt(content: Any) -> Json:
    """Return the log's form of something said to the model."""
    return {
        "id": str(uuid4()),
        "role": "user",
        "source": {"kind": "user"},
        "content": blocks(content),
    }


def to_answer(message: Json) -> Json:
    """Return the log's form of the model's message."""
    content = blocks(message["content"])
    found: list[Json] = []
    for block in content:
        if block["type"] == "text":
            found.append({"type": "text", "text": block["text"]})
        elif block["type"] == "tool_use":
            arguments = json.dumps(block["input"], ensure_ascii=False)
            call = {"id": block["id"], "name": block["name"], "arguments": arguments}
            found.append({"type": "tool-call", **call})
        elif block["type"] == "thinking":
            found.append({"type": "reasoning", "text": block.get("thinking", "")})
    if any(block["type"] not in _PLAIN for block in content):
        found.append({"type": _WHOLE, "content": jsonable(content)})
    return {"id": message.get("id") or str(uuid4()), "role": "assistant", "content": found}


def to_usage(message: Json) -> Json:
    """Return the token counts of an answer."""
    usage: Json = message.get("usage") or {}
    return {
        "inputTokens": usage.get("input_tokens", 0),
        "outputTokens": usage.get("output_tokens", 0),
    }


def results_of(messages: Iterable[Json]) -> dict[str, Json]:
    """Return the answers to calls among messages, by call id."""
    return {
        block["tool_use_id"]: {
            "content": blocks(block.get("content") or []),
            "isError": bool(block.get("is_error")),
        }
        for message in messages
        for block in blocks(message["content"])
        if block["type"] == "tool_result"
    }


def from_log(messages: Sequence[Json]) -> list[Json]:
    """Return a history for `messages=`."""
    return joined([_from_log(message) for message in messages])


def joined(messages: Iterable[Json]) -> list[Json]:
    """Return messages in which user and assistant take turns, answers to calls before anything else."""
    found: list[Json] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"]:
            both = [*blocks(found[-1]["content"]), *blocks(message["content"])]
            both.sort(key=lambda block: block["type"] != "tool_result")
            found[-1] = {"role": message["role"], "content": both}
        else:
            found.append(message)
    return found


def _from_log(message: Json) -> Json:
    answered = result_of(message)
    if answered is not None:
        call_id, result = answered
        block: Json = {"type": "tool_result", "tool_use_id": call_id, "content": result["content"]}
        return {
            "role": "user",
            "content": [{**block, "is_error": True} if result["isError"] else block],
        }
    content: list[Json] = message["content"]
    if message["role"] != "assistant":
        return {"role": "user", "content": content}
    whole = next((block["content"] for block in content if block.get("type") == _WHOLE), None)
    return {"role": "assistant", "content": whole or [_block(block) for block in content]}


def _block(block: Json) -> Json:
    if block["type"] == "tool-call":
        given: Json = {"input": json.loads(block["arguments"]), "name": block["name"]}
        return {"type": "tool_use", "id": block["id"], **given}
    return block


class Known:
    """Which of a request's messages the log has: requests carry the whole history each time."""

    def __init__(self) -> None:
        """Know nothing."""
        self._answers: set[str] = set()
        self._prompts: Counter[str] = Counter()
        self._read = False
        self._met: Counter[str] = Counter()

    def add_history(self, recorder: Recorder) -> None:
        """Take in what the session holds, once."""
        self._met = Counter()
        if self._read:
            return
        self._read = True
        for message in from_log(recorder.begin_run(new=False)):
            if message["role"] == "assistant":
                self.add(message)
            else:
                self._prompts.update(map(_key, _spoken(message)))

    def add(self, message: Json) -> None:
        """Take in an answer of the model."""
        self._answers.add(_key(_essence(message)))

    def has(self, message: Json) -> bool:
        """Whether an answer is in the log."""
        return _key(_essence(message)) in self._answers

    def unsaid(self, message: Json) -> list[list[Json]]:
        """Return the parts of a user's message that the log does not have; none or all of it, as one prompt."""
        fresh: list[Json] = []
        for block in _spoken(message):
            key = _key(block)
            self._met[key] += 1
            if self._met[key] > self._prompts[key]:
                fresh.append(block)
        return [fresh] if fresh else []

    def said(self, messages: Iterable[Json]) -> None:
        """Note that all of a request's prompts are in the log now."""
        self._prompts = Counter(
            _key(block) for m in messages if m["role"] == "user" for block in _spoken(m)
        )


def _spoken(message: Json) -> list[Json]:
    return [block for block in blocks(message["content"]) if block["type"] != "tool_result"]


def _essence(message: Json) -> list[Any]:
    """What stays the same of an answer however it is written: its words and its calls."""
    content = blocks(message["content"])
    return [block.get("id") or block.get("text") for block in content if block["type"] in _PLAIN]


def _key(value: Any) -> str:
    if isinstance(value, dict):
        value = {
            key: member for key, member in cast("Json", value).items() if key != "cache_control"
        }
    return json.dumps(value, sort_keys=True, default=str)


class Pieces:
    """A streamed message, put together from the events of the stream.

    Attributes:
        fresh: What was added since somebody took it from here, as the log's deltas.
    """

    def __init__(self) -> None:
        """Begin before the first byte."""
        self.fresh: list[Json] = []
        self._rest = b""
        self._message: Json = {}
        self._inputs: dict[int, str] = {}

    def feed(self, chunk: bytes) -> Json | None:
        """Take bytes in; return the message when its end is among them."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        done: Json | None = None
        for line in lines:
            if line.startswith(b"data:"):
                event: Json = json.loads(line[5:])
                done = self._message if self.take(event) else done
        return done

    def take(self, event: Json) -> bool:
        """Take an event in; return whether it is the message's end."""
        kind, content = event.get("type"), self._message.get("content")
        if kind == "message_start":
            self._message = {**event["message"], "content": []}
        elif kind == "content_block_start" and content is not None:
            content.append(dict(event["content_block"]))
        elif kind == "content_block_delta" and content is not None:
            self._add(content[event["index"]], event["index"], event["delta"])
        elif (
            kind == "content_block_stop" and event["index"] in self._inputs and content is not None
        ):
            content[event["index"]]["input"] = json.loads(self._inputs[event["index"]] or "{}")
        elif kind == "message_delta":
            usage = {**self._message.get("usage", {}), **event.get("usage", {})}
            self._message = {**self._message, **event["delta"], "usage": usage}
        return kind == "message_stop"

    def _add(self, block: Json, index: int, delta: Json) -> None:
        if delta["type"] == "input_json_delta":
            name = None if index in self._inputs else block.get("name")
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
            self.fresh.append(call_delta(index, block["id"], name, delta["partial_json"]))
        for kind in ("text", "thinking"):
            if delta.get(kind):
                reasoning = kind == "thinking"
                self.fresh.append(text_delta(index, delta[kind], reasoning=reasoning))
        for key in ("text", "thinking", "signature"):
            if key in delta:
                block[key] = block.get(key, "") + delta[key]
