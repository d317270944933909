"""`dshctl unarchive`: put archived sessions back into the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_client.cli.labelling import add_ids, label

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `unarchive` takes."""
    add_ids(parser, "unarchive @last")


def run(arguments: Namespace, context: Context) -> int:
    """Set the label; the log and its header stay as they are."""
    return label(arguments, context, {"archived": False}, "is in the list again")
