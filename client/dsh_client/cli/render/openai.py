"""The derived history as a chat request of the OpenAI API: messages, tools, model.

The rule: every answer stands directly behind the message that asked for it, as the API demands; text is well-formed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.values import as_list, as_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_client.cli.render.model import Json


def render(messages: Iterable[Json], header: Json) -> Json:
    """Return the request. What the API has no place for (reasoning, the bytes of images) is left out or named."""
    chat: list[Json] = []
    if isinstance(header.get("system"), str) and header["system"]:
        chat.append({"role": "system", "content": well_formed(header["system"])})
    waiting: list[Json] = []
    open_calls: set[str] = set()
    for message in messages:
        for one in _converted(message):
            if one["role"] == "tool":
                open_calls.discard(one["tool_call_id"])
                chat.append(one)
            elif open_calls and one["role"] == "user":
                waiting.append(one)
                continue
            else:
                chat.append(one)
                open_calls |= {call["id"] for call in one.get("tool_calls", [])}
            if not open_calls:
                chat += waiting
                waiting = []
    request: Json = {"messages": [*chat, *waiting]}
    config = as_object(header.get("config"))
    if config.get("model"):
        request = {"model": config["model"], **request}
    if tools := functions(header):
        request["tools"] = tools
    return request


def functions(header: Json) -> list[Json]:
    """Return the tools of a request header as function definitions."""
    found: list[Json] = []
    for tool in map(as_object, as_list(header.get("tools"))):
        function: Json = {"name": str(tool.get("name"))}
        if tool.get("description"):
            function["description"] = tool["description"]
        function["parameters"] = as_object(tool.get("parameters")) or {"type": "object"}
        found.append({"type": "function", "function": function})
    return found


def plain_text(blocks: Any) -> str:
    """Return the text of blocks; what is no text is named."""
    parts: list[str] = []
    for block in map(as_object, as_list(blocks)):
        kind = block.get("type")
        if kind == "text":
            parts.append(str(block.get("text", "")))
        elif kind == "image":
            name = as_object(block.get("attachment")).get("name") or "without a name"
            parts.append(f"[image: {name}]")
        elif kind not in {"reasoning", "tool-call", "tool-result"}:
            parts.append(f"[{kind}]")
    return well_formed("\n".join(parts))


def well_formed(text: str) -> str:
    """Return text that every decoder takes: half a surrogate pair becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _converted(message: Json) -> list[Json]:
    blocks = [as_object(block) for block in as_list(message.get("content"))]
    results = [block for block in blocks if block.get("type") == "tool-result"]
    if results:
        return [_result(block) for block in results]
    role = str(message.get("role"))
    if role != "assistant":
        return [{"role": role, "content": plain_text(blocks)}]
    said: Json = {"role": "assistant", "content": plain_text(blocks) or None}
    calls = [block for block in blocks if block.get("type") == "tool-call"]
    if calls:
        said["tool_calls"] = [_call(block) for block in calls]
    return [said]


def _call(block: Json) -> Json:
    function = {
        "name": str(block.get("name")),
        "arguments": well_formed(str(block.get("arguments") or "")),
    }
    return {"id": str(block.get("id")), "type": "function", "function": function}


def _result(block: Json) -> Json:
    return {
        "role": "tool",
        "tool_call_id": str(block.get("toolCallId")),
        "content": plain_text(block.get("content")),
    }
