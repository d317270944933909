"""`dshctl du`: how much room sessions take, the largest first, and what lies in the trash beside them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsh_client.cli import figures
from dsh_client.cli.output import Column
from dsh_client.cli.values import as_object, count
from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context

_SHOWN = 20
_COLUMNS = (
    Column("SIZE", right=True),
    Column("SHARE", right=True),
    Column("EVENTS", right=True),
    Column("ID"),
    Column("UPDATED"),
    Column("TITLE", floor=5),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `du` takes."""
    parser.add_argument("id", metavar="ID", nargs="*", help="these sessions (default: all)")
    parser.add_argument(
        "-n", "--limit", metavar="N", type=count, default=_SHOWN, help="show N (default 20); 0: all"
    )
    parser.epilog = "example:\n  dshctl du -n 5"


def run(arguments: Namespace, context: Context) -> int:
    """Print sizes and their sum, of all, also of those that are not shown; the trash has a sum of its own."""
    sessions = _sessions(arguments.id, context)
    sessions.sort(key=lambda session: session.get("sizeBytes") or 0, reverse=True)
    total = _sum(sessions)
    trash = None if arguments.id else _trash(context)
    root = str(context.call("daemon.status").get("root"))
    free = _free(root)
    entries = [_entry(session, context) for session in sessions]
    if context.out.form == "json":
        report = {"totalBytes": total, "trash": trash, "root": root, "freeBytes": free}
        context.out.json({"sessions": entries, **report})
        return EXIT_OK
    shown = entries if arguments.limit == 0 else entries[: arguments.limit]
    if context.out.form == "jsonl":
        for entry in shown:
            context.out.json(entry)
        return EXIT_OK
    context.out.table(_COLUMNS, [_row(entry, total, context) for entry in shown])
    more = f", {len(shown)} shown" if len(shown) < len(entries) else ""
    context.out.line(
        f"{figures.size(total)} in {figures.counted(len(entries), 'session')}{more}; "
        f"{figures.size(free)} free at {root}"
    )
    if trash is not None and trash["sessions"]:
        deleted = figures.counted(trash["sessions"], "deleted session")
        context.out.line(f"{figures.size(trash['sizeBytes'])} more in {deleted}: dshctl trash")
    return EXIT_OK


def _sessions(names: list[str], context: Context) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        session = context.call_session("session.stat", name, {})[1]["session"]
        found[session["id"]] = session
    for page in () if names else context.sessions({}):
        found.update((session["id"], session) for session in page["sessions"])
    return list(found.values())


def _sum(sessions: list[dict[str, Any]]) -> int:
    return sum(session.get("sizeBytes") or 0 for session in sessions)


def _trash(context: Context) -> dict[str, int]:
    """Return how many sessions lie in the trash, and what they take."""
    deleted = context.call("session.list", {"deleted": True})["sessions"]
    return {"sessions": len(deleted), "sizeBytes": _sum(deleted)}


def _entry(session: dict[str, Any], context: Context) -> dict[str, Any]:
    return {
        "id": session["id"],
        "sizeBytes": session.get("sizeBytes"),
        "nextSeq": session.get("nextSeq"),
        "updatedAt": session.get("updatedAt"),
        "cwd": as_object(session.get("header")).get("cwd"),
        "title": context.clean(session.get("title")),
    }


def _row(entry: dict[str, Any], total: int, context: Context) -> list[str]:
    share = (entry["sizeBytes"] or 0) / total if total else 0
    return [
        figures.size(entry["sizeBytes"]),
        f"{share:.0%}",
        "-" if entry["nextSeq"] is None else str(entry["nextSeq"]),
        entry["id"],
        context.out.when(entry["updatedAt"]),
        entry["title"] or "",
    ]


def _free(root: str) -> int | None:
    try:
        room = os.statvfs(root)
    except (OSError, ValueError):
        return None
    return room.f_bavail * room.f_frsize
