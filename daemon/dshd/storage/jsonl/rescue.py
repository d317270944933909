"""What can still be read of a log whose header is no good, or another version's.

The rule that holds here: nothing is guessed. The events are those that go on from seq 0 without a gap, as they are
stored; whose they are is not known, and that is for the caller to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dshd.storage.jsonl.pieces import Gap, rows
from dshd.storage.jsonl.rows import RowDefectError, is_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_protocol.vocabulary import Event
    from dshd.storage.jsonl.source import Source

_MOST_BEFORE = 16
"""Rows and gaps that may stand in front of seq 0: there is a header, and perhaps what became of one."""


def events_behind_header(source: Source, size: int) -> Iterator[Event]:
    """Yield the events of a log from seq 0 up to the first place that cannot be read, or that does not follow."""
    expected = 0
    for number, piece in enumerate(rows(source, size)):
        if expected == 0 and number >= _MOST_BEFORE:
            return
        try:
            found: Iterator[Any] = iter(()) if isinstance(piece, Gap) else piece.values()
        except RowDefectError:
            found = iter(())
        before = expected
        for event in found:
            if not _follows(event, expected):
                break
            yield event
            expected += 1
        if expected == before and before:
            return


def _follows(event: Any, expected: int) -> bool:
    seq = event.get("seq") if is_object(event) else None
    return type(seq) in {int, float} and seq == expected
