"""A session as Markdown. The rule: what is said stands in block quotes and fences that it cannot leave.

A renderer of Markdown may let HTML and images through. So tags and images in what was said are made text, and the only
fences are our own, each longer than any run of its sign inside.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dsh_client.cli import times
from dsh_client.cli.figures import counted, span, tokens
from dsh_client.cli.render.calls import VERDICTS
from dsh_client.cli.render.marks import ended_text
from dsh_client.cli.render.model import Call, Mark, Model, Said, Step, Turn, elapsed, usage_of
from dsh_client.cli.text import escape, escape_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_client.cli.render.model import Json

_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})[ ]{0,8}([\w+.-]{0,40})")
_LINE_SIGNS = re.compile(r"([\\`*_\[\]<>#|~])")


def render(model: Model, hidden: int) -> Iterator[str]:
    """Yield the document in pieces. `hidden` is how many likely secrets were left out of it."""
    title = model.title or str(model.session.get("title") or "") or model.id
    yield f"# {line(title)}\n\n"
    for name, value in _facts(model):
        yield f"* {name}: {line(value)}\n"
    if hidden:
        yield f"* {counted(hidden, 'likely secret')} hidden\n"
    for item in model.items:
        if isinstance(item, Turn):
            yield from _turn(item)
        else:
            yield _said(item) if isinstance(item, Said) else _mark(item)


def line(text: object) -> str:
    """Return text as one line of plain text."""
    return _LINE_SIGNS.sub(r"\\\1", escape(str(text)))


def quoted(text: str) -> str:
    """Return what was said as a block quote; code in it stays code."""
    out: list[str] = []
    fence = ""
    longest = _longest_run(text)
    for raw in escape_lines(text.replace("\r\n", "\n")).split("\n"):
        found = _FENCE.match(raw)
        if not fence and found:
            fence = found[1]
            out.append("`" * longest + found[2])
        elif fence and len(raw.strip()) >= len(fence) and set(raw.strip()) == {fence[0]}:
            fence = ""
            out.append("`" * longest)
        else:
            out.append(raw if fence else _inert(raw))
    if fence:
        out.append("`" * longest)
    return "".join(f"> {one}\n" if one else ">\n" for one in out)


def fenced(text: str, kind: str = "") -> str:
    """Return text word for word in a fence that it cannot close."""
    sign = "`" * _longest_run(text)
    return f"{sign}{kind}\n{escape_lines(text)}\n{sign}\n"


def _longest_run(text: str) -> int:
    return max([2, *(len(run) for run in re.findall(r"`+", text))]) + 1


def _inert(text: str) -> str:
    """Return a line without tags, images and runs that could open a fence."""
    text = text.replace("<", r"\<").replace("![", r"!\[")
    return re.sub(r"`{3,}|~{3,}", lambda run: "".join(f"\\{sign}" for sign in run[0]), text)


def _facts(model: Model) -> Iterator[tuple[str, str]]:
    steps = [step for _, step in model.steps]
    yield "session", model.id
    yield "state", str(model.session.get("state"))
    yield "created", times.rfc3339(model.header.get("createdAt"))
    if model.header.get("cwd"):
        yield "directory", str(model.header["cwd"])
    if models := sorted({step.model for step in steps if step.model}):
        yield "model", ", ".join(models)
    counts = ((len(model.turns), "turn"), (len(steps), "step"), (len(model.calls), "call"))
    yield "size", ", ".join(counted(count, name) for count, name in counts)
    if usage := usage_of(steps):
        yield "tokens", tokens(usage)


def _turn(turn: Turn) -> Iterator[str]:
    took = span(elapsed(turn.time, turn.end_time))
    yield f"\n## Turn {line(turn.number)}\n\n"
    for item in turn.items:
        if isinstance(item, Step):
            yield from _step(item)
        else:
            yield _said(item) if isinstance(item, Said) else _mark(item)
    if turn.ended == "interrupted":
        yield "\n**Cut off here, and recovered:** every open call got a verdict.\n"
    elif turn.ended:
        yield f"\n*{line(turn.ended)}* {line(ended_text(turn.reason))}".rstrip() + f" ({took})\n"
    else:
        yield "\n**The turn is open.**\n"


def _step(step: Step) -> Iterator[str]:
    about = [step.model, tokens(step.usage) if step.usage else ""]
    yield f"\n### Step {line(step.number)}"
    more = ", ".join(line(one) for one in about if one)
    yield f" ({more})\n" if more else "\n"
    for item in step.items:
        if isinstance(item, Call):
            yield _call(item, 0)
        else:
            yield _said(item) if isinstance(item, Said) else _mark(item)


def _said(said: Said) -> str:
    who = said.kind if said.role == "user" else said.role
    notes = [said.label] if said.label else []
    if said.draft:
        notes.append("streamed only: no message was stored")
    if said.cut:
        notes.append("interrupted while it spoke")
    if said.replaces is not None:
        notes.append(f"stands for events {said.replaces[0]} to {said.replaces[1]}")
    head = f"\n**{line(who)}**" + (f" ({line(', '.join(notes))})" if notes else "") + "\n\n"
    return head + "\n".join(_block(one) for one in said.blocks)


def _block(value: Json) -> str:
    kind = value.get("type")
    if kind == "text":
        return quoted(str(value.get("text", "")))
    if kind == "reasoning":
        text = str(value.get("text") or "")
        return f"*reasoning:*\n\n{quoted(text)}" if text else ""
    return fenced(json.dumps(value, ensure_ascii=False, indent=1), "json")


def _call(call: Call, depth: int) -> str:
    parts = [f"\n**tool {line(call.name)}**: {call.fate}{' (due)' if call.due else ''}"]
    took = span(elapsed(call.time, call.end_time))
    parts.append("\n\n" if took == "-" or call.repaired else f", {took}\n\n")
    if call.arguments is not None:
        parts.append(_arguments(call.arguments))
    if call.fate in VERDICTS:
        code = f"`{escape(call.code)}` " if call.code and "`" not in call.code else ""
        key = f" Idempotency key: {line(call.key)}" if call.key else ""
        parts.append(f"\n{code}{VERDICTS[call.fate]}{key}\n")
    if depth < 8:  # noqa: PLR2004  # deeper ones are machines talking to machines
        parts += [_call(one, depth + 1) for one in call.nested]
    for value in call.result or []:
        text = value.get("text")
        plain = value.get("type") == "text" and isinstance(text, str)
        parts.append("\n" + (fenced(str(text)) if plain else _block(value)))
    return "".join(parts)


def _arguments(value: Any) -> str:
    if not isinstance(value, str):
        return fenced(json.dumps(value, ensure_ascii=False, indent=1), "json")
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return fenced(value)
    return fenced(json.dumps(parsed, ensure_ascii=False, indent=1), "json")


def _mark(mark: Mark) -> str:
    return f"\n*{line(mark.text)}*\n"
