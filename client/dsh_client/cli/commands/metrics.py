"""`dshctl metrics`: the daemon's figures as OpenMetrics text, on standard output or in a file for a scraper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_client.cli.context import UsageError
from dsh_client.cli.values import as_object
from dsh_client.cli.writing import STANDARD_OUTPUT, write_file
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context

_FOR_THE_SCRAPER = 0o644
"""It is another user, and figures hold no content."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `metrics` takes."""
    parser.add_argument(
        "--textfile",
        metavar="PATH",
        help="write them to PATH, whole or not at all (for node_exporter: a name that ends in .prom); into a device or "
        "FIFO; - prints",
    )
    parser.epilog = "example:\n  dshctl metrics --textfile /var/lib/node_exporter/dshd.prom"


def run(arguments: Namespace, context: Context) -> int:
    """Print the figures, or replace the file by them in one step: a reader never sees half of them."""
    found = as_object(context.call("daemon.metrics"))
    text = str(found.get("text", ""))
    if arguments.textfile not in {None, STANDARD_OUTPUT}:
        return _write(arguments.textfile, text, context)
    if context.out.is_table or arguments.textfile is not None:
        for line in text.rstrip("\n").split("\n"):
            context.out.line(line)
    else:
        context.out.json(found)
    return EXIT_OK


def _write(path: str, text: str, context: Context) -> int:
    try:
        write_file(path, [text.encode()], _FOR_THE_SCRAPER)
    except UsageError as error:
        context.out.note(f"dshctl: {error}")
        return EXIT_FAILURE  # to whoever runs this now and then, a folder that went away is no slip of the pen
    return EXIT_OK
