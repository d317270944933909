"""`dshctl list`: the sessions, newest activity first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsh_client.cli.output import Column
from dsh_client.cli.values import as_object, count
from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context

_STATES = ("idle", "active", "interrupted", "damaged", "unsupported", "unknown")
_LIMIT = 100
_COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("TURNS", right=True),
    Column("EVENTS", right=True),
    Column("UPDATED"),
    Column("OWNER", floor=5),
    Column("CWD", floor=5),
    Column("TITLE", floor=5),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `list` takes."""
    parser.add_argument(
        "-n",
        "--limit",
        metavar="N",
        type=count,
        default=_LIMIT,
        help="at most N sessions (default 100); 0: all",
    )
    parser.add_argument(
        "-s",
        "--state",
        action="append",
        choices=_STATES,
        help="only this state; may be given again",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cwd", metavar="DIR", help="only sessions of this working directory")
    where.add_argument("--here", action="store_true", help="only sessions of the current directory")
    parser.add_argument("-q", "--quiet", action="store_true", help="ids only, one a line")


def run(arguments: Namespace, context: Context) -> int:
    """Print the list; several pages become one."""
    filters: dict[str, Any] = {}
    if arguments.state:
        filters["states"] = arguments.state
    if arguments.cwd is not None or arguments.here:
        filters["cwd"] = os.path.abspath(arguments.cwd or ".")  # noqa: PTH100  # pathlib costs 5 ms at start
    limit = arguments.limit if arguments.limit > 0 else None
    pages = list(context.sessions(filters, limit))
    merged = {**pages[-1], "sessions": _distinct(pages)}
    titled = [session for session in merged["sessions"] if session.get("title")]
    if titled and context.redactor is not None:
        titles = context.redactor.texts([str(session["title"]) for session in titled])
        for session, title in zip(titled, titles, strict=True):
            session["title"] = title
    if context.out.form == "json":
        context.out.json(merged)
        return EXIT_OK
    for session in merged["sessions"]:
        if arguments.quiet:
            context.out.line(session["id"])
        elif context.out.form == "jsonl":
            context.out.json(session)
    if context.out.is_table and not arguments.quiet:
        context.out.table(_COLUMNS, [_row(session, context) for session in merged["sessions"]])
        _footer(merged, filters, context)
    return EXIT_OK


def _distinct(pages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sessions of all pages; one that changed meanwhile came twice, and its later state is kept."""
    found: dict[str, dict[str, Any]] = {}
    for page in pages:
        found.update((session["id"], session) for session in page["sessions"])
    return list(found.values())


def _row(session: dict[str, Any], context: Context) -> list[str]:
    turns = session.get("turns")
    events = session.get("nextSeq")
    writer = as_object(session.get("writer"))
    owner = f"{writer.get('client')} ({writer.get('pid')})" if writer else ""
    header = as_object(session.get("header"))
    return [
        session["id"],
        str(session.get("state")),
        "-" if turns is None else str(turns),
        "-" if events is None else str(events),
        context.out.when(session.get("updatedAt")),
        owner,
        header.get("cwd") or "",
        session.get("title") or "",
    ]


def _footer(merged: dict[str, Any], filters: dict[str, Any], context: Context) -> None:
    """Say on standard error what the table does not show."""
    sessions = merged["sessions"]
    if not sessions:
        context.out.note(
            "no session " + ("matches; try: dshctl list" if filters else "is stored yet")
        )
    elif merged.get("nextCursor") is not None:
        context.out.note(f"{len(sessions)} sessions shown, there are more; try: dshctl list -n 0")
    elif "cwd" in filters:
        context.out.note(f"sessions of {filters['cwd']} only; all of them: dshctl list")
    states = [session.get("state") for session in sessions]
    if damaged := states.count("damaged"):
        context.out.note(f"{damaged} damaged; see what is wrong with: dshctl show ID")
    if newer := states.count("unsupported"):
        context.out.note(f"{newer} written by a newer or other program; a newer dshd may read more")
