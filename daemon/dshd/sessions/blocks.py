"""Blocks of stored events, as they go out: what was read last for those who follow sessions and are behind.

Several who follow one session are behind at about the same place, and a large batch is read as a whole whatever part of
it is wanted. The rule that holds here: there are few blocks, whoever follows what; and none of a session that nobody
behind follows any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

BLOCK_BYTES = 1024 * 1024
"""About, of one; a larger event is a block by itself."""
MOST_BLOCKS = 4


class Block(NamedTuple):
    """Durable events of one session, from seq `first` on."""

    session_id: str
    first: int
    events: Sequence[msgspec.Raw]

    def page(self, offset: int, max_bytes: int) -> list[msgspec.Raw]:
        """Return events from seq `offset` on, about `max_bytes` of them and one at least; none where it has none."""
        start = end = offset - self.first
        size = 0
        while 0 <= end < len(self.events):
            size += len(memoryview(self.events[end])) + 1
            if size > max_bytes and end > start:
                break
            end += 1
        return list(self.events[start:end])


class Blocks:
    """The blocks, the least recently used one first.

    Attributes:
        drops: How often some were dropped: what was being read meanwhile may be of a session that is gone.
    """

    def __init__(self) -> None:
        self.drops = 0
        self._blocks: list[Block] = []

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._blocks)

    def find(self, session_id: str, offset: int, max_bytes: int) -> list[msgspec.Raw]:
        """Return events from seq `offset` on, about `max_bytes` of them; none where no block has them."""
        for block in self._blocks:
            found = block.page(offset, max_bytes) if block.session_id == session_id else []
            if found:
                self._blocks.remove(block)
                self._blocks.append(block)
                return found
        return []

    def keep(self, block: Block, since: int) -> None:
        """Keep what was read, unless some were dropped after there had been `since` drops."""
        if block.events and since == self.drops:
            self._blocks.append(block)
            del self._blocks[:-MOST_BLOCKS]

    def drop(self, session_id: str) -> None:
        """Drop those of one session."""
        self.drops += 1
        self._blocks = [block for block in self._blocks if block.session_id != session_id]
