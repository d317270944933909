"""`dshctl log`: the events of a session, in order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsh_client.cli import times
from dsh_client.cli.hints import command
from dsh_client.cli.text import clip, escape, pad, width
from dsh_client.cli.values import as_list, as_object, count
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from dsh_client.cli.context import Context

_PAGE_BYTES = 1 << 20
_TYPE_COLUMNS = 18
_SUMMARY = 200


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `log` takes."""
    parser.add_argument("id", metavar="ID", help="an id, a unique beginning of one, or @last")
    parser.add_argument(
        "-n",
        "--count",
        metavar="N",
        type=count,
        help="the last N events; with --from, the first N from there",
    )
    parser.add_argument(
        "--from", metavar="SEQ", type=count, dest="start", help="begin with this seq"
    )


def run(arguments: Namespace, context: Context) -> int:
    """Print the events, page by page; with `-o json`, gather the pages into one result."""
    out = context.out
    last: dict[str, Any] = {}
    gathered: list[dict[str, Any]] = []
    for page in _pages(arguments, context):
        last = page
        for event in page["events"]:
            if out.is_table:
                out.line(_line(event, out.terminal.columns))
            elif out.form == "jsonl":
                out.json(event)
        if out.form == "json":
            gathered += page["events"]
        else:
            out.flush()
    if out.form == "json":
        out.json({**last, "events": gathered})
    return _judge(arguments.id, last, context)


def _judge(name: str, last: dict[str, Any], context: Context) -> int:
    """Say so where what was printed is not all that once was written, and return the exit code."""
    if not last["end"]:
        return EXIT_OK
    _, stat = context.call_session("session.stat", name, {})
    problem = stat["session"].get("problem")
    if problem is None:
        return EXIT_OK
    context.out.note(
        f"dshctl: the log is not whole: {problem.get('message')} [{problem.get('kind')}]"
    )
    context.out.note(f"try: {command('show', name)}")
    return EXIT_FAILURE


def _pages(arguments: Namespace, context: Context) -> Iterator[dict[str, Any]]:
    """Yield the results of `session.read` that cover what was asked for; at least one."""
    name, start, left = arguments.id, arguments.start, arguments.count
    if start is None and left is not None:
        name, stat = context.call_session("session.stat", name, {})
        start = max(0, (stat["session"].get("nextSeq") or 0) - left)
    offset = start or 0
    while True:
        params: dict[str, Any] = {"offset": offset, "maxBytes": _PAGE_BYTES}
        if left is not None:
            params["length"] = left
        name, page = context.call_session("session.read", name, params)
        yield page
        offset = page["nextOffset"]
        if left is not None:
            left -= len(page["events"])
        if page["end"] or not page["events"] or (left is not None and left <= 0):
            return


def _line(event: dict[str, Any], columns: int | None) -> str:
    """Return one event as one line."""
    seq, kind = str(event.get("seq")), escape(str(event.get("type")))
    head = f"{pad(seq, 6, right=True)}  {times.rfc3339(event.get('time'))}  {pad(kind, _TYPE_COLUMNS)}  "
    room = _SUMMARY if columns is None else max(columns - width(head), 0)
    return (head + clip(escape(_summary(event.get("data"))[: 4 * _SUMMARY]), room)).rstrip(" ")


def _summary(data: Any) -> str:
    """Return what a person looks for in an event's data."""
    if not isinstance(data, dict):
        return json.dumps(data, ensure_ascii=False)
    data = as_object(data)
    parts = [f"{key} {data[key]}" for key in ("turn", "step") if isinstance(data.get(key), int)]
    message = as_object(data.get("message", data if "role" in data else None))
    if message:
        parts.append(text_of(message.get("content")))
    else:
        rest = {key: value for key, value in data.items() if key not in {"turn", "step"}}
        if rest:
            parts.append(json.dumps(rest, ensure_ascii=False))
    return " · ".join(parts)


def text_of(content: Any) -> str:
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
        return f"← [{block.get('toolCallId')}]{failed} {text_of(block.get('content'))}"
    return json.dumps(value, ensure_ascii=False)
