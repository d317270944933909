"""`dshctl rm`: sessions into the trash, from which `undelete` brings them back.

The rule: nothing goes before all that was named is known and a person has agreed, at the terminal or with `--yes`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsh_client.cli.context import UsageError
from dsh_client.cli.hints import command
from dsh_client.cli.labelling import add_ids
from dsh_client.cli.values import as_object
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `rm` takes."""
    add_ids(parser, "rm 0198 --yes")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run(arguments: Namespace, context: Context) -> int:
    """Ask, then delete one after the other; what was done before an error is told."""
    found: dict[str, dict[str, Any]] = {}
    for wanted in arguments.ids:
        arguments.id = wanted  # what an error is about
        name, result = context.call_session("session.stat", wanted, {})
        found[name] = result["session"]
    if not arguments.yes and not _agreed(list(found.values()), context):
        context.out.note("nothing was deleted")
        return EXIT_FAILURE
    deleted: list[str] = []
    try:
        for name in found:
            arguments.id = name
            context.call("session.delete", {"id": name})
            deleted.append(name)
            if context.out.is_table:
                back = command("undelete", name)
                context.out.line(f"{name} is in the trash; to bring it back: {back}")
            elif context.out.form == "jsonl":
                context.out.json({"id": name})
    finally:
        if context.out.form == "json":
            context.out.json({"deleted": deleted})
    return EXIT_OK


def _agreed(sessions: list[dict[str, Any]], context: Context) -> bool:
    """Ask the person at the terminal; whatever is not a yes is a no.

    Raises:
        UsageError: There is nobody to ask.
    """
    try:
        asks = sys.stdin.isatty() and sys.stderr.isatty()
    except (AttributeError, ValueError):  # closed, or never there
        asks = False
    if not asks:
        raise UsageError("rm asks before it deletes, and there is no terminal; add --yes")
    context.out.note("to be put into the trash:")
    for session in sessions:
        context.out.note(f"  {_told(session, context)}")
    context.out.note("really? [y/N]")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _told(session: dict[str, Any], context: Context) -> str:
    pinned = as_object(session.get("labels")).get("pinned")
    parts = [
        str(session["id"]),
        f"{session.get('state')}, used {context.out.when(session.get('updatedAt'))}",
        str(context.clean(session.get("title")) or ""),
        "(pinned)" if pinned else "",
    ]
    return "  ".join(part for part in parts if part)
