"""Where in a log which seq begins, so that a read of a late seq does not decode what stands before it.

Kept in memory, made while scanning, extended by every append. The rule that holds here: an entry is a place at which
reading can begin: a frame or a line whose first event has that seq, with no record reaching into it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from threading import Lock
from typing import NamedTuple


class Position(NamedTuple):
    """A place at which reading can begin."""

    offset: int
    seq: int


class SeqIndex:
    """Positions in order. Two threads may add what they both found, while others look up."""

    def __init__(self) -> None:
        self._seqs = array("Q")
        self._offsets = array("Q")
        self._lock = Lock()

    def add(self, offset: int, seq: int) -> None:
        """Note a position; one that is not behind the last is known already."""
        with self._lock:
            if self._offsets and offset <= self._offsets[-1]:
                return
            self._offsets.append(offset)
            self._seqs.append(seq)

    def locate(self, seq: int) -> Position:
        """Return the last position at or before `seq`; the file's beginning where there is none."""
        at = bisect_right(self._seqs, seq) - 1
        return Position(0, 0) if at < 0 else Position(self._offsets[at], self._seqs[at])

    def last(self) -> Position:
        """Return the last position."""
        return self.locate(2**63)

    def __len__(self) -> int:
        """Return the number of positions."""
        return len(self._seqs)
