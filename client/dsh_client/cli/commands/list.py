"""`dshctl list`: the sessions, newest activity first.

The rule: what is not shown is said. At a terminal the list begins with the current directory's sessions, where it has
any; a program gets those of all directories. Archived ones are shown when they are asked for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsh_client.cli.figures import counted
from dsh_client.cli.output import Column
from dsh_client.cli.times import moment
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
        *("-n", "--limit"),
        metavar="N",
        type=count,
        default=_LIMIT,
        help="at most N sessions, or trees (default 100); 0: all",
    )
    parser.add_argument(
        *("-s", "--state"),
        action="append",
        choices=_STATES,
        help="only this state; may be given again",
    )
    parser.add_argument(
        "--since", metavar="WHEN", type=moment, help="used since then: 2d, 12h, 2026-08-21"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cwd", metavar="DIR", help="only sessions of this working directory")
    where.add_argument("--here", action="store_true", help="only sessions of the current directory")
    where.add_argument(
        "-a", "--all", action="store_true", help="of all directories, and archived ones too"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--archived", action="store_true", help="only archived sessions")
    which.add_argument("--deleted", action="store_true", help="what lies in the trash")
    parser.add_argument(
        "--tree", action="store_true", help="forks and sub-agents below what they came from"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="ids only, one a line")
    parser.epilog = "example:\n  dshctl list --state interrupted --since 2d"


def run(arguments: Namespace, context: Context) -> int:
    """Print the list; several pages become one."""
    filters = _filters(arguments)
    if context.out.is_table and not arguments.quiet:
        filters["count"] = True
    limit = arguments.limit if arguments.limit > 0 and not arguments.tree else None
    pages: list[dict[str, Any]] = []
    if _begins_here(arguments, context) and "cwd" not in filters:
        here = {**filters, "cwd": _absolute(".")}
        pages = list(context.sessions(here, limit))
        filters = here if pages[0]["sessions"] else filters
    if not pages or not pages[0]["sessions"]:
        pages = list(context.sessions(filters, limit))
    merged = {**pages[-1], "sessions": _distinct(pages)}
    if "total" in pages[0]:
        merged["total"] = pages[0]["total"]
    _clean(merged["sessions"], context)
    if context.out.form == "json":
        context.out.json(merged)
    elif context.out.form == "jsonl":
        for session in merged["sessions"]:
            context.out.json(session)
    else:
        _print(merged, arguments, context)
        if not arguments.quiet:
            _footer(merged, filters, context)
    return EXIT_OK


def _filters(arguments: Namespace) -> dict[str, Any]:
    filters: dict[str, Any] = {}
    if arguments.deleted:
        filters["deleted"] = True
    elif arguments.archived:
        filters["archived"] = True
    elif not arguments.all:
        filters["archived"] = False
    if arguments.state:
        filters["states"] = arguments.state
    if arguments.since is not None:
        filters["since"] = arguments.since
    if arguments.cwd is not None or arguments.here:
        filters["cwd"] = _absolute(arguments.cwd or ".")
    return filters


def _begins_here(arguments: Namespace, context: Context) -> bool:
    at_terminal = context.out.is_table and context.out.terminal.columns is not None
    return at_terminal and not (arguments.all or arguments.archived or arguments.deleted)


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100  # pathlib costs 5 ms at start


def _distinct(pages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sessions of all pages; one that changed meanwhile came twice, and its later state is kept."""
    found: dict[str, dict[str, Any]] = {}
    for place, page in enumerate(pages):
        for session in page["sessions"]:
            # In the trash an id may lie several times, each a session of its own.
            key = f"{place}/{session['id']}/{session.get('deletedAt')}"
            found[key if "deletedAt" in session else session["id"]] = session
    return list(found.values())


def _clean(sessions: list[dict[str, Any]], context: Context) -> None:
    titled = [session for session in sessions if session.get("title")]
    if titled and context.redactor is not None:
        titles = context.redactor.texts([str(session["title"]) for session in titled])
        for session, title in zip(titled, titles, strict=True):
            session["title"] = title


def _print(merged: dict[str, Any], arguments: Namespace, context: Context) -> None:
    rows = [("", session) for session in merged["sessions"]]
    if arguments.tree:
        from dsh_client.cli.family import branches  # most lists are flat

        rows = branches(merged["sessions"], arguments.limit, context.out.terminal.encoding)
    if arguments.quiet:
        for _, session in rows:
            context.out.line(session["id"])
    else:
        context.out.table(_COLUMNS, [_row(branch, session, context) for branch, session in rows])


def _row(branch: str, session: dict[str, Any], context: Context) -> list[str]:
    turns = session.get("turns")
    events = session.get("nextSeq")
    writer = as_object(session.get("writer"))
    owner = f"{writer.get('client')} ({writer.get('pid')})" if writer else ""
    header = as_object(session.get("header"))
    labels = as_object(session.get("labels"))
    marks = "".join(f"[{mark}] " for mark in ("archived", "pinned") if labels.get(mark))
    return [
        f"{branch}{session['id']}",
        str(session.get("state")),
        "-" if turns is None else str(turns),
        "-" if events is None else str(events),
        context.out.when(session.get("updatedAt")),
        owner,
        header.get("cwd") or "",
        marks + (session.get("title") or ""),
    ]


def _footer(merged: dict[str, Any], filters: dict[str, Any], context: Context) -> None:
    """Say on standard error what the table does not show."""
    sessions, out = merged["sessions"], context.out
    more = "; for all add -n 0" if merged.get("nextCursor") is not None else ""
    narrowed = filters.keys() - {"count", "archived"} or filters.get("archived")
    if not sessions:
        out.note(
            "no session " + ("matches; try: dshctl list --all" if narrowed else "is stored yet")
        )
    elif "total" in merged:
        out.note(f"{len(sessions)} of {merged['total']} sessions{_where(filters)}{more}")
    elif more:
        out.note(f"{counted(len(sessions), 'session')} shown, there are more{more}")
    states = [session.get("state") for session in sessions]
    if damaged := states.count("damaged"):
        out.note(f"{damaged} damaged; see what is wrong with: dshctl show ID")
    if newer := states.count("unsupported"):
        out.note(f"{newer} written by a newer or other program; a newer dshd may read more")


def _where(filters: dict[str, Any]) -> str:
    if "cwd" in filters:
        return f" of {filters['cwd']}; of all directories: dshctl list --all"
    if filters.get("deleted"):
        return " in the trash; to bring one back: dshctl undelete ID; its sizes: dshctl trash"
    return ""
