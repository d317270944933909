"""`dshctl log`: the events of a session, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.cleaning import EventCleaner
from dsh_client.cli.hints import command
from dsh_client.cli.transcript import event_line
from dsh_client.cli.values import as_object, count
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK, FormatUnsupportedError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from dsh_client.cli.context import Context

_PAGE_BYTES = 1 << 20


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
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with what comes; see also: dshctl tail"
    )
    parser.epilog = "examples:\n  dshctl log @last -n 20\n  dshctl log 0198 -f"


def run(arguments: Namespace, context: Context) -> int:
    """Print the events, page by page; with `-o json`, gather the pages into one result."""
    if arguments.follow:
        return _follow(arguments, context)
    out = context.out
    name, last = arguments.id, dict[str, Any]()
    gathered: list[dict[str, Any]] = []
    clean = EventCleaner(context.redactor)
    for name, page in _pages(arguments, context):  # noqa: B007  # the last one is used below
        page["events"] = clean.events(page["events"])
        last = page
        for event in page["events"]:
            if out.is_table:
                out.line(event_line(event, out.terminal.columns))
            elif out.form == "jsonl":
                out.json(event)
        if out.form == "json":
            gathered += page["events"]
        else:
            out.flush()
    if out.form == "json":
        out.json({**last, "events": gathered})
    return _judge(name, last, context)


def _follow(arguments: Namespace, context: Context) -> int:
    from dsh_client.cli.commands.tail import follow  # a log that is only read needs none of it

    return follow(arguments, context, arguments.count)


def _judge(name: str, last: dict[str, Any], context: Context) -> int:
    """Say so where what was printed is not all that once was written, and return the exit code."""
    if not last["end"]:
        return EXIT_OK
    _, stat = context.call_session("session.stat", name, {})
    problem = as_object(stat["session"].get("problem"))
    if not problem:
        return EXIT_OK
    if problem.get("kind") == FormatUnsupportedError.kind:
        context.out.note(f"dshctl: shown as stored, not understood: {problem.get('message')}")
        return EXIT_OK
    context.out.note(
        f"dshctl: the log is not whole: {problem.get('message')} [{problem.get('kind')}]"
    )
    context.out.note(f"try: {command('show', name)}")
    return EXIT_FAILURE


def _pages(arguments: Namespace, context: Context) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the id and the results of `session.read` that cover what was asked for; at least one."""
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
        yield name, page
        offset = page["nextOffset"]
        if left is not None:
            left -= len(page["events"])
        if page["end"] or not page["events"] or (left is not None and left <= 0):
            return
