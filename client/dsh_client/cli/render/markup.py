"""Text as HTML. The rule: every string of a session reaches the page through `markup`, and so stays text."""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING, Any

from dsh_client.cli.text import split_unsafe
from dsh_client.cli.values import as_object

if TYPE_CHECKING:
    from dsh_client.cli.render.model import Json

_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})[ ]{0,8}([\w+.-]{0,40})")
_HEADING = re.compile(r"#{1,6} +")
_BULLET = re.compile(r"([ ]{0,12})[-*+] +")
_CODE = re.compile(r"`([^`\n]{1,1000})`")
_BOLD = re.compile(r"\*\*([^*\n]{1,1000})\*\*")
LONG_LINES, LONG_TEXT = 14, 1200
LONGEST_SAID = 6000


def markup(text: object) -> str:
    """Return text as HTML; what would steer the reader's screen is shown as an escape."""
    parts = split_unsafe(str(text))
    for place, part in enumerate(parts):
        safe = escape(part)
        parts[place] = f'<span class="ctl">{safe}</span>' if place % 2 else safe
    return "".join(parts)


def prose(text: str) -> str:
    """Return what a model wrote, with the little Markdown that helps reading: code, headings, lists, bold."""
    out: list[str] = []
    lines = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = _fence_end(lines, at + 1, fence[1])
            out.append(f'<pre class="code">{markup(chr(10).join(lines[at + 1 : end]))}</pre>')
            at = end + 1
            continue
        line = lines[at]
        if heading := _HEADING.match(line):
            out.append(f'<p class="heading" dir="auto">{_inline(line[heading.end() :])}</p>')
        elif bullet := _BULLET.match(line):
            depth = 1 + len(bullet[1]) // 2
            rest = _inline(line[bullet.end() :])
            out.append(f'<p class="item i{min(depth, 4)}" dir="auto">{rest}</p>')
        else:
            end = _plain_end(lines, at)
            paragraph = _inline("\n".join(lines[at:end]).strip("\n"))
            if paragraph.strip():
                out.append(f'<p dir="auto">{paragraph}</p>')
            at = end - 1
        at += 1
    return "".join(out)


def block(value: Json) -> str:
    """Return one block of a message."""
    kind = value.get("type")
    if kind == "text":
        text = str(value.get("text", ""))
        if len(text) > LONGEST_SAID:
            return folded(text, "all of it")
        return f'<div class="said" dir="auto">{markup(text)}</div>'
    if kind == "reasoning":
        return reasoning(value)
    if kind == "image":
        return image(value)
    return f'<pre class="code">{markup(json.dumps(value, ensure_ascii=False, indent=1))}</pre>'


def reasoning(value: Json) -> str:
    """Return what a model thought, folded."""
    text = str(value.get("text") or "")
    if not text:
        return ""
    first = text.strip().split("\n", 1)[0][:120]
    return (
        f'<details class="reasoning"><summary>Reasoning <span class="hint" dir="auto">{markup(first)}</span></summary>'
        f'<div class="said" dir="auto">{markup(text)}</div></details>'
    )


def image(value: Json) -> str:
    """Return what is known of an image; its bytes are not in the log."""
    facts = as_object(value.get("attachment"))
    size = f"{facts.get('width')} x {facts.get('height')}" if facts.get("width") else ""
    known = [facts.get("name"), facts.get("mediaType"), size, facts.get("attachmentId")]
    return f'<p class="image">image: {markup(", ".join(str(one) for one in known if one))}</p>'


def folded(text: str, name: str) -> str:
    """Return preformatted text; a long one behind its first lines."""
    lines = text.count("\n") + 1
    if lines <= LONG_LINES and len(text) <= LONG_TEXT:
        return f'<pre dir="auto">{markup(text)}</pre>'
    first = "\n".join(text.split("\n", 6)[:6])[:500]
    about = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
    return (
        f'<details class="long"><summary><span class="more">{markup(name)}, {about}</span>'
        f'<pre class="peek" dir="auto">{markup(first)}</pre></summary>'
        f'<pre dir="auto">{markup(text)}</pre></details>'
    )


def arguments(value: Any) -> str:
    """Return a call's arguments: an object as names and values, anything else as it was written."""
    parsed = value
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
    if not isinstance(parsed, dict):
        return folded(value if isinstance(value, str) else json.dumps(value), "arguments")
    rows: list[str] = []
    for name, member in as_object(parsed).items():
        text = member if isinstance(member, str) else json.dumps(member, ensure_ascii=False)
        rows.append(f"<dt>{markup(name)}</dt><dd>{folded(text, name)}</dd>")
    return f'<dl class="arguments">{"".join(rows)}</dl>' if rows else ""


def _inline(text: str) -> str:
    parts = _CODE.split(text)
    for place, part in enumerate(parts):
        safe = markup(part)
        parts[place] = (
            f"<code>{safe}</code>" if place % 2 else _BOLD.sub(r"<strong>\1</strong>", safe)
        )
    return "".join(parts)


def _fence_end(lines: list[str], start: int, fence: str) -> int:
    for at in range(start, len(lines)):
        line = lines[at].strip()
        if len(line) >= len(fence) and set(line) == {fence[0]}:
            return at
    return len(lines)


def _plain_end(lines: list[str], start: int) -> int:
    for at in range(start + 1, len(lines)):
        line = lines[at]
        if not line.strip() or _FENCE.match(line) or _HEADING.match(line) or _BULLET.match(line):
            return at
    return len(lines)
