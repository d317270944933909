"""`dshctl undelete`: sessions back from the trash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.context import LAST
from dsh_client.cli.labelling import add_ids, each

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

    def bring_back(wanted: str) -> tuple[str, Any]:
        name = ids[0] if wanted == LAST and ids else context.pick(wanted, ids)
        arguments.id = name
        result = context.call("session.undelete", {"id": name})
        ids.remove(name)
        return name, result

    return each(arguments, context, bring_back, "is back")
