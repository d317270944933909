"""`dshctl prune`: what was not used for long, into the trash.

The rule: it does nothing unless a person runs it with `--apply`, and it never takes a session that is unfinished, in
use, pinned, odd in any way, or that another was forked from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli import times
from dsh_client.cli.output import Column
from dsh_client.cli.values import as_object, duration
from dsh_protocol.errors import EXIT_OK, SessionBusyError, SessionNotFoundError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context

_COLUMNS = (
    Column("ID"),
    Column("UPDATED"),
    Column("TURNS", right=True),
    Column("CWD", floor=5),
    Column("TITLE", floor=5),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `prune` takes."""
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=duration,
        required=True,
        help="not used for so long: 30d, 12h, 2w",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="only show them (default)")
    what.add_argument("--apply", action="store_true", help="put them into the trash")
    parser.epilog = "example:\n  dshctl prune --older-than 90d"


def run(arguments: Namespace, context: Context) -> int:
    """Print what would go, or went; and how many that are old enough stay, and why."""
    sessions = [one for page in context.sessions({}) for one in page["sessions"]]
    until = times.now_ms() - arguments.older_than
    due, kept = _chosen(sessions, until)
    deleted: list[str] = []
    try:
        for session in due if arguments.apply else ():
            arguments.id = session["id"]  # what an error is about
            try:
                context.call("session.delete", {"id": session["id"]})
            except (SessionBusyError, SessionNotFoundError):  # it was opened, or went, meanwhile
                kept["in use"] = kept.get("in use", 0) + 1
                continue
            deleted.append(session["id"])
    finally:
        shown = [one for one in due if one["id"] in set(deleted)] if arguments.apply else due
        for session in shown:
            session["title"] = context.clean(session.get("title"))
        report = {"sessions": shown, "applied": bool(arguments.apply), "kept": kept}
        _print(report, context)
    return EXIT_OK


def _chosen(
    sessions: list[dict[str, Any]], until: int
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the sessions that may go, and how many of the old ones stay for each reason."""
    parents = {as_object(one.get("header")).get("parentSession") for one in sessions}
    due: list[dict[str, Any]] = []
    kept: dict[str, int] = {}
    for session in sessions:
        if max(session.get("updatedAt") or 0, session.get("createdAt") or 0) > until:
            continue
        reason = _reason(session, parents)
        if reason is None:
            due.append(session)
        else:
            kept[reason] = kept.get(reason, 0) + 1
    return due, kept


def _reason(session: dict[str, Any], parents: set[Any]) -> str | None:
    """Return why a session stays; None where it may go."""
    if session.get("writer") or str(session.get("revision")).startswith("live:"):
        return "in use"
    if as_object(session.get("labels")).get("pinned"):
        return "pinned"
    if session["id"] in parents:
        return "forked from"
    return None if session.get("state") == "idle" else str(session.get("state"))


def _print(report: dict[str, Any], context: Context) -> None:
    out = context.out
    if out.form == "json":
        out.json(report)
        return
    if out.form == "jsonl":
        for session in report["sessions"]:
            out.json(session)
        return
    rows = [
        [
            session["id"],
            out.when(session.get("updatedAt")),
            str(session.get("turns")),
            as_object(session.get("header")).get("cwd") or "",
            session.get("title") or "",
        ]
        for session in report["sessions"]
    ]
    out.table(_COLUMNS, rows)
    count = len(rows)
    if not count:
        out.note("nothing is due")
    elif report["applied"]:
        out.note(f"{count} are in the trash; to bring one back: dshctl undelete ID")
    else:
        out.note(f"{count} would go; nothing was changed: to do it, add --apply")
    for reason, number in sorted(report["kept"].items()):
        out.note(f"{number} as old stay: {reason}")
