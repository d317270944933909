"""What a log must hold, worked out without any code of the store: from its bytes, by the shortest reader there can be.

The rule that holds here: nothing of the product is imported. The reader takes whole frames and whole lines, and stops
at the first that is not; it knows no bound, no repair and no damage.
"""

from __future__ import annotations

import json
from typing import Any

import zstandard

Event = dict[str, Any]

_ROWS = {
    "text-chunks": ("text-delta", "texts", "text"),
    "reasoning-chunks": ("reasoning-delta", "texts", "text"),
    "tool-call-chunks": ("tool-call-delta", "args", "argumentsDelta"),
}


def told(value: Any) -> str:
    """Return a value as one text: what two values share that mean the same JSON."""
    return json.dumps(value, sort_keys=True)


def rows_of(content: bytes) -> list[bytes]:
    """Return the whole lines of a log's whole frames, or of a raw log."""
    if content.startswith(b"{"):
        return content.split(b"\n")[:-1]
    return _text_of(content).split(b"\n")[:-1]


def _text_of(content: bytes) -> bytes:
    found: list[bytes] = []
    while content:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            text = frame.decompress(content)
        except zstandard.ZstdError:
            break
        if not frame.eof:
            break
        found.append(text)
        content = frame.unused_data
    return b"".join(found)


def events_in(content: bytes) -> list[Event]:
    """Return the events of a log's bytes, as far as they are whole."""
    found: list[Event] = []
    for row in rows_of(content)[1:]:
        value = json.loads(row)
        found += _members(value) if value["type"] in _ROWS else [value]
    return found


def _members(row: Event) -> list[Event]:
    kind, many, one = _ROWS[row["type"]]
    data = row["data"]
    common = {key: data[key] for key in ("index", "id", "name") if key in data}
    found: list[Event] = []
    time = row["time0"]
    for place, text in enumerate(data[many]):
        time += data["dt"][place - 1] if place else 0
        chunk = {"type": kind, **common, one: text}
        body = {"turn": data["turn"], "step": data["step"], "chunk": chunk}
        seq = row["seq0"] + place
        found.append({"type": "assistant/chunk", "seq": seq, "time": time, "data": body})
    return found
