"""Values of other programs as a log can hold them, and events as the daemon takes them.

The rule: what cannot be held becomes text that says the same, or is kept in parts; nothing is dropped.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dsh_client.cli.importing.lines import PART
from dsh_client.cli.values import as_list, as_object

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_EVENT_BYTES = 4 << 20
MAX_EVENT_VALUES = 40_000
MAX_DEPTH = 40
"""Well below what a daemon takes by default, with room for the envelope and the line around an event."""
_LONGEST_CONTENT = 512 << 10
_MOST_BLOCKS = 1000
_HALF = re.compile("[\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return text whose halves of surrogate pairs, which no log takes, are written as `\udxxx`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _HALF.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text


def carried(value: Any, depth: int = 0) -> Any:
    """Return a decoded value as a log can hold it; what is nested too deep becomes its JSON text."""
    if isinstance(value, str):
        return visible(value)
    if not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH:
        return visible(json.dumps(value, ensure_ascii=False))
    if isinstance(value, dict):
        return {visible(key): carried(one, depth + 1) for key, one in as_object(value).items()}
    return [carried(one, depth + 1) for one in as_list(value)]


def has_halves(value: Any) -> bool:
    """Whether a value's text has halves of surrogate pairs."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def weight(event: dict[str, Any]) -> tuple[int, int]:
    """Return an event's bytes, and about how many JSON values it has (never fewer)."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "surrogatepass")), text.count(",") + text.count(
        "["
    ) + text.count("{") + 1


def is_light(event: dict[str, Any]) -> bool:
    """Whether the daemon takes an event of this size."""
    size, values = weight(event)
    return size <= MAX_EVENT_BYTES and values <= MAX_EVENT_VALUES


def shortened(blocks: list[dict[str, Any]], line: int) -> list[dict[str, Any]]:
    """Return a message's content cut so that it fits; the whole is kept apart, in the records of that line."""
    kept = blocks[:_MOST_BLOCKS]
    return [_cut(block, line, _LONGEST_CONTENT // len(kept)) for block in kept]


def _cut(block: dict[str, Any], line: int, longest: int) -> dict[str, Any]:
    cut = dict(block)
    for name in ("text", "arguments"):
        text = block.get(name)
        if isinstance(text, str) and len(text) > longest:
            left = len(text) - longest
            mark = f"… [{left} more characters are in the kept records of line {line}]"
            cut[name] = text[:longest] + mark
    return cut


def text_parts(text: str) -> Iterator[str]:
    """Yield text in parts that fit into events."""
    for start in range(0, len(text), PART // 2):
        yield visible(text[start : start + PART // 2])
