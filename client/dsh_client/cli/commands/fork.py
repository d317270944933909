"""`dshctl fork`: a session that begins with another's events, as a second way on from there.

The rule: the other is only read, whoever has it; the fork is on disk when this says so, and nobody has it open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.figures import counted
from dsh_client.cli.hints import command
from dsh_client.cli.values import count
from dsh_protocol.errors import EXIT_OK, SessionExistsError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `fork` takes."""
    parser.add_argument("id", metavar="ID", help="an id, a unique beginning of one, or @last")
    parser.add_argument(
        "--at", metavar="SEQ", type=count, help="the last event taken (default: all of them)"
    )
    parser.add_argument("--as", dest="wanted", metavar="ID", help="the new session's id")
    parser.epilog = (
        "SEQ is between two turns: where a turn ended, or before the first; dshctl log ID shows them.\n\n"
        "examples:\n  dshctl fork @last\n  dshctl fork 0198 --at 41 --as second-try"
    )


def run(arguments: Namespace, context: Context) -> int:
    """Print the new session."""
    params: dict[str, Any] = {"boundary": arguments.at, "newId": arguments.wanted}
    try:
        source, result = context.call_session("session.fork", arguments.id, params)
    except SessionExistsError:
        arguments.id = arguments.wanted  # what the error is about
        raise
    session = result["session"]
    session["title"] = context.clean(session.get("title"))
    if not context.out.is_table:
        context.out.json(result)
        return EXIT_OK
    name = str(session["id"])
    events = counted(session["nextSeq"], "event")
    context.out.line(f"{name} is a fork of {source} with {events}")
    context.out.note(f"to see where they part later: {command('diff', source)} {name}")
    return EXIT_OK
