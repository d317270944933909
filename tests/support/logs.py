"""Reads the golden logs on its own, so that a test of ours is not judged by code of ours.

Rows are expanded and values printed as the format says, straight-forwardly and without the checks of the real reader.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from typing import TYPE_CHECKING, Any

import zstandard

if TYPE_CHECKING:
    from pathlib import Path

_PACKED = {
    "text-chunks": ("text-delta", "texts", "text"),
    "reasoning-chunks": ("reasoning-delta", "texts", "text"),
    "tool-call-chunks": ("tool-call-delta", "args", "argumentsDelta"),
}


def expand_row(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of one row."""
    if row["type"] not in _PACKED:
        return [row]
    kind, members_key, member_key = _PACKED[row["type"]]
    data, time, events = row["data"], row["time0"], []
    for place, member in enumerate(data[members_key]):
        if place:
            time += data["dt"][place - 1]
        chunk = {"type": kind, "index": data["index"]}
        chunk |= {key: data[key] for key in ("id", "name") if key in data}
        chunk[member_key] = member
        body = {"turn": data["turn"], "step": data["step"], "chunk": chunk}
        event = {"type": "assistant/chunk", "seq": row["seq0"] + place, "time": time, "data": body}
        events.append(event)
    return events


def read_log(path: Path, truncate_to: int | None = None) -> list[dict[str, Any]]:
    """Return the events of a log of either encoding, its first `truncate_to` bytes where given."""
    content = path.read_bytes()[:truncate_to]
    if path.suffix == ".zstd":
        reader = zstandard.ZstdDecompressor().stream_reader(
            io.BytesIO(content), read_across_frames=True
        )
        content = reader.read()
    lines = content.split(b"\n")[1:-1]
    return [event for line in lines for event in expand_row(json.loads(line))]


def sha256(value: Any) -> str:
    """Return the hash of a value's canonical text."""
    return hashlib.sha256("".join(_print(value)).encode()).hexdigest()


def _print(value: Any) -> list[str]:
    if isinstance(value, dict):
        parts = ["{"]
        for key in _in_js_order(value):
            parts += [",", *_print(key), ":", *_print(value[key])]
        return [*parts[:1], *parts[2:], "}"]
    if isinstance(value, list):
        parts = ["["]
        for member in value:
            parts += [",", *_print(member)]
        return [*parts[:1], *parts[2:], "]"]
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return ["".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [_print_number(float(value))]
    return [json.dumps(value)]


def _in_js_order(members: dict[str, Any]) -> list[str]:
    indices = [key for key in members if key.isascii() and key.isdigit() and str(int(key)) == key]
    first = sorted((key for key in indices if int(key) <= 2**32 - 2), key=int)
    return first + [key for key in members if key not in first]


def _print_number(number: float) -> str:
    if math.isinf(number):
        return "null"
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    mantissa, exponent_text = f"{abs(number)!r}e0".split("e")[:2]
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0") if float(mantissa) else "0"
    point = len(whole) + int(exponent_text)
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    digits = stripped
    if 0 < point <= 21:
        if len(digits) <= point:
            return sign + digits + "0" * (point - len(digits))
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{sign}{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"
