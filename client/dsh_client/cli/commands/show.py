"""`dshctl show`: one session, what is due in it, and what to do next."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsh_client.cli.hints import command
from dsh_client.cli.reading import open_for_reading, read_events
from dsh_client.cli.text import shell_word
from dsh_client.cli.transcript import print_repairs
from dsh_client.cli.values import as_list, as_object
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK, DshdError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context
    from dsh_client.cli.output import Output

_LONG = 100_000


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `show` takes."""
    parser.add_argument("id", metavar="ID", help="an id, a unique beginning of one, or @last")
    parser.add_argument(
        "-b", "--brief", action="store_true", help="without the turns and the time line"
    )
    parser.epilog = "example:\n  dshctl show @last"


def run(arguments: Namespace, context: Context) -> int:
    """Print one session. A session with a problem is shown as far as it goes, and the exit code is 1."""
    opened = open_for_reading(arguments.id, context)
    session = opened["session"]
    if not context.out.is_table:
        context.out.json(opened)
    else:
        context.out.fields(_fields(session, context.out))
        if not arguments.brief:
            _summarise(opened, context)
        recovery = as_object(opened.get("recovery"))
        if recovery.get("repairs"):
            context.out.line()
            print_repairs(recovery, context.out)
        context.out.line()
        context.out.line(f"next: {_next(session)}")
    return EXIT_OK if session.get("problem") is None else EXIT_FAILURE


def _summarise(opened: dict[str, Any], context: Context) -> None:
    """Print the turns and the time line, where the log is short enough to be read for a look."""
    session = opened["session"]
    if (session.get("nextSeq") or 0) > _LONG:
        context.out.note(
            f"the log is long, so its turns are not shown; try: {command('steps', session['id'])}"
        )
        return
    from dsh_client.cli.render.build import build  # `--brief` and programs need none of it
    from dsh_client.cli.render.terminal import print_turns

    try:
        events = list(read_events(session["id"], context))
    except DshdError as error:
        context.out.note(f"dshctl: the turns cannot be read: {error.message}")
        return
    print_turns(build(session, as_object(opened.get("recovery")), events), context.out)


def _fields(session: dict[str, Any], out: Output) -> list[tuple[str, str]]:
    header = as_object(session.get("header"))
    rows = [
        ("session", session["id"]),
        ("title", session.get("title") or "-"),
        ("state", _state(session)),
        ("owner", _owner(as_object(session.get("writer")), out)),
        ("cwd", _cwd(header.get("cwd"))),
        ("created", out.when(session.get("createdAt"))),
        ("updated", out.when(session.get("updatedAt"))),
        ("turns", _count(session.get("turns"))),
        (
            "events",
            f"{_count(session.get('nextSeq'))}, durable {_count(session.get('durableSeq'))}",
        ),
        ("size", f"{_count(session.get('sizeBytes'))} bytes"),
        ("open calls", ", ".join(map(str, as_list(session.get("pendingCalls")))) or "none"),
    ]
    if header.get("parentSession"):
        rows.append(("forked from", header["parentSession"]))
    problem = as_object(session.get("problem"))
    if problem:
        rows.append(("problem", f"{problem.get('kind')}: {problem.get('message')}"))
        offset = problem.get("offset")
        at = "" if offset is None else f", byte {offset}"
        rows.append(("where", f"{problem.get('path')}{at}"))
    return rows


def _count(value: object) -> str:
    return "unknown" if value is None else str(value)


def _state(session: dict[str, Any]) -> str:
    state = str(session.get("state"))
    turn, step = session.get("openTurn"), session.get("openStep")
    if turn is None:
        return state
    return f"{state}, in turn {turn}" + ("" if step is None else f", step {step}")


def _owner(writer: dict[str, Any], out: Output) -> str:
    if not writer:
        return "none"
    tie = (
        "connected" if writer.get("connected") else "not connected; reserved for it while it lives"
    )
    return f"{writer.get('client')}, pid {writer.get('pid')}, since {out.when(writer.get('since'))}, {tie}"


def _cwd(cwd: str | None) -> str:
    if cwd is None:
        return "-"
    try:
        present = os.path.isdir(cwd)  # noqa: PTH112  # pathlib costs 5 ms at start
    except ValueError:
        present = False
    return cwd if present else f"{cwd} (this directory is missing)"


def _next(session: dict[str, Any]) -> str:
    """Return the command that most likely comes next."""
    name, state = session["id"], session.get("state")
    if state == "interrupted":
        return command("recover", name)
    if state == "damaged":
        return f"dshd verify {shell_word(name)}"
    if state in {"unsupported", "active"}:
        return command("log", name, "-n", "20")
    return command("messages", name)
