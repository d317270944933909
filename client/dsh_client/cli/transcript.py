"""Events, messages and verdicts as a person reads them: one line for each thing, whatever its shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsh_client.cli import times
from dsh_client.cli.output import Column
from dsh_client.cli.text import clip, escape, pad, width
from dsh_client.cli.values import as_list, as_object

if TYPE_CHECKING:
    from dsh_client.cli.output import Output

_TYPE_COLUMNS = 18
_SUMMARY = 200
_VERDICTS = (Column("CALL"), Column("TOOL"), Column("VERDICT"), Column("IDEMPOTENCY KEY"))


def event_line(event: dict[str, Any], columns: int | None) -> str:
    """Return an event as one escaped line, cut to the terminal; without one, its data is cut all the same."""
    seq, kind = str(event.get("seq")), escape(str(event.get("type")))
    when = times.rfc3339(event.get("time"))
    head = f"{pad(seq, 6, right=True)}  {when}  {pad(kind, _TYPE_COLUMNS)}  "
    room = _SUMMARY if columns is None else max(columns - width(head), 0)
    return (head + clip(escape(_summary(event.get("data"))[: 4 * _SUMMARY]), room)).rstrip(" ")


def print_message(index: int, message: dict[str, Any], out: Output) -> None:
    """Print one message: who speaks, then what is said."""
    kind = as_object(message.get("source")).get("kind")
    role = str(message.get("role"))
    out.line(f"#{index} {role}" + (f" ({kind})" if kind and kind != role else ""))
    content = message.get("content")
    for block in as_list(content) or [content]:
        out.block(_block(block), "    ")


def print_repairs(recovery: dict[str, Any], out: Output) -> None:
    """Print the verdict on each unanswered call, under a line that says whether it is written."""
    repairs = as_list(recovery.get("repairs"))
    if repairs:
        out.line("repairs written:" if recovery.get("committed") else "repairs due:")
    rows = [
        [
            str(repair.get("callId")),
            str(repair.get("name")),
            str(repair.get("code")),
            repair.get("idempotencyKey") or "-",
        ]
        for repair in map(as_object, repairs)
    ]
    out.table(_VERDICTS, rows)


def _summary(value: Any) -> str:
    """Return what a person looks for in an event's data."""
    data = as_object(value)
    if not data:
        return "" if value == {} else json.dumps(value, ensure_ascii=False)
    parts = [f"{key} {data[key]}" for key in ("turn", "step") if isinstance(data.get(key), int)]
    message = as_object(data.get("message", data if "role" in data else None))
    if message:
        parts.append(_content(message.get("content")))
    else:
        rest = {key: value for key, value in data.items() if key not in {"turn", "step"}}
        if rest:
            parts.append(json.dumps(rest, ensure_ascii=False))
    return " · ".join(parts)


def _content(content: Any) -> str:
    """Return the blocks of a message's content on one line."""
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    return " ".join(_block(block) for block in as_list(content))


def _block(value: Any) -> str:
    block = as_object(value)
    kind = block.get("type")
    if kind in {"text", "reasoning"}:
        return str(block.get("text", ""))
    if kind == "tool-call":
        return f"→ {block.get('name')} {block.get('arguments')} [{block.get('id')}]"
    if kind == "tool-result":
        failed = " failed" if block.get("isError") else ""
        return f"← [{block.get('toolCallId')}]{failed} {_content(block.get('content'))}"
    return json.dumps(value, ensure_ascii=False)
