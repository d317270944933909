"""Reads logs without a line of the product's: frames by libzstd, rows by the standard library.

The one rule: it believes nothing that it cannot see. It stops at the first byte that is not a whole frame or row and
says where, and it never mends.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Event = dict[str, Any]


class Log(NamedTuple):
    """A log as it lies there: its header, its events, and how many bytes behind them are no frame or row."""

    header: Event | None
    events: list[Event]
    left: int


def read_log(path: Path) -> Log:
    """Read a log of either encoding."""
    data = path.read_bytes()
    texts, left = _frames(data) if path.suffix == ".zstd" else _lines(data)
    rows: list[Any] = []
    for text in texts:
        rows += [json.loads(line) for line in text.split(b"\n")[:-1]]
    header: Event | None = rows[0] if rows else None
    return Log(header, [event for row in rows[1:] for event in _unpacked(row)], left)


def _frames(data: bytes) -> tuple[list[bytes], int]:
    texts: list[bytes] = []
    rest = data
    while rest:
        reader = zstandard.ZstdDecompressor().decompressobj()
        try:
            text = reader.decompress(rest)
        except zstandard.ZstdError:
            break
        if not reader.eof:
            break
        texts.append(text)
        rest = reader.unused_data
    return texts, len(rest)


def _lines(data: bytes) -> tuple[list[bytes], int]:
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].split(b"\n")[:-1]
    for at, line in enumerate(lines):
        try:
            json.loads(line)
        except ValueError:
            good = b"".join(one + b"\n" for one in lines[:at])
            return [good], len(data) - len(good)
    return [data[:whole]], len(data) - whole


def _unpacked(row: Event) -> Iterator[Event]:
    if row["type"] != "text-chunks":
        yield row
        return
    data, time = row["data"], row["time0"]
    where = {"turn": data["turn"], "step": data["step"]}
    for place, text in enumerate(data["texts"]):
        time += data["dt"][place - 1] if place else 0
        piece = {"type": "text-delta", "index": data["index"], "text": text}
        whole = {"type": "assistant/chunk", "seq": row["seq0"] + place, "time": time}
        yield {**whole, "data": {**where, "chunk": piece}}
