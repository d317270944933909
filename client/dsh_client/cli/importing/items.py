"""Items of OpenAI's Responses, as Codex keeps them and as requests and answers have them.

The rule: what the model made between two answers to it is one message, in its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsh_client.cli.importing.course import Answered, Asked, Returned
from dsh_client.cli.importing.reader import arguments_of, count_of, text_block, text_of
from dsh_client.cli.values import as_list, as_object

if TYPE_CHECKING:
    from dsh_client.cli.importing.course import Item

    Json = dict[str, Any]

_CALLS = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action"}
_RESULTS = {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}
_TEXTS = {"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"}
_USAGE = {
    "inputTokens": ("input_tokens", "prompt_tokens"),
    "outputTokens": ("output_tokens", "completion_tokens"),
}
KEY = "model"
"""All that the model made: what stands between two of its messages decides where they part."""


class Origin(NamedTuple):
    """Where an item stands, and which model made it."""

    line: int
    time: int | None
    provider: str
    model: str


class Taken(NamedTuple):
    """What an item became; `carried` are the members of it that need not be kept."""

    item: Item | None
    carried: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    system: str = ""


def is_item(value: Any) -> bool:
    """Whether a value looks like an item."""
    kind = as_object(value).get("type")
    return kind in {"message", "reasoning"} or kind in _CALLS or kind in _RESULTS


def take_item(item: Json, origin: Origin) -> Taken | None:
    """Return what an item becomes; None of one that this program does not know."""
    kind = item.get("type")
    if kind == "message" or ("role" in item and kind is None):
        return _message(item, origin)
    if kind == "reasoning":
        text = "\n".join(_texts(item.get("summary")) + _texts(item.get("content")))
        blocks = [{"type": "reasoning", "text": text}] if text else []
        return Taken(_answered(origin, blocks), ("summary", "content"))
    call_id = item.get("call_id") or item.get("id")
    if kind in _CALLS and isinstance(call_id, str):
        value = item.get(_CALLS[str(kind)])
        name = item.get("name") or ("local_shell" if kind == "local_shell_call" else "unnamed")
        call = {
            "type": "tool-call",
            "id": call_id,
            "name": text_of(name),
            "arguments": arguments_of(value),
        }
        return Taken(_answered(origin, [call]), (_CALLS[str(kind)],))
    if kind in _RESULTS and isinstance(call_id, str):
        return _result(item, call_id, origin)
    return None


def usage_of(usage: Json) -> Json | None:
    """Return a provider's count of tokens as a log has it."""
    found = {ours: count_of(*(usage.get(one) for one in names)) for ours, names in _USAGE.items()}
    return {name: value for name, value in found.items() if value is not None} or None


class Read(NamedTuple):
    """Content as blocks of text; the kinds of what is none; whether the blocks say all of it."""

    blocks: list[Json]
    unread: tuple[str, ...] = ()
    whole: bool = True


def blocks_of(content: Any, line: int) -> Read:
    """Return content as blocks of text."""
    if content is None or content == "":
        return Read([])
    blocks: list[Json] = []
    unread: list[str] = []
    whole = True
    for value in as_list(content) if isinstance(content, list) else [content]:
        text = _text(value)
        if text is None:
            kind = text_of(as_object(value).get("type") or "without type")
            unread.append(f"content {kind!r}")
            text = f"[{kind}: kept in the records of line {line}]"
        blocks.append(text_block(text))
        whole = whole and as_object(value).keys() <= {"type", "text", "refusal"}
    return Read(blocks, tuple(unread), whole and not unread)


def _message(item: Json, origin: Origin) -> Taken | None:
    role = item.get("role")
    blocks, unread, whole = blocks_of(item.get("content"), origin.line)
    done = ("content",) if whole else ()
    if role == "assistant":
        return Taken(_answered(origin, blocks), done, unread)
    if role in {"system", "developer"}:
        text = "\n".join(block["text"] for block in blocks)
        source = {"kind": "plugin", "plugin": str(role)}
        return Taken(Asked(origin.line, origin.time, blocks, source), done, unread, text)
    if role == "user":
        return Taken(Asked(origin.line, origin.time, blocks, {"kind": "user"}), done, unread)
    return None


def _result(item: Json, call_id: str, origin: Origin) -> Taken:
    output = item.get("output")
    inner = as_object(output)
    failed = inner.get("success") is False or item.get("status") == "incomplete"
    if isinstance(inner.get("content"), str | list):
        output = inner["content"]
    elif not isinstance(output, str | list):
        output = "" if output is None else text_of(output)
    blocks, unread, whole = blocks_of(output, origin.line)
    done = ("output",) if whole and not inner else ()
    return Taken(Returned(origin.line, origin.time, call_id, blocks, failed), done, unread)


def _answered(origin: Origin, blocks: list[Json]) -> Answered:
    return Answered(origin.line, origin.time, blocks, KEY, origin.provider, origin.model)


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    block = as_object(value)
    text = block.get("refusal") if block.get("type") == "refusal" else block.get("text")
    return text if block.get("type") in _TEXTS and isinstance(text, str) else None


def _texts(value: Any) -> list[str]:
    return [text for text in map(_text, as_list(value)) if text]
