"""Reads logs on its own, so that a test of ours is not judged by code of ours: nothing of the product is imported.

Rows are packed and expanded as the format says, straight-forwardly and without the checks of the real reader. Of bytes
that may be torn, whole frames and whole lines are taken up to the first that is not; no bound and no repair is known.
"""

from __future__ import annotations

import io
import itertools
import json
import marshal
from typing import TYPE_CHECKING, Any

import zstandard

from support.canonical import sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Event = dict[str, Any]

__all__ = [
    "events_in",
    "expand_row",
    "pack_rows",
    "read_frames",
    "read_log",
    "rows_of",
    "same",
    "sha256",
    "whole_part",
]

_PACKED = {
    "text-chunks": ("text-delta", "texts", "text"),
    "reasoning-chunks": ("reasoning-delta", "texts", "text"),
    "tool-call-chunks": ("tool-call-delta", "args", "argumentsDelta"),
}
_PACKED_AS = {delta: row for row, (delta, _, _) in _PACKED.items()}
_SHORTEST_RUN = 3


def expand_row(row: Event) -> list[Event]:
    """Return the events of one row."""
    if row["type"] not in _PACKED:
        return [row]
    kind, members_key, member_key = _PACKED[row["type"]]
    data: Event = row["data"]
    time: int = row["time0"]
    events: list[Event] = []
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


def read_log(path: Path, truncate_to: int | None = None) -> list[Event]:
    """Return the events of a log of either encoding, its first `truncate_to` bytes where given."""
    content = path.read_bytes()[:truncate_to]
    if path.suffix == ".zstd":
        reader = zstandard.ZstdDecompressor().stream_reader(
            io.BytesIO(content), read_across_frames=True
        )
        content = reader.read()
    lines = content.split(b"\n")[1:-1]
    return [event for line in lines for event in expand_row(json.loads(line))]


def pack_rows(events: list[Event]) -> list[Event]:
    """Return the rows of one batch of events that a client may append."""
    rows: list[Event] = []
    for key, members in itertools.groupby(_in_runs(events), key=lambda pair: pair[0]):
        run = [event for _, event in members]
        rows += run if key[0] is None or len(run) < _SHORTEST_RUN else [_packed(run)]
    return rows


def _in_runs(events: list[Event]) -> Iterator[tuple[tuple[Any, ...], Event]]:
    """Yield each event with what it shares with its run; None leads where it stands alone."""
    for event in events:
        data: Any = event["data"]
        chunk: Event = data["chunk"] if event["type"] == "assistant/chunk" else {"type": ""}
        row = _PACKED_AS.get(chunk["type"])
        if row is None or set(event) != {"type", "seq", "time", "data"}:
            yield (None, event["seq"]), event
            continue
        member_key = _PACKED[row][2]
        shared = {key: value for key, value in chunk.items() if key != member_key}
        yield (row, json.dumps([data["turn"], data["step"], shared], sort_keys=True)), event


def _packed(run: list[Event]) -> Event:
    chunks = [event["data"]["chunk"] for event in run]
    first = run[0]
    row = _PACKED_AS[chunks[0]["type"]]
    _, members_key, member_key = _PACKED[row]
    body = {"turn": first["data"]["turn"], "step": first["data"]["step"]}
    body |= {"index": chunks[0]["index"]}
    body["dt"] = [after["time"] - before["time"] for before, after in itertools.pairwise(run)]
    body |= {key: chunks[0][key] for key in ("id", "name") if key in chunks[0]}
    body[members_key] = [chunk[member_key] for chunk in chunks]
    return {"type": row, "seq0": first["seq"], "time0": first["time"], "data": body}


def read_frames(path: Path) -> list[bytes]:
    """Return the text of each Zstandard frame of a log; it must end with a whole one."""
    content = path.read_bytes()
    texts: list[bytes] = []
    while content:
        frame = zstandard.ZstdDecompressor().decompressobj()
        texts.append(frame.decompress(content))
        assert frame.eof, f"{path} ends inside a frame"
        content = frame.unused_data
    return texts


def same(one: Any, other: Any) -> bool:
    """Whether two values mean the same JSON; those whose keys stand in one order are not sorted for it."""
    return marshal.dumps(one, 2) == marshal.dumps(other, 2) or _told(one) == _told(other)


def _told(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def whole_part(content: bytes) -> tuple[bytes, int]:
    """Return the text of a log's bytes as far as they are whole, and how many bytes are behind that."""
    return _whole_lines(content) if content.startswith(b"{") else _whole_frames(content)


def _whole_frames(content: bytes) -> tuple[bytes, int]:
    texts: list[bytes] = []
    decompressor = zstandard.ZstdDecompressor()
    while content:
        frame = decompressor.decompressobj()
        try:
            text = frame.decompress(content)
        except zstandard.ZstdError:
            break
        if not frame.eof:
            break
        texts.append(text)
        content = frame.unused_data
    return b"".join(texts), len(content)


def _whole_lines(content: bytes) -> tuple[bytes, int]:
    size = 0
    for line in content.split(b"\n")[:-1]:
        try:
            json.loads(line)
        except ValueError:
            break
        size += len(line) + 1
    return content[:size], len(content) - size


def rows_of(content: bytes) -> list[bytes]:
    """Return the rows of a log's bytes as far as they are whole; the first is the header."""
    return whole_part(content)[0].split(b"\n")[:-1]


def events_in(content: bytes) -> list[Event]:
    """Return the events of a log's bytes as far as they are whole."""
    return [event for row in rows_of(content)[1:] for event in expand_row(json.loads(row))]
