"""A session as one page: no script, nothing from elsewhere, every word of the session as text.

The rule: what comes from a session passes `markup`; the page's own policy forbids everything else, so that even a fault
here could neither run nor fetch anything.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dsh_client.cli import times
from dsh_client.cli.figures import counted, span, tokens
from dsh_client.cli.render.calls import call_card
from dsh_client.cli.render.marks import ended_text
from dsh_client.cli.render.markup import block, folded, markup, prose
from dsh_client.cli.render.model import (
    FAILED,
    NOT_STARTED,
    UNKNOWN,
    Call,
    Mark,
    Model,
    Said,
    Step,
    Turn,
    elapsed,
    text_of,
    usage_of,
)
from dsh_client.cli.render.svg import draw
from dsh_client.cli.render.timeline import lay_out
from dsh_client.cli.values import as_list, as_object
from dsh_protocol.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_LONGEST_PROSE = 60_000
_BAD = (FAILED, UNKNOWN, NOT_STARTED)
_STATES = {"idle": "ok", "active": "warn"}


def render(model: Model, hidden: int) -> Iterator[str]:
    """Yield the page in pieces. `hidden` is how many likely secrets were left out of it."""
    title = markup(_title(model))
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{title}</title><style>{_style()}</style></head><body>"
    )
    yield from _head(model, title)
    yield "<main>"
    yield _due(model)
    yield _figure(model)
    yield _index(model)
    yield _given(model)
    number = 0
    recovered = False
    for item in model.items:
        if isinstance(item, Turn):
            number += 1
            yield from _turn(item, number, model)
            recovered = item.ended == "interrupted"
        elif recovered and isinstance(item, Mark) and item.kind == "session/end-seed":
            recovered = False  # the line below the turn has said it
        else:
            yield _said(item) if isinstance(item, Said) else _mark(item)
    yield "</main>"
    yield _foot(model, hidden)
    yield "</body></html>\n"


def _style() -> str:
    """Return the style sheet without its comments and line breaks."""
    text = Path(__file__).with_name("page.css").read_text("utf-8")
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)).strip()


def _title(model: Model) -> str:
    named = model.title or str(model.session.get("title") or "")
    if named:
        return named
    first = next((turn.asked for turn in model.turns if turn.asked), "")
    return first.split("\n", 1)[0][:120] or model.id


def _head(model: Model, title: str) -> Iterator[str]:
    state = str(model.session.get("state") or "")
    yield '<header class="top"><p class="over">agent session</p>'
    yield f'<h1 dir="auto">{title}</h1><p class="mono">{markup(model.id)}'
    yield f' <span class="badge {_STATES.get(state, "bad")}">{markup(state)}</span></p>'
    problem = as_object(model.session.get("problem"))
    if problem:
        yield (
            f'<div class="callout"><h2>{markup(problem.get("kind"))}</h2>'
            f"<p>{markup(problem.get('message'))}</p>What could be read is below.</div>"
        )
    yield '<dl class="facts">'
    for name, value in _facts(model):
        yield f"<div><dt>{name}</dt><dd>{markup(value)}</dd></div>"
    yield "</dl></header>"


def _facts(model: Model) -> Iterator[tuple[str, str]]:
    steps = [step for _, step in model.steps]
    calls = model.calls
    yield "turns", str(len(model.turns))
    yield "steps", str(len(steps))
    yield "tool calls", _bad_calls(calls)
    usage = usage_of(steps)
    if usage:
        yield "tokens", tokens(usage)
    took = [elapsed(turn.time, turn.end_time) for turn in model.turns]
    if known := [one for one in took if one is not None]:
        yield "time in turns", span(sum(known))
    if models := sorted({step.model for step in steps if step.model}):
        yield "model", ", ".join(models)
    header = model.header
    if header.get("cwd"):
        yield "directory", str(header["cwd"])
    if header.get("parentSession"):
        yield "forked from", str(header["parentSession"])
    yield "created", times.rfc3339(header.get("createdAt"))[:16].replace("T", " ")
    yield "events", str(model.events)


def _bad_calls(calls: list[Call]) -> str:
    counts = {fate: sum(call.fate == fate for call in calls) for fate in _BAD}
    parts = [f"{number} {fate}" for fate, number in counts.items() if number]
    return f"{len(calls)}" + (f" ({', '.join(parts)})" if parts else "")


def _due(model: Model) -> str:
    """Return what a recovery would say, where one is due."""
    if model.session.get("state") != "interrupted":
        return ""
    items = "".join(
        f'<li><a href="#{_target(call)}"><code>{markup(call.name)}</code></a>: {markup(call.fate)}</li>'
        for call in model.calls
        if call.due
    )
    turn = markup(model.session.get("openTurn"))
    calls = f"<p>No result is stored of these calls:</p><ul>{items}</ul>" if items else ""
    return (
        f'<div class="callout"><h2>Cut off in turn {turn}</h2>'
        f"<p>Its agent is gone and the turn is open. A recovery is due; nothing of it is written yet.</p>{calls}</div>"
    )


def _figure(model: Model) -> str:
    if not model.turns:
        return ""
    bad = any(call.fate in {FAILED, UNKNOWN} for call in model.calls)
    failed = '<span><i class="i-bad"></i>failed, or outcome unknown</span>' if bad else ""
    return (
        f'<figure aria-label="time line"><div class="scroll">{draw(lay_out(model))}</div><figcaption>'
        '<span><i class="i-model"></i>model</span><span><i class="i-tool"></i>tool</span>'
        f"{failed}"
        '<span><i class="i-tick"></i>checkpoint: durable from here on</span></figcaption></figure>'
    )


def _index(model: Model) -> str:
    turns = model.turns
    if len(turns) < 2:  # noqa: PLR2004  # one turn needs no index
        return ""
    rows = "".join(
        f'<li><a href="#t{number}"><b>{markup(turn.number)}</b><span class="asked" dir="auto">'
        f"{markup(turn.asked[:200])}</span>{_badge(turn)}</a></li>"
        for number, turn in enumerate(turns, 1)
    )
    return f'<nav aria-label="turns"><ol>{rows}</ol></nav>'


def _given(model: Model) -> str:
    """Return what the model was given beside the messages: the last snapshot."""
    if not model.requests:
        return ""
    _, header = model.requests[-1]
    parts: list[str] = []
    system = header.get("system")
    if isinstance(system, str) and system:
        parts.append(folded(system, "system prompt"))
    tools = [as_object(tool) for tool in as_list(header.get("tools"))]
    if tools:
        names = "".join(
            f"<li><code>{markup(tool.get('name'))}</code> {markup(str(tool.get('description') or '')[:140])}</li>"
            for tool in tools
        )
        parts.append(f'<ul class="tools">{names}</ul>')
    config = as_object(header.get("config"))
    settings = ", ".join(f"{name} {value}" for name, value in config.items())
    hint = ", ".join([settings, counted(len(tools), "tool")] if tools else [settings])
    return (
        f'<details class="aside"><summary>What the model was given <span class="hint">{markup(hint)}</span></summary>'
        f'<div class="body"><p>{markup(settings)}</p>{"".join(parts)}</div></details>'
    )


def _badge(turn: Turn) -> str:
    tone = {"completed": "ok", "interrupted": "bad", "error": "bad"}.get(turn.ended, "warn")
    return f'<span class="badge {tone}">{markup(turn.ended or "open")}</span>'


def _turn(turn: Turn, number: int, model: Model) -> Iterator[str]:
    usage = usage_of(turn.steps)
    about = [
        span(elapsed(turn.time, turn.end_time)),
        tokens(usage) if usage else "",
        counted(len(turn.calls), "call") if turn.calls else "",
        "taken over from the parent session" if turn.inherited else "",
    ]
    meta = " · ".join(part for part in about if part not in {"", "-"})
    yield (
        f'<section class="turn" id="t{number}"><header><h2>Turn {markup(turn.number)}</h2>{_badge(turn)}'
        f'<span class="meta">{markup(meta)}</span>{_clock(turn.time)}</header>'
    )
    for item in turn.items:
        if isinstance(item, Step):
            yield from _step(item)
        else:
            yield _said(item) if isinstance(item, Said) else _mark(item)
    why = ended_text(turn.reason)
    if turn.ended == "interrupted":
        yield (
            '<div class="cut">✗ cut off here</div>'
            '<div class="cut good">↻ recovered: the turn was closed and every open call got a verdict</div>'
        )
    elif turn.ended and turn.ended != "completed":
        yield f'<div class="cut">ended: {markup(turn.ended)} {markup(why)}</div>'
    elif not turn.ended and model.session.get("state") == "interrupted":
        yield '<div class="cut">✗ cut off here; a recovery is due</div>'
    yield "</section>"


def _step(step: Step) -> Iterator[str]:
    took = span(elapsed(step.request_time, step.answer_time))
    about = [
        f"step {step.number}",
        step.model,
        took if took != "-" else "",
        tokens(step.usage) if step.usage else "",
        counted(step.retries, "retry", "retries") if step.retries else "",
    ]
    yield f'<div class="step" id="e{step.seq}">{markup(" · ".join(part for part in about if part))}</div>'
    for item in step.items:
        if isinstance(item, Call):
            yield call_card(item, _target(item))
        else:
            yield _said(item) if isinstance(item, Said) else _mark(item)


def _said(said: Said) -> str:
    stands = ""
    if said.replaces is not None:
        first, last = said.replaces
        stands = f" · stands for events {first} to {last} in what the model sees"
    if said.role == "assistant":
        return _answer(said, stands)
    body = "".join(block(one) for one in said.blocks)
    if said.kind == "user":
        who = f'<div class="who">user{markup(stands)}{_clock(said.time)}</div>'
        return f'<div class="msg user" id="e{said.seq}">{who}<div class="body">{body}</div></div>'
    name = said.label or said.kind
    hint = text_of(said.blocks).split("\n", 1)[0][:160]
    return (
        f'<details class="aside" id="e{said.seq}"><summary>from {markup(name)}{markup(stands)} '
        f'<span class="hint" dir="auto">{markup(hint)}</span></summary><div class="body">{body}</div></details>'
    )


def _answer(said: Said, stands: str) -> str:
    parts = [
        f'<div class="prose">{prose(str(one.get("text", "")))}</div>'
        if one.get("type") == "text" and len(str(one.get("text", ""))) < _LONGEST_PROSE
        else block(one)
        for one in said.blocks
    ]
    note = " · streamed only: no message was stored" if said.draft else ""
    note += " · interrupted while it spoke" if said.cut else ""
    who = (
        f'<div class="who">{markup((stands + note).removeprefix(" · "))}</div>'
        if stands + note
        else ""
    )
    return f'<div class="msg" id="e{said.seq}">{who}<div class="body">{"".join(parts)}</div></div>'


def _mark(mark: Mark) -> str:
    if mark.kind == "session/end-seed":
        return f'<div class="cut good" id="e{mark.seq}">{markup(mark.text)}</div>'
    return f'<div class="mark {mark.tone}" id="e{mark.seq}">{markup(mark.text)}</div>'


def _target(call: Call) -> str:
    return f"c{call.seq}" if call.seq is not None else f"a{call.place}"


def _clock(time: object) -> str:
    text = times.rfc3339(time)
    if len(text) != len("2026-08-21T09:00:00.000Z"):
        return ""
    return f' <time class="meta" datetime="{text}" title="{text}">{text[11:19]}</time>'


def _foot(model: Model, hidden: int) -> str:
    secrets = f" {counted(hidden, 'likely secret')} hidden." if hidden else ""
    chunks = f", {counted(model.chunks, 'streamed piece')} folded" if model.chunks else ""
    return (
        f"<footer>{counted(model.events, 'event')}{chunks}.{secrets} Made by dshctl {markup(VERSION)}; "
        "times are UTC. The page holds no script and asks for nothing.</footer>"
    )
