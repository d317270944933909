"""`dshctl import`: what other programs wrote, as archived sessions that say where they come from.

The rule: a file is read and never changed, nothing in it is lost without a word, and a session is there whole or not at
all; what a killed import left says so in its title, and goes into the trash when the file is imported again. What was
not understood is told, by kind and line.
"""  # noqa: N999  # a verb's module has the verb's name

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.context import UsageError
from dsh_client.cli.figures import counted
from dsh_client.cli.importing.files import KINDS, Import
from dsh_client.cli.importing.known import Known
from dsh_client.cli.importing.meter import Meter
from dsh_client.errors import ClientError
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK, DshdError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `import` takes."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a bundle, or what another program wrote"
    )
    parser.add_argument(
        "--from",
        dest="kind",
        choices=tuple(KINDS),
        help="without it: a bundle of dshctl export. "
        + "; ".join(f"{name}: {text}" for name, text in KINDS.items()),
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="import a file once more that a session holds already; without it, that session is told",
    )
    parser.add_argument("--as", dest="wanted", metavar="ID", help="the new session's id")
    parser.epilog = (
        "Each becomes an archived session (dshctl list --archived). The exit code is 1 where a file was damaged.\n\n"
        "examples:\n  dshctl import run.tar --as again\n"
        "  dshctl import --from claude-code ~/.claude/projects/*/*.jsonl"
    )


def run(arguments: Namespace, context: Context) -> int:
    """Import one file after the other; one that fails does not stop the next."""
    if arguments.wanted is not None and len(arguments.files) > 1:
        raise UsageError(
            "--as names one session, and there are several files; import them one by one"
        )
    if arguments.kind is None:
        from dsh_client.cli.importing.bundles import take_in

        return take_in(arguments.files, arguments.wanted, context)
    reports: list[dict[str, Any]] = []
    meter, known = Meter(), Known(context)
    try:
        for path in arguments.files:
            found = _one(path, arguments, context, (meter, known))
            reports.append(found)
            if context.out.form == "jsonl":
                context.out.json(found)
            elif context.out.is_table:
                _tell(found, context)
    finally:
        meter.clear()
        if context.out.form == "json":
            context.out.json({"imported": reports})
    failed = any(found["damaged"] or found["error"] for found in reports)
    return EXIT_FAILURE if failed else EXIT_OK


def _one(
    path: str, arguments: Namespace, context: Context, shared: tuple[Meter, Known]
) -> dict[str, Any]:
    meter, known = shared
    job = Import(context, arguments.kind, path, arguments.wanted)
    error = None
    try:
        job.run(meter, known, again=arguments.again)
    except OSError as failure:
        error = f"cannot read {path!r}: {failure.strerror or failure}"
    except DshdError as failure:
        # What came of the session is known; where the daemon itself is gone, the next file would fail alike.
        error = f"{failure.message} [{failure.kind}]"
    except ClientError:
        meter.clear()
        raise
    meter.clear()
    sessions = [{"id": one["id"], "events": one["nextSeq"]} for one in job.sessions]
    return {
        "file": path,
        "sessions": sessions,
        "already": job.already,
        "putAway": job.put_away,
        "error": error,
        **job.report.document(),
    }


def _tell(found: dict[str, Any], context: Context) -> None:
    out = context.out
    for session in found["sessions"]:
        out.line(f"{found['file']}: {session['id']}, {counted(session['events'], 'event')}")
    for one in found["putAway"]:
        out.note(f"{one}, what a broken-off import of {found['file']} had left, is in the trash")
    if found["error"]:
        out.note(f"dshctl: {found['file']} was not imported: {found['error']}")
        return
    if found["already"]:
        held = ", ".join(found["already"])
        out.line(f"{found['file']} was imported before: {held}; to do it once more, add --again")
        return
    out.line(
        f"  {counted(found['messages'], 'message')}, {counted(found['calls'], 'call')}, "
        f"{counted(found['results'], 'result')}; {counted(found['kept'], 'record')} kept as they are"
    )
    for one in found["notUnderstood"]:
        where = ", ".join(map(str, one["lines"])) + (
            ", …" if one["count"] > len(one["lines"]) else ""
        )
        word = "damage" if one["damage"] else "kept"
        out.line(f"  {word}: {one['kind']}: {one['count']} (line {where})")
