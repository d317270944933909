"""`dshctl trash`: what lies in the trash, and the one way to empty it.

The rule: nothing is removed unless a person asks for it, says from which age on, and has agreed, at the terminal or
with `--yes`. What is removed was seen in the list before; what comes into the trash meanwhile stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli import times
from dsh_client.cli.asking import agreed
from dsh_client.cli.context import UsageError
from dsh_client.cli.figures import counted, size
from dsh_client.cli.output import Column
from dsh_client.cli.values import as_object, duration
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK, SessionNotFoundError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context

_COLUMNS = (
    Column("ID"),
    Column("DELETED"),
    Column("SIZE", right=True),
    Column("CWD", floor=5),
    Column("TITLE", floor=5),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `trash` takes."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "empty"),
        default="list",
        help="list (default): what lies in it; empty: remove it for good",
    )
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=duration,
        help="only what was deleted so long ago: 30d, 12h; to empty all of it: 0s",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="with empty: only show what would go")
    how.add_argument("-y", "--yes", action="store_true", help="with empty: do not ask")
    parser.epilog = (
        "Nothing else ever empties the trash. What was emptied cannot be brought back.\n\n"
        "examples:\n  dshctl trash\n  dshctl trash empty --older-than 30d --dry-run"
    )


def run(arguments: Namespace, context: Context) -> int:
    """Print what lies there, or went."""
    if arguments.action == "empty" and arguments.older_than is None:
        raise UsageError(
            "trash empty needs an age\ntry: dshctl trash empty --older-than 30d --dry-run"
        )
    found = _found(arguments.older_than, context)
    if arguments.action == "list" or arguments.dry_run:
        _print({"sessions": found, "applied": False}, context)
        if context.out.is_table:
            _footer(found, arguments, context)
        return EXIT_OK
    if found and not arguments.yes and not _agreed(found, context):
        context.out.note("nothing was removed")
        return EXIT_FAILURE
    removed: list[dict[str, Any]] = []
    try:
        for session in found:
            arguments.id = session["id"]  # what an error is about
            try:
                context.call(
                    "session.purge", {"id": session["id"], "deletedAt": session["deletedAt"]}
                )
            except SessionNotFoundError:  # brought back, or removed, meanwhile
                continue
            removed.append(session)
    finally:
        _print({"sessions": removed, "applied": True}, context)
        if context.out.is_table:
            context.out.note(f"{_told(removed)} removed for good")
    return EXIT_OK


def _found(age: int | None, context: Context) -> list[dict[str, Any]]:
    """Return what was deleted long enough ago, what was deleted last first."""
    sessions: list[dict[str, Any]] = context.call("session.list", {"deleted": True})["sessions"]
    until = times.now_ms() - (age or 0)
    found = [one for one in sessions if age is None or one["deletedAt"] <= until]
    for session in found:
        session["title"] = context.clean(session.get("title"))
    return found


def _agreed(sessions: list[dict[str, Any]], context: Context) -> bool:
    told = [
        f"{one['id']}  deleted {context.out.when(one['deletedAt'])}  {one['title'] or ''}".rstrip()
        for one in sessions
    ]
    return agreed("trash empty asks before it removes", "to be removed for good:", told, context)


def _print(report: dict[str, Any], context: Context) -> None:
    out = context.out
    if out.form == "json":
        out.json(report)
    elif out.form == "jsonl":
        for session in report["sessions"]:
            out.json(session)
    else:
        out.table(_COLUMNS, [_row(session, context) for session in report["sessions"]])


def _row(session: dict[str, Any], context: Context) -> list[str]:
    return [
        session["id"],
        context.out.when(session.get("deletedAt")),
        size(session.get("sizeBytes") or 0),
        as_object(session.get("header")).get("cwd") or "",
        session.get("title") or "",
    ]


def _footer(found: list[dict[str, Any]], arguments: Namespace, context: Context) -> None:
    out = context.out
    if not found:
        out.note("the trash is empty" if arguments.older_than is None else "nothing is as old")
    elif arguments.dry_run:
        out.note(
            f"{_told(found)} would be removed for good; nothing was changed: leave --dry-run out"
        )
    else:
        out.note(
            f"{_told(found)} in the trash; to bring one back: dshctl undelete ID;"
            " to remove them for good: dshctl trash empty --older-than 30d"
        )


def _told(sessions: list[dict[str, Any]]) -> str:
    total = sum(one.get("sizeBytes") or 0 for one in sessions)
    return f"{counted(len(sessions), 'session')} ({size(total)})"
