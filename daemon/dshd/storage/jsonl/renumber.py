"""Events that move up because others in front of them are lost: their seq, and every seq that they name.

The rule that holds here: where nothing is lost nothing changes. A list of seqs loses those that are lost; a range that
begins or ends with a lost event cannot be told, and then the event cannot be kept.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from dshd.storage.jsonl.rows import is_array, is_object

if TYPE_CHECKING:
    from dsh_protocol.vocabulary import Event

_LISTS = ("messageSeqs", "shadowedSeqs")
_RANGE = "shadowedRange"
_ONE = "sourceEventSeq"


class LostReferenceError(ValueError):
    """An event names, as the end of a range, one that is lost."""


class Renumbering:
    """From the seqs of a log to those of what is left of it.

    Attributes:
        next_old: The least seq that may come next.
        next_new: How many events were kept.
    """

    def __init__(self) -> None:
        self.next_old = 0
        self.next_new = 0
        self._starts: list[int] = []  # of runs of kept events, by old seq
        self._shifts: list[int] = []  # by how much those of a run move up

    @property
    def changed(self) -> bool:
        """Whether any event that was kept has another seq."""
        return any(self._shifts)

    def take(self, old: int) -> None:
        """Note that the event of this seq is kept."""
        if not self._starts or old != self.next_old:
            self._starts.append(old)
            self._shifts.append(old - self.next_new)
        self.next_old, self.next_new = old + 1, self.next_new + 1

    def new(self, old: Any) -> int | None:
        """Return the new seq of a kept event; None of a lost one."""
        if not isinstance(old, int):
            return None
        run = bisect_right(self._starts, old) - 1
        if run < 0:
            return None
        moved = old - self._shifts[run]
        behind = [*self._starts[run + 1 : run + 2], self.next_old][0]
        shift = [*self._shifts[run + 1 : run + 2], self.next_old - self.next_new][0]
        end = behind - shift
        return moved if moved < end else None

    def moved(self, event: Event) -> Event:
        """Return an event as it stands in what is left.

        Raises:
            LostReferenceError: It cannot stand there.
        """
        if not self.changed and event["seq"] == self.next_new:
            return event
        moved: Event = {**event, "seq": self.next_new}
        if "sourceEventSeqs" in moved:
            sources = self._kept(moved["sourceEventSeqs"])
            if sources:
                moved["sourceEventSeqs"] = sources
            else:
                del moved["sourceEventSeqs"]
        operation = moved.get("surfaceOp")
        if is_object(operation):
            moved["surfaceOp"] = self._range(operation)
        data = moved.get("data")
        if is_object(data):
            moved["data"] = self._data(data)
        return moved

    def _kept(self, seqs: Any) -> Any:
        if not is_array(seqs):
            return seqs
        return [new for new in map(self.new, seqs) if new is not None]

    def _range(self, value: dict[str, Any]) -> dict[str, Any]:
        start, end = self.new(value.get("start")), self.new(value.get("end"))
        if start is None or end is None:
            raise LostReferenceError("it replaces a range of which an end is lost")
        return {**value, "start": start, "end": end}

    def _data(self, data: dict[str, Any]) -> dict[str, Any]:
        changed = {key: self._kept(data[key]) for key in _LISTS if key in data}
        if is_object(data.get(_RANGE)):
            changed[_RANGE] = self._range(data[_RANGE])
        one = self.new(data.get(_ONE))
        if one is not None:
            changed[_ONE] = one
        return {**data, **changed}
