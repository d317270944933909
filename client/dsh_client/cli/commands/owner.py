"""`dshctl owner`: who may write to a session now, and whether that process still lives."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsh_client.cli.hints import command
from dsh_client.cli.values import as_object
from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `owner` takes."""
    parser.add_argument("id", metavar="ID", help="an id, a unique beginning of one, or @last")
    parser.epilog = "example:\n  dshctl owner @last"


def run(arguments: Namespace, context: Context) -> int:
    """Print the owner: the process that holds the write handle, or for which it is kept."""
    name, found = context.call_session("session.stat", arguments.id, {})
    session = found["session"]
    writer = as_object(session.get("writer"))
    process = _process(writer.get("pid"))
    if not context.out.is_table:
        context.out.json(
            {
                "id": name,
                "state": session.get("state"),
                "writer": writer or None,
                "process": process,
            }
        )
        return EXIT_OK
    if not writer:
        context.out.line("nobody: any client may open it for writing")
    else:
        context.out.fields(_fields(writer, process, context))
    if advice := _advice(name, session, writer):
        context.out.line()
        context.out.line(f"next: {advice}")
    return EXIT_OK


def _fields(
    writer: dict[str, Any], process: dict[str, Any] | None, context: Context
) -> list[tuple[str, str]]:
    words = "" if process is None else context.clean(" ".join(process["command"]))
    tie = "connected" if writer.get("connected") else "not connected; kept for it while it lives"
    return [
        ("client", str(writer.get("client"))),
        ("pid", str(writer.get("pid"))),
        ("since", context.out.when(writer.get("since"))),
        ("tie", tie),
        ("process", "cannot be seen from here" if process is None else words[:200]),
        ("directory", "-" if process is None else process["cwd"] or "-"),
    ]


def _process(pid: object) -> dict[str, Any] | None:
    """Return what the system tells of a process; None where it tells nothing."""
    if not isinstance(pid, int):
        return None
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123  # pathlib costs 5 ms at start
            words = file.read(4096).split(b"\0")
    except OSError:
        return None
    cwd = None
    with suppress(OSError):
        cwd = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115  # pathlib costs 5 ms at start
    return {"command": [word.decode("utf-8", "replace") for word in words if word], "cwd": cwd}


def _advice(name: str, session: dict[str, Any], writer: dict[str, Any]) -> str:
    if writer and not writer.get("connected"):
        again = command("recover", name, "--apply", "--takeover")
        return f"{command('tail', name)}, or if that process will not come back: {again}"
    if writer:
        return command("tail", name)
    return command("recover", name) if session.get("state") == "interrupted" else ""
