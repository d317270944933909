"""`dshctl metrics`: the daemon's figures as OpenMetrics text, on standard output or in a file for a scraper."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from dsh_client.cli.context import UsageError
from dsh_client.cli.values import as_object
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `metrics` takes."""
    parser.add_argument(
        "--textfile",
        metavar="PATH",
        help="write them to PATH, whole or not at all (for node_exporter: a name that ends in .prom)",
    )
    parser.epilog = "example:\n  dshctl metrics --textfile /var/lib/node_exporter/dshd.prom"


def run(arguments: Namespace, context: Context) -> int:
    """Print the figures, or replace the file by them in one step: a reader never sees half of them."""
    found = as_object(context.call("daemon.metrics"))
    text = str(found.get("text", ""))
    if arguments.textfile is not None:
        return _write(arguments.textfile, text, context)
    if context.out.is_table:
        for line in text.rstrip("\n").split("\n"):
            context.out.line(line)
    else:
        context.out.json(found)
    return EXIT_OK


def _write(path: str, text: str, context: Context) -> int:
    if not path:
        raise UsageError("--textfile needs a path")
    folder, draft = os.path.dirname(path) or ".", None  # noqa: PTH120  # pathlib is not loaded at start
    try:
        fd, draft = tempfile.mkstemp(prefix=".dshctl-", dir=folder)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(fd, 0o644)  # figures hold no content; the scraper is another user
        os.replace(draft, path)  # noqa: PTH105  # likewise
    except OSError as error:
        if draft is not None and os.path.exists(draft):  # noqa: PTH110  # likewise
            os.unlink(draft)  # noqa: PTH108  # likewise
        context.out.note(f"{path!r} cannot be written: {error.strerror}")
        return EXIT_FAILURE
    return EXIT_OK
