"""`dshctl messages`: the history that a model would be sent, an interrupted turn closed in memory only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.hints import command
from dsh_client.cli.transcript import print_message
from dsh_client.cli.values import as_object, count
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from dsh_client.cli.context import Context
    from dsh_client.cli.output import Output


_SHOWN = ("messages", "requestHeader", "requestContext", "recovery")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `messages` takes."""
    parser.add_argument("id", metavar="ID", help="an id, a unique beginning of one, or @last")
    parser.add_argument("-n", "--count", metavar="N", type=count, help="the first N messages")
    parser.add_argument(
        "--from", metavar="INDEX", type=count, dest="start", default=0, help="begin with this one"
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="what can be read, also of a log that is damaged or newer",
    )
    parser.epilog = "example:\n  dshctl messages @last -o json"


def run(arguments: Namespace, context: Context) -> int:
    """Print the messages, page by page; with `-o json`, gather the pages into one result."""
    out = context.out
    index: int = arguments.start
    last: dict[str, Any] = {}
    gathered: list[dict[str, Any]] = []
    for page in _pages(arguments, context):
        page.update(context.clean({key: page.get(key) for key in _SHOWN if key in page}))
        _carry_on(last, page)
        last = page
        for message in page["messages"]:
            if out.is_table:
                print_message(index, message, out)
            elif out.form == "jsonl":
                out.json(message)
            index += 1
        if out.form == "json":
            gathered += page["messages"]
        else:
            out.flush()
    if out.form == "json":
        out.json({**last, "messages": gathered})
    return _remarks(last, arguments, out)


def _pages(arguments: Namespace, context: Context) -> Iterator[dict[str, Any]]:
    """Yield the results of `session.messages` that cover what was asked for; at least one."""
    name, offset, left = arguments.id, arguments.start, arguments.count
    while True:
        params: dict[str, Any] = {"offset": offset}
        if left is not None:
            params["limit"] = left
        if arguments.partial:
            params["partial"] = True
        name, page = context.call_session("session.messages", name, params)
        yield page
        offset = page.get("nextOffset")
        if left is not None:
            left -= len(page["messages"])
        if offset is None or not page["messages"] or (left is not None and left <= 0):
            return


def _carry_on(last: dict[str, Any], page: dict[str, Any]) -> None:
    """Take from the page before what a page has no room for beside its messages: it is the whole history's."""
    left_out: list[str] = page.pop("leftOut", [])
    had = {key: last[key] for key in left_out if key in _SHOWN and last.get(key) is not None}
    page.update(had)
    missing = [key for key in left_out if key not in had]
    if missing:
        page["leftOut"] = missing


def _remarks(last: dict[str, Any], arguments: Namespace, out: Output) -> int:
    """Say what the messages do not show, and return the exit code."""
    recovery = as_object(last.get("recovery"))
    if out.is_table and recovery.get("closers") and not recovery.get("committed"):
        out.note(
            f"the last turn was interrupted and is closed here only; try: {command('recover', arguments.id)}"
        )
    problem = as_object(last.get("problem"))
    if not problem:
        return EXIT_OK
    out.note(f"dshctl: this is not all: {problem.get('message')} [{problem.get('kind')}]")
    out.note(f"try: {command('show', arguments.id)}")
    return EXIT_FAILURE
