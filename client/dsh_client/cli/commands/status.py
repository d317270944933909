"""`dshctl status`: whether the daemon runs, and how it fares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.values import as_list, as_object
from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context
    from dsh_client.cli.output import Output


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `status` takes: nothing of its own. A daemon of another age is asked, too."""
    parser.set_defaults(any_version=True)
    parser.epilog = "example:\n  dshctl status -o json"


def run(_arguments: Namespace, context: Context) -> int:
    """Print the daemon's state. Where it does not answer, the exit code says so (3)."""
    status = context.call("daemon.status")
    if not context.out.is_table:
        context.out.json(status)
        return EXIT_OK
    context.out.fields(_fields(status, context.out))
    for problem in as_list(status.get("problems")):
        context.out.line(f"problem: {_problem(problem)}")
    return EXIT_OK


def _fields(status: dict[str, Any], out: Output) -> list[tuple[str, str]]:
    server = as_object(status.get("server"))
    counts = as_object(status.get("sessions"))
    sessions = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return [
        ("daemon", f"{server.get('name')} {server.get('version')}, pid {server.get('pid')}"),
        ("started", out.when(status.get("startedAt"))),
        ("socket", str(status.get("socket"))),
        ("root", str(status.get("root"))),
        ("sessions", sessions or "none"),
    ]


def _problem(value: Any) -> str:
    problem = as_object(value)
    if not problem:
        return str(value)
    text = f"{problem.get('kind')}: {problem.get('message')}"
    return f"{text} (session {problem['id']})" if problem.get("id") else text
