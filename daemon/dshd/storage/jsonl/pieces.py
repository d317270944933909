"""Every row that can be read of a log, whatever stands between: the reader of last resort.

The rule that holds here: what is passed over is named, byte for byte. Nothing is guessed and nothing is judged: whether
rows belong together is asked by whoever puts them together again.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dshd.storage.jsonl.frames import (
    MAX_PLAIN,
    FrameDefectError,
    decode_frame,
    frames,
    good_frame_after,
)
from dshd.storage.jsonl.rows import RowDefectError, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dshd.storage.jsonl.source import Source

_PIECE = 1024 * 1024
_TOO_LONG = "a row longer than 64 MiB"
_BEGINNING = re.compile(rb'\{"type":"[^"\\]{1,80}","seq0?":[0-9]')
_MOST_BEGINNINGS = 64


class Gap(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes that were left out: from `start` up to, and without, `end`.

    Attributes:
        row: Where one row of a frame is meant: its number in the frame, from 0.
    """

    start: int
    end: int
    reason: str
    row: int | None = None


class Row(NamedTuple):
    """One row, and the bytes that it came from: its line, or all of its frame."""

    start: int
    end: int
    row: int | None
    text: bytes

    def gap(self, reason: str) -> Gap:
        """Return what is told where this row is left out."""
        return Gap(self.start, self.end, reason, self.row)

    def values(self) -> Iterator[Any]:
        """Return its events. Raises RowDefectError."""
        return unpack(self.text)


def rows(source: Source, size: int) -> Iterator[Row | Gap]:
    """Yield the rows of a whole file, the header's too, and the gaps between them, in order."""
    return _framed(source, size) if source.zstd else _lines(source, size)


def _framed(source: Source, size: int) -> Iterator[Row | Gap]:
    at, carried, begun = 0, b"", 0
    while at < size:
        try:
            frame = next(frames(source.pread, at, size))
            text = decode_frame(frame)
        except FrameDefectError as defect:
            if carried:
                yield Gap(begun, at, "a row that goes on in a frame that cannot be read")
                carried = b""
            later = good_frame_after(source, at + 1, size, lambda _frame, _text: True)
            end = size if later is None else later
            yield Gap(at, end, defect.reason)
            at = end
            continue
        begun = begun if carried else frame.offset
        *lines, carried = (carried + text).split(b"\n")
        for number, line in enumerate(lines):
            yield Row(begun if number == 0 else frame.offset, frame.end, number, line)
        if len(carried) > MAX_PLAIN:
            yield Gap(begun, frame.end, _TOO_LONG)
            carried = b""
        if not lines and not carried:
            yield Gap(frame.offset, frame.end, "a frame with nothing in it")
        if lines:
            begun = frame.offset
        at = frame.end
    if carried:
        yield Gap(begun, at, "an unfinished row")


def _lines(source: Source, size: int) -> Iterator[Row | Gap]:
    at, begun, held, hollow = 0, 0, [b""], False
    while at < size:
        piece = source.pread(min(_PIECE, size - at), at)
        if not piece:
            break
        start = 0
        while (newline := piece.find(b"\n", start)) >= 0:
            end = at + newline + 1
            if hollow:
                yield Gap(begun, end, _TOO_LONG)
            else:
                yield Row(begun, end, None, b"".join([*held, piece[start:newline]]))
            begun, held, hollow, start = end, [], False, newline + 1
        held.append(piece[start:])
        at += len(piece)
        if hollow or at - begun > MAX_PLAIN:
            held, hollow = [], True
    if begun < size:
        yield Gap(begun, size, _TOO_LONG if hollow else "an unfinished row")


def values_of(row: Row) -> list[Any] | Gap:
    """Return a row's events, or what is told where it has none."""
    try:
        return list(row.values())
    except RowDefectError as defect:
        return row.gap(str(defect))


def row_behind(row: Row) -> Row | None:
    """Return the row that is whole at the end of a line that is none: one that an unfinished write stands in front of.

    A program that tries a failed write once more, without a line end in front, leaves such a line.
    """
    if row.row is not None:  # in a frame nothing is written twice
        return None
    for found in islice(_BEGINNING.finditer(row.text, 1), _MOST_BEGINNINGS):
        part = Row(row.start + found.start(), row.end, None, row.text[found.start() :])
        if not isinstance(values_of(part), Gap):
            return part
    return None
