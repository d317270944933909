"""`dshctl archive`: leave sessions out of the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_client.cli.labelling import add_ids, label

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `archive` takes."""
    add_ids(parser, "archive @last")


def run(arguments: Namespace, context: Context) -> int:
    """Set the label; the log and its header stay as they are."""
    return label(
        arguments, context, {"archived": True}, "is archived; dshctl list --archived shows it"
    )
