"""`dshctl export`: a session as a page to read, or as a file for another program.

The rule: a file appears whole or not at all, readable by its owner only; what is no regular file is written into and
stays what it is. What was hidden is said.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from dsh_client.cli.context import UsageError
from dsh_client.cli.figures import counted
from dsh_client.cli.reading import Source, look, read_events
from dsh_client.cli.text import escape_json
from dsh_client.cli.values import as_object
from dsh_client.cli.writing import STANDARD_OUTPUT, write_file
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK, LogCorruptError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from dsh_client.cli.context import Context

FORMATS = {
    "html": "one page to read, with a time line; no script, nothing loaded from elsewhere",
    "md": "the same as Markdown",
    "jsonl": "the header and the events, one a line (with --no-redact --to FILE byte for byte as stored)",
    "atif": "Agent Trajectory Interchange Format 1.7",
    "openai": "the history as a chat request",
    "bundle": "a tar of log, labels and checksum, for dshctl import (with --no-redact byte for byte as stored)",
    "otlp": "OpenTelemetry spans by the GenAI conventions 1.41, as one OTLP/JSON request",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `export` takes."""
    parser.add_argument("id", metavar="ID", help="an id, a unique beginning of one, or @last")
    parser.add_argument(
        "-f",
        "--format",
        choices=tuple(FORMATS),
        help="default: by the name of FILE, else html. "
        + "; ".join(f"{name}: {text}" for name, text in FORMATS.items()),
    )
    parser.add_argument(
        "--to",
        metavar="FILE",
        help="write a file instead of printing: a new one, mode 0600, which replaces a regular file in one step, also "
        "at the end of links; into a device or FIFO; - prints",
    )
    parser.add_argument(
        "--content",
        action="store_true",
        help="otlp: also what was said, and the arguments and results of tools",
    )
    parser.epilog = "examples:\n  dshctl export @last --to run.html\n  dshctl export 0198 -f openai"


def run(arguments: Namespace, context: Context) -> int:
    """Write the export to standard output or a file. Of a damaged session, what can be read; the exit code is 1."""
    kind = arguments.format or ("html" if _prints(arguments) else _format_of(arguments.to))
    if arguments.content and kind != "otlp":
        raise UsageError("--content is for --format otlp: every other format has the content")
    source = look(arguments.id, context)
    if kind == "bundle":
        _check_bundled(arguments, source, context)
    pieces = (
        _spans(source, context, content=arguments.content)
        if kind == "otlp"
        else _pieces(kind, source, context)
    )
    if _prints(arguments):
        for piece in pieces:
            context.out.document(_safe_line(piece) if kind == "jsonl" else piece)
    else:
        size = write_file(arguments.to, map(_bytes, pieces), 0o600)
        if context.out.is_table:
            context.out.note(f"{arguments.to}: {counted(size, 'byte')}")
        else:
            report = {"id": source.id, "format": kind, "file": arguments.to, "bytes": size}
            hidden = 0 if context.redactor is None else context.redactor.total
            context.out.json({**report, "redacted": hidden})
    problem = as_object(source.session.get("problem"))
    if problem:
        context.out.note(
            f"dshctl: this is not all: {problem.get('message')} [{problem.get('kind')}]"
        )
        return EXIT_FAILURE
    return EXIT_OK


def _prints(arguments: Namespace) -> bool:
    return arguments.to in {None, STANDARD_OUTPUT}


def _format_of(path: str) -> str:
    """Return the format that a file's name asks for."""
    ending = os.path.splitext(path)[1].lstrip(".").lower()  # noqa: PTH122  # pathlib costs 5 ms at start
    found = {"htm": "html", "markdown": "md", "ndjson": "jsonl", "tar": "bundle"}.get(
        ending, ending
    )
    if found not in FORMATS:
        raise UsageError(f"what is {path!r} to hold? add one of: --format {', '.join(FORMATS)}")
    return found


def _check_bundled(arguments: Namespace, source: Source, context: Context) -> None:
    """Refuse a bundle that could not be taken in again."""
    if arguments.to is None or (_prints(arguments) and context.out.terminal.columns is not None):
        raise UsageError("a bundle is no text to print; add --to FILE.tar")
    problem = as_object(source.session.get("problem"))
    if problem:
        raise LogCorruptError(
            f"a bundle holds a whole session, and this one is not: {problem.get('message')}"
        )


def _pieces(kind: str, source: Source, context: Context) -> Iterator[str | bytes]:
    """Yield the export in pieces. Each format is imported where it is wanted."""
    if kind == "jsonl":
        yield from _lines(source, context)
    elif kind == "bundle":
        from dsh_client.cli.bundling import bundle

        yield from bundle(source, _lines(source, context), context)
    elif kind == "openai":
        yield _chat(source, context)
    else:
        yield from _rendered(kind, source, context)


def _rendered(kind: str, source: Source, context: Context) -> Iterator[str]:
    from dsh_client.cli.render.build import build

    model = build(source.session, source.recovery, read_events(source.id, context))
    hidden = 0 if context.redactor is None else context.redactor.total
    if kind == "html":
        from dsh_client.cli.render import html

        yield from html.render(model, hidden)
    elif kind == "md":
        from dsh_client.cli.render import markdown

        yield from markdown.render(model, hidden)
    else:
        from dsh_client.cli.render import atif

        yield _encoded(atif.render(model))


def _spans(source: Source, context: Context, *, content: bool) -> Iterator[str]:
    from dsh_client.cli.render import otlp
    from dsh_client.cli.render.build import build

    model = build(source.session, source.recovery, read_events(source.id, context))
    yield _encoded(otlp.render(model, content=content))


def _lines(source: Source, context: Context) -> Iterator[str]:
    from dsh_client.cli.stored import stored_text

    header = as_object(source.session.get("header"))
    yield stored_text({"type": "session", **header}) + "\n"
    for event in read_events(source.id, context):
        yield stored_text(event) + "\n"


def _safe_line(line: str | bytes) -> str:
    """Return a line of JSON for a screen; a file gets it as it is stored."""
    text = line if isinstance(line, str) else line.decode()
    return escape_json(text.removesuffix("\n")) + "\n"


def _bytes(piece: str | bytes) -> bytes:
    return piece.encode("utf-8", "replace") if isinstance(piece, str) else piece


def _chat(source: Source, context: Context) -> str:
    from dsh_client.cli.render import openai

    messages: list[dict[str, Any]] = []
    header: dict[str, Any] = {}
    offset: int | None = 0
    while offset is not None:
        params = {"id": source.id, "offset": offset, "partial": True}
        page = context.call("session.messages", params)
        messages += context.clean(page["messages"])
        header = context.clean(as_object(page.get("requestHeader"))) or header
        offset = page.get("nextOffset") if page["messages"] else None
    return _encoded(openai.render(messages, header))


def _encoded(value: Any) -> str:
    return escape_json(json.dumps(value, ensure_ascii=False, separators=(",", ":"))) + "\n"
