"""`dshctl stop`: end the daemon, after what was admitted is durable. Works on a daemon of any age."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `stop` takes: nothing of its own."""
    parser.set_defaults(any_version=True)
    parser.epilog = (
        "Sessions that are open lose their writer; their agents go on when a daemon runs again. A socket unit starts\n"
        "one with the next client: systemctl --user stop dshd.socket dshd.service keeps it down.\n\n"
        "example:\n  dshctl stop"
    )


def run(_arguments: Namespace, context: Context) -> int:
    """Ask the daemon to end; it answers when everything that was admitted is durable, or with what it gives up."""
    result = context.call("daemon.shutdown")
    if context.out.is_table:
        context.out.line("the daemon stops; what it had admitted is durable")
    else:
        context.out.json(result)
    return EXIT_OK
