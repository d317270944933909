"""Where in a log which seq begins, so that a read of a late seq does not decode what stands before it.

Made while scanning, extended by every append, kept beside the log. The rule that holds here: an entry is a place at
which reading can begin: a frame or a line whose first event has that seq, with no record reaching into it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 4096
"""Positions held. Of a longer log every n-th is kept, evenly by bytes, so that no log makes the index large."""


class Position(NamedTuple):
    """A place at which reading can begin."""

    offset: int
    seq: int


class SeqIndex:
    """Positions in order. Two threads may add what they both found, while others look up."""

    def __init__(self, positions: Iterable[tuple[int, int]] = ()) -> None:
        self._seqs = array("Q")
        self._offsets = array("Q")
        self._gap = 1
        self._end = Position(0, 0)
        self._lock = Lock()
        for offset, seq in positions:
            self.add(offset, seq)

    def add(self, offset: int, seq: int) -> None:
        """Note a position; one that is not behind the last is known already."""
        with self._lock:
            if offset <= self._end.offset:
                return
            self._end = Position(offset, seq)
            if self._offsets and offset - self._offsets[-1] < self._gap:
                return
            self._offsets.append(offset)
            self._seqs.append(seq)
            if len(self._offsets) > MOST:
                self._thin()

    def _thin(self) -> None:
        """Keep about half of the positions. The arrays are replaced, so that a lookup meanwhile has a whole pair."""
        span = self._offsets[-1] - self._offsets[0]
        self._gap = span // (MOST // 2)  # twice the gap before at least: so far apart they stand
        offsets, seqs = array("Q"), array("Q")
        for offset, seq in zip(self._offsets, self._seqs, strict=True):
            if not offsets or offset - offsets[-1] >= self._gap:
                offsets.append(offset)
                seqs.append(seq)
        self._offsets, self._seqs = offsets, seqs

    def locate(self, seq: int) -> Position:
        """Return the last known position at or before `seq`; the file's beginning where there is none."""
        with self._lock:
            if self._offsets and seq >= self._end.seq:
                return self._end
            at = bisect_right(self._seqs, seq) - 1
            return Position(0, 0) if at < 0 else Position(self._offsets[at], self._seqs[at])

    def last(self) -> Position:
        """Return the last position, also where it is not among those that are held."""
        return self._end

    def before(self, offset: int) -> list[Position]:
        """Return the positions held that stand before an offset."""
        with self._lock:
            end = bisect_left(self._offsets, offset)
            return list(map(Position, self._offsets[:end], self._seqs[:end]))

    def __len__(self) -> int:
        """Return the number of positions held."""
        return len(self._seqs)
