"""`dshctl rename`: a title of one's own for a session, beside its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `rename` takes."""
    parser.add_argument("id", metavar="ID", help="an id, a unique beginning of one, or @last")
    parser.add_argument(
        "title", metavar="TITLE", help="the new title; an empty one gives back the log's own"
    )
    parser.epilog = "example:\n  dshctl rename @last 'fix the build'"


def run(arguments: Namespace, context: Context) -> int:
    """Set the title; the id stays what it is."""
    params = {"title": arguments.title}
    name, result = context.call_session("session.setLabel", arguments.id, params)
    result["session"]["title"] = context.clean(result["session"].get("title"))
    if context.out.is_table:
        title = result["session"].get("title")
        context.out.line(f"{name} has no title" if title is None else f"{name} is now: {title}")
    else:
        context.out.json(result)
    return EXIT_OK
