"""`dshctl undelete`: sessions back from the trash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.context import LAST
from dsh_client.cli.labelling import add_ids
from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `undelete` takes."""
    add_ids(parser, "undelete @last     (what was deleted last)")


def run(arguments: Namespace, context: Context) -> int:
    """Bring back one after the other; names mean what lies in the trash."""
    page = context.call("session.list", {"deleted": True})
    ids = [str(session["id"]) for session in page["sessions"]]
    sessions: list[dict[str, Any]] = []
    try:
        for wanted in arguments.ids:
            arguments.id = wanted  # what an error is about
            name = ids[0] if wanted == LAST and ids else context.pick(wanted, ids)
            arguments.id = name
            result = context.call("session.undelete", {"id": name})
            ids.remove(name)
            result["session"]["title"] = context.clean(result["session"].get("title"))
            sessions.append(result["session"])
            if context.out.is_table:
                context.out.line(f"{name} is back")
            elif context.out.form == "jsonl":
                context.out.json(result["session"])
    finally:
        if context.out.form == "json":
            context.out.json({"sessions": sessions})
    return EXIT_OK
