"""`dshctl version`: the versions of both sides, of the protocol and of the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.values import as_object
from dsh_client.errors import DaemonUnavailableError
from dsh_protocol.errors import EXIT_OK
from dsh_protocol.version import FORMAT_VERSION, PROTOCOL_VERSION, VERSION

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `version` takes: nothing of its own. A daemon of another age is asked, too."""
    parser.set_defaults(any_version=True)
    parser.epilog = "example:\n  dshctl version -o json"


def run(_arguments: Namespace, context: Context) -> int:
    """Print the versions. A daemon that does not run is no failure here; one that refuses us is."""
    versions: dict[str, Any] = {
        "client": VERSION,
        "protocolVersion": PROTOCOL_VERSION,
        "formatVersion": FORMAT_VERSION,
        "server": None,
    }
    try:
        versions["server"] = context.call("daemon.status")["server"]
    except DaemonUnavailableError:
        context.out.note("no daemon answers; try: dshd serve")
    if not context.out.is_table:
        context.out.json(versions)
        return EXIT_OK
    server = as_object(versions["server"])
    daemon = (
        f"{server.get('name')} {server.get('version')}, pid {server.get('pid')}"
        if server
        else "not running"
    )
    context.out.fields(
        [
            ("dshctl", VERSION),
            ("daemon", daemon),
            ("protocol", str(PROTOCOL_VERSION)),
            ("format", str(FORMAT_VERSION)),
        ]
    )
    return EXIT_OK
