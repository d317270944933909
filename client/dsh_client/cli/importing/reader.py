"""What the readers of all kinds of files share: each record is taken, or kept with its reason.

The rule: a reader never fails for what a file holds, whatever the shape of it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from dsh_client.cli.importing import lines
from dsh_client.cli.importing.carrying import carried, has_halves, is_light
from dsh_client.cli.values import as_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_client.cli.importing.archive import Archive
    from dsh_client.cli.importing.lines import Piece
    from dsh_client.cli.importing.report import Report

    Json = dict[str, Any]

_HARMLESS = {lines.BOM}
_HALF_PAIR = "half of a surrogate pair"
_TOO_LARGE = "a message too large for one event (cut, and kept whole beside)"
_EARLIEST_MS = 10**11
"""A number of seconds is below it (until the year 5138), one of milliseconds above (since 1973)."""


class Reader(ABC):
    """Takes the records of one file.

    Args:
        begin: Makes the archive of a conversation; called before the first record.
        report: What is found.
    """

    provider = "unknown"

    def __init__(self, begin: Callable[[], Archive], report: Report) -> None:
        """Begin the first conversation."""
        self._begin = begin
        self.archive = begin()
        self.report = report

    @staticmethod
    @abstractmethod
    def plausible(value: Any) -> bool:
        """Whether a value looks like a record of this kind of file."""

    @abstractmethod
    def record(self, line: int, record: Json) -> None:
        """Take one record, its text as a log can hold it."""

    def piece(self, piece: Piece) -> None:
        """Take what stands on a line."""
        for fault in piece.faults:
            if fault in _HARMLESS:
                self.report.unknown(fault, piece.line)
            else:
                self.report.damage(fault, piece.line)
        if piece.text is not None:
            self.archive.keep_text(piece.line, "as it stood", piece.text)
        if piece.value is None:
            if piece.text is None and not piece.faults:
                self.unknown(piece.line, "null", None)
            return
        if has_halves(piece.value) and lines.NOT_UTF8 not in piece.faults:
            self.report.damage(_HALF_PAIR, piece.line)
        value = carried(piece.value)
        if isinstance(value, dict):
            self.record(piece.line, as_object(value))
        else:
            self.other(piece.line, value)

    def other(self, line: int, value: Any) -> None:
        """Take a value that is no object."""
        self.unknown(line, type(value).__name__, value)

    def unknown(self, line: int, kind: str, value: Any) -> None:
        """Keep what this program does not know, and say so."""
        self.report.unknown(kind, line)
        self.archive.keep(line, kind, value)

    def beside(self, line: int, record: Json, rest: Json, time: int | None) -> None:
        """Keep what of a record did not become a message; all of it where the message may have been cut."""
        if not is_light(record):
            self.report.unknown(_TOO_LARGE, line)
            self.archive.keep_text(line, "whole", json.dumps(record, ensure_ascii=False))
        elif rest:
            self.archive.keep(line, "rest", rest, time)


def text_of(value: Any) -> str:
    """Return a value as text; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def text_block(text: str) -> Json:
    """Return a block of text."""
    return {"type": "text", "text": text}


def arguments_of(value: Any) -> str:
    """Return a call's arguments as the text that a log has."""
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )


def epoch_ms(value: Any) -> int | None:
    """Return a time as epoch milliseconds; None of what is none."""
    if type(value) in {int, float} and 0 <= value < lines.MAX_SAFE:
        return int(value if value > _EARLIEST_MS else value * 1000)
    if not isinstance(value, str):
        return None
    import datetime as dt  # most of `dshctl` needs none

    try:
        moment = dt.datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    since = round(moment.timestamp() * 1000)
    return since if since >= 0 else None


def count_of(*values: Any) -> int | None:
    """Return the first that is a count."""
    for value in values:
        if type(value) is int and 0 <= value <= lines.MAX_SAFE:
            return value
    return None
