"""What the verbs share that change sessions one after the other: each is printed as it is then.

The rule: what was done before an error is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from dsh_client.cli.context import Context


def add_ids(parser: ArgumentParser, example: str) -> None:
    """Declare the sessions that a verb takes, one or more."""
    parser.add_argument(
        "ids", metavar="ID", nargs="+", help="an id, a unique beginning of one, or @last"
    )
    parser.epilog = f"example:\n  dshctl {example}"


def label(arguments: Namespace, context: Context, labels: dict[str, Any], done: str) -> int:
    """Set labels on every session that was named: one call of `session.setLabel` for each."""
    return each(
        arguments,
        context,
        lambda wanted: context.call_session("session.setLabel", wanted, labels),
        done,
    )


def each(
    arguments: Namespace, context: Context, change: Callable[[str], tuple[str, Any]], done: str
) -> int:
    """Change every session that was named, by a method that returns its id and `session`."""
    sessions: list[dict[str, Any]] = []
    try:
        for wanted in arguments.ids:
            arguments.id = wanted  # what an error is about
            name, result = change(wanted)
            sessions.append(result["session"])
            result["session"]["title"] = context.clean(result["session"].get("title"))
            if context.out.is_table:
                context.out.line(f"{name} {done}")
            elif context.out.form == "jsonl":
                context.out.json(result["session"])
    finally:
        if context.out.form == "json":
            context.out.json({"sessions": sessions})
    return EXIT_OK
