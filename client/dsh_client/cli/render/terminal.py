"""A session on a terminal: its time line in one row of characters, then a row for each turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_client.cli import figures
from dsh_client.cli.output import Column
from dsh_client.cli.render.marks import ended_text
from dsh_client.cli.render.model import FAILED, NOT_STARTED, UNKNOWN, elapsed, usage_of
from dsh_client.cli.render.timeline import lay_out, on_terminal
from dsh_client.cli.text import clip, escape

if TYPE_CHECKING:
    from dsh_client.cli.output import Output
    from dsh_client.cli.render.model import Model, Turn

_FANCY = {
    "idle": "·",
    "model": "▓",
    "tool": "░",
    "turn": "│",
    "crash": "✗",
    "recovery": "↻",
}
_PLAIN = {"idle": ".", "model": "=", "tool": "-", "turn": "|", "crash": "X", "recovery": "R"}
_COLUMNS = (
    Column("TURN"),
    Column("ENDED"),
    Column("STEPS", right=True),
    Column("CALLS"),
    Column("TOKENS"),
    Column("TIME", right=True),
    Column("ASKED", floor=8),
)
_WIDEST, _NARROWEST, _MARGIN = 100, 16, 11
_SHOWN_TURNS = 30


def print_turns(model: Model, out: Output) -> None:
    """Print the time line and the last turns of a session."""
    turns = model.turns
    if not turns:
        return
    out.line()
    _print_line(model, out)
    out.line()
    shown = turns[-_SHOWN_TURNS:]
    if len(shown) < len(turns):
        out.line(f"the last {len(shown)} of {len(turns)} turns:")
    out.table(_COLUMNS, [_row(turn) for turn in shown])


def _print_line(model: Model, out: Output) -> None:
    symbols = _FANCY
    try:
        "".join(_FANCY.values()).encode(out.terminal.encoding)
    except (UnicodeEncodeError, LookupError):
        symbols = _PLAIN
    columns = min((out.terminal.columns or _WIDEST) - _MARGIN, _WIDEST - _MARGIN)
    if columns < _NARROWEST:
        return
    line = lay_out(model)
    out.line(f"time line  {on_terminal(line, columns, symbols)}")
    names = {"model": "model", "tool": "tools", "turn": "next turn"}
    kinds = {point.kind for point in line.points}
    names |= {"crash": "cut off"} if "crash" in kinds else {}
    names |= {"recovery": "recovered"} if "recovery" in kinds else {}
    legend = "  ".join(f"{symbols[key]} {name}" for key, name in names.items())
    out.line(clip(f"           {legend}", out.terminal.columns or _WIDEST, out.terminal.ellipsis))


def _row(turn: Turn) -> list[str]:
    ended = turn.ended or "open"
    why = ended_text(turn.reason)
    tokens = usage_of(turn.steps)
    return [
        str(turn.number),
        f"{ended} ({clip(why, 40)})" if why else ended,
        str(len(turn.steps)),
        _calls(turn),
        figures.tokens(tokens),
        figures.span(elapsed(turn.time, turn.end_time)),
        clip(escape(turn.asked.replace("\n", " ")), 60),
    ]


def _calls(turn: Turn) -> str:
    calls = turn.calls
    if not calls:
        return "-"
    parts: list[str] = []
    for fate, name in ((FAILED, "failed"), (NOT_STARTED, "not started"), (UNKNOWN, "unknown")):
        if number := sum(call.fate == fate for call in calls):
            parts.append(f"{number} {name}")
    return f"{len(calls)} ({', '.join(parts)})" if parts else str(len(calls))
