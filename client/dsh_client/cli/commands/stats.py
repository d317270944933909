"""`dshctl stats`: turns, calls, errors and tokens; what a fork inherited is counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli import figures
from dsh_client.cli.output import Column
from dsh_client.cli.tally import Tally, first_own_seqs, inheritance
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK, DshdError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context

_COLUMNS = (
    Column("ID"),
    Column("TURNS", right=True),
    Column("STEPS", right=True),
    Column("CALLS", right=True),
    Column("FAILED", right=True),
    Column("CUT OFF", right=True),
    Column("IN", right=True),
    Column("CACHED", right=True),
    Column("OUT", right=True),
    Column("NOTE", floor=6),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `stats` takes."""
    parser.add_argument("id", metavar="ID", nargs="*", help="these sessions (default: all)")
    parser.add_argument("--cwd", metavar="DIR", help="only sessions of this working directory")
    parser.epilog = "examples:\n  dshctl stats\n  dshctl stats @last"


def run(arguments: Namespace, context: Context) -> int:
    """Count, session by session, and print; one that cannot be read is named and the exit code is 1."""
    sessions = _sessions(arguments, context)
    starts = first_own_seqs(sessions)
    total, rows, failed = Tally(), list[dict[str, Any]](), 0
    for session in sessions:
        tally = Tally()
        try:
            _count(session["id"], starts[session["id"]], tally, context)
        except DshdError as error:
            failed += 1
            context.out.note(f"dshctl: {session['id']} is counted in part only: {error.message}")
        total.add(tally)
        rows.append(_entry(session, starts[session["id"]], tally))
        if context.out.form == "jsonl":
            context.out.json(rows[-1])
    if context.out.form == "json":
        context.out.json({"sessions": rows, "total": total.as_wire()})
    elif context.out.is_table:
        _print(rows, total, context)
    return EXIT_FAILURE if failed else EXIT_OK


def _sessions(arguments: Namespace, context: Context) -> list[dict[str, Any]]:
    named = [context.call_session("session.stat", name, {})[1]["session"] for name in arguments.id]
    if named:
        return list({session["id"]: session for session in named}.values())
    filters = {} if arguments.cwd is None else {"cwd": arguments.cwd}
    found: dict[str, dict[str, Any]] = {}
    for page in context.sessions(filters):
        found.update((session["id"], session) for session in page["sessions"])
    return list(found.values())


def _count(session_id: str, start: int, tally: Tally, context: Context) -> None:
    """Count a session's events; they are not shown, so that none is cleaned."""
    offset = start
    while True:
        page = context.call("session.read", {"id": session_id, "offset": offset})
        for event in page["events"]:
            tally.take(event)
        offset = page["nextOffset"]
        if page["end"] or not page["events"]:
            return


def _entry(session: dict[str, Any], start: int, tally: Tally) -> dict[str, Any]:
    parent, length = inheritance(session)
    return {
        "id": session["id"],
        "parent": parent or None,
        "inheritedEvents": length,
        "countedFrom": start,
        **tally.as_wire(),
    }


def _print(rows: list[dict[str, Any]], total: Tally, context: Context) -> None:
    lines = [_row(entry, _remark(entry)) for entry in rows]
    if len(rows) != 1:
        lines.append(_row({"id": "total", **total.as_wire()}, ""))
    context.out.table(_COLUMNS, lines)
    if not rows:
        context.out.note("no session is stored yet")
    for name, counter in (("models", total.models), ("tools", total.tools)):
        shown = ", ".join(f"{one} {count}" for one, count in counter.most_common(12))
        if shown:
            context.out.line(f"{name}: {shown}")


def _remark(entry: dict[str, Any]) -> str:
    if entry["countedFrom"]:
        return f"after what it took over from {entry['parent']}"
    return ""


def _row(entry: dict[str, Any], remark: str) -> list[str]:
    cut = entry["notStarted"] + entry["outcomeUnknown"]
    counts = (entry[name] for name in ("turns", "steps", "calls", "failedCalls"))
    tokens = (figures.tokens_in(entry), entry["cacheReadTokens"], entry["outputTokens"])
    return [entry["id"], *map(str, counts), str(cut), *map(figures.many, tokens), remark]
