"""`dshctl recover`: what closing an interrupted turn would write; with `--apply`, write it.

The rule: without `--apply` nothing is opened for writing, and a living agent's session is never taken without
`--takeover`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.context import UsageError
from dsh_client.cli.hints import command
from dsh_client.cli.transcript import print_repairs
from dsh_client.cli.values import as_list, as_object
from dsh_client.errors import ClientError
from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK, DshdError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context
    from dsh_client.cli.output import Output


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `recover` takes."""
    parser.add_argument("id", metavar="ID", help="an id, a unique beginning of one, or @last")
    parser.add_argument(
        "--apply",
        action="store_true",
        help="close the turn; without it, only show what would be done",
    )
    parser.add_argument(
        "--takeover",
        action="store_true",
        help="with --apply: also where the agent that has it reserved still lives",
    )
    parser.epilog = "example:\n  dshctl recover 0198 --apply"


def run(arguments: Namespace, context: Context) -> int:
    """Print the recovery: the preview, or what was committed."""
    if arguments.takeover and not arguments.apply:
        raise UsageError("--takeover does nothing without --apply")
    if arguments.apply:
        name, recovery = _apply(arguments, context)
        problem = None
    else:
        name, recovery, problem = _preview(arguments, context)
    recovery = context.clean(recovery)
    if problem:
        context.out.note(f"dshctl: --apply would be refused: {problem}")
        context.out.note(f"try: {command('show', name)}")
    if not context.out.is_table:
        context.out.json(recovery)
    elif not problem:
        _print(name, recovery, context.out)
    return EXIT_FAILURE if problem else EXIT_OK


def _preview(arguments: Namespace, context: Context) -> tuple[str, dict[str, Any], str | None]:
    """Return the recovery that a write-open would find due, an empty one where nothing is, and what forbids it."""
    name, opened = context.call_session("session.open", arguments.id, {"access": "read"})
    session = opened["session"]
    writer = as_object(session.get("writer"))
    if writer:
        context.out.note(
            f"pid {writer.get('pid')} ({writer.get('client')}) has this session; nothing is mended while it lives"
        )
    empty: dict[str, Any] = {
        "committed": False,
        "repairs": [],
        "closers": [],
        "nextSeq": session.get("nextSeq"),
    }
    problem = as_object(session.get("problem"))
    text = f"{problem.get('message')} [{problem.get('kind')}]" if problem else None
    return name, as_object(opened.get("recovery")) or empty, text


def _apply(arguments: Namespace, context: Context) -> tuple[str, dict[str, Any]]:
    """Open for writing, recover, close. The handle is given back also where the recovery fails."""
    params: dict[str, Any] = {"access": "write"}
    if arguments.takeover:
        params["takeover"] = True
    name, opened = context.call_session("session.open", arguments.id, params)
    handle = {"id": name, "writer": opened["writer"]}
    try:
        recovery = context.call("session.recover", handle)
    except (DshdError, ClientError):
        _close_quietly(handle, context)
        raise
    context.call("session.close", handle)
    return name, recovery


def _close_quietly(handle: dict[str, Any], context: Context) -> None:
    """Close after a failure; what matters is the first error."""
    try:
        context.call("session.close", handle)
    except (DshdError, ClientError) as error:
        context.out.note(f"dshctl: the handle was given back with an error: {error.message}")


def _print(name: str, recovery: dict[str, Any], out: Output) -> None:
    closers, repairs = as_list(recovery.get("closers")), as_list(recovery.get("repairs"))
    done = bool(recovery.get("committed"))
    if not closers and not repairs:
        out.line("nothing to recover: the last turn is closed")
        return
    print_repairs(recovery, out)
    for repair in repairs:
        out.line(f"{repair.get('callId')}: {repair.get('message')}")
    verb = "were written" if done else "would be written"
    out.line(f"{len(closers)} closing events {verb}; the next event is {recovery.get('nextSeq')}")
    if done:
        out.line(f"next: {command('messages', name)}")
    else:
        out.line(f"nothing was changed; to write them: {command('recover', name, '--apply')}")
