"""Where the reading of a log begins that is opened for writing.

The rule that holds here: what was acknowledged is believed to be there only where the log proves to be the one that its
derived file was made of; a small log that may have been touched since is read from its beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dshd.storage.jsonl.index import SeqIndex
from dshd.storage.jsonl.scan import Walk

if TYPE_CHECKING:
    from dshd.storage.jsonl.derived import Derived, Lineage
    from dshd.storage.jsonl.source import Source

READ_WHOLE = 1024 * 1024
"""A log of at most so many bytes is small."""


def begun(
    source: Source, first: int, size: int, lineage: Lineage, *, trusted: bool
) -> tuple[SeqIndex, Walk]:
    """Return what reading for writing begins with: a small log that may have been touched is read from its beginning.

    A log that is level with its derived file, or large, is read from where that ends: what stands before was
    checked when it was written, and is checked again whenever it is read.
    """
    known, crc, index = lineage.known, 0, SeqIndex([(first, 0)])
    if known is not None and (trusted or size > READ_WHOLE):
        index, crc = SeqIndex([(first, 0), *lineage.positions]), known.crc
    return index, Walk(source, index, index.last(), size, known, crc=crc)


def find_loss(source: Source, first: int, size: int, derived: Derived) -> None:
    """Raise LogCorruptError where the first defect among the last of what was acknowledged is found."""
    last = [position for position in derived.positions if position.offset < size][-1:]
    index = SeqIndex([(first, 0), *last])
    for _ in Walk(source, index, index.last(), size, derived.known).batches():
        pass
