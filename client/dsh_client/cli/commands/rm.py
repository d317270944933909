"""`dshctl rm`: sessions into the trash, from which `undelete` brings them back.

The rule: nothing goes before all that was named is known and a person has agreed, at the terminal or with `--yes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.asking import agreed
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
    told = [_told(session, context) for session in found.values()]
    asks = "rm asks before it deletes"
    if not arguments.yes and not agreed(asks, "to be put into the trash:", told, context):
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


def _told(session: dict[str, Any], context: Context) -> str:
    pinned = as_object(session.get("labels")).get("pinned")
    parts = [
        str(session["id"]),
        f"{session.get('state')}, used {context.out.when(session.get('updatedAt'))}",
        str(context.clean(session.get("title")) or ""),
        "(pinned)" if pinned else "",
    ]
    return "  ".join(part for part in parts if part)
