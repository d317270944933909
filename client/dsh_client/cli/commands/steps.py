"""`dshctl steps`: a line for each step of a session: model, tools, tokens, time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli import figures
from dsh_client.cli.output import Column
from dsh_client.cli.reading import look, read_events
from dsh_client.cli.render.build import build
from dsh_client.cli.render.model import ANSWERED, Call, Step, Turn, elapsed
from dsh_protocol.errors import EXIT_OK

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from dsh_client.cli.context import Context

_COLUMNS = (
    Column("STEP"),
    Column("SEQ", right=True),
    Column("MODEL", floor=5),
    Column("TOKENS"),
    Column("MODEL TIME", right=True),
    Column("TIME", right=True),
    Column("END"),
    Column("TOOLS", floor=5),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what `steps` takes."""
    parser.add_argument("id", metavar="ID", help="an id, a unique beginning of one, or @last")
    parser.epilog = "example:\n  dshctl steps @last"


def run(arguments: Namespace, context: Context) -> int:
    """Print the steps."""
    source = look(arguments.id, context)
    model = build(source.session, source.recovery, read_events(source.id, context))
    steps = [_step(turn, step) for turn, step in model.steps]
    if context.out.form == "json":
        context.out.json({"id": source.id, "steps": steps})
    elif context.out.form == "jsonl":
        for step in steps:
            context.out.json(step)
    else:
        context.out.table(_COLUMNS, [_row(turn, step) for turn, step in model.steps])
        if not steps:
            context.out.note("there is no step yet")
    return EXIT_OK


def _step(turn: Turn, step: Step) -> dict[str, Any]:
    return {
        "turn": turn.number,
        "step": step.number,
        "startSeq": step.seq,
        "endSeq": step.end_seq,
        "startedAt": step.time,
        "endedAt": step.end_time,
        "durationMs": elapsed(step.time, step.end_time),
        "modelMs": elapsed(step.request_time, step.answer_time),
        "provider": step.provider or None,
        "model": step.model or None,
        "finish": step.finish or None,
        "retries": step.retries,
        "usage": step.usage,
        "calls": [_call(call) for call in step.calls],
    }


def _call(call: Call) -> dict[str, Any]:
    return {
        "callId": call.id,
        "name": call.name,
        "fate": call.fate,
        "code": call.code or None,
        "callSeq": call.seq,
        "resultSeq": call.end_seq,
        "durationMs": elapsed(call.time, call.end_time),
    }


def _row(turn: Turn, step: Step) -> list[str]:
    ended = step.end_seq is not None
    return [
        f"{turn.number}.{step.number}",
        str(step.seq),
        step.model or "-",
        figures.tokens(step.usage),
        figures.span(elapsed(step.request_time, step.answer_time)),
        figures.span(elapsed(step.time, step.end_time)),
        (step.finish or "ended") if ended else "open",
        ", ".join(_tool(call) for call in step.calls) or "-",
    ]


def _tool(call: Call) -> str:
    return call.name if call.fate == ANSWERED else f"{call.name} ({call.fate})"
