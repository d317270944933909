"""Watchers: who follows a session, and what they have not been sent yet.

A watcher gets durable events only. It first reads what is stored, then is joined to the live ones at exactly the seq
where it stands. The rule that holds here: what waits for watchers is bounded in bytes, for each and for all of them.
Where more comes than one has room for, it reads from the disk again, which costs no memory while it does not read; one
that is too far behind then is told so and ends.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import trio

from dsh_protocol import jsontext
from dshd.sessions.blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_protocol.events import Event

DELETED = "the session was deleted"
MAX_BEHIND_EVENTS = 10_000
"""How far a watcher that was joined may fall behind before it is told that it lags."""
MAX_QUEUED_BYTES = 2 * 1024 * 1024
"""Of the events that wait for one watcher."""
MAX_HELD_BYTES = 32 * 1024 * 1024
"""Of the events that wait for any; what waits for several counts once."""


class Queued:
    """How many bytes of events wait for watchers."""

    def __init__(self) -> None:
        self.held_bytes = 0


class Published:
    """Durable events on their way to those who follow the session: held once and encoded once for all of them."""

    def __init__(self, events: Sequence[Event], size: int, queued: Queued) -> None:
        self.end: int = events[-1]["seq"] + 1
        self.size = size
        self._events = events
        self._queued = queued
        self._waiting = 0
        self._lines: list[bytes] | None = None

    @property
    def fits(self) -> bool:
        """Whether there is room to have it wait."""
        return self._waiting > 0 or self._queued.held_bytes + self.size <= MAX_HELD_BYTES

    def wait(self) -> None:
        """Count one more for whom it waits."""
        if self._waiting == 0:
            self._queued.held_bytes += self.size
        self._waiting += 1

    def leave(self) -> None:
        """Count one less."""
        self._waiting -= 1
        if self._waiting == 0:
            self._queued.held_bytes -= self.size

    def lines(self, from_seq: int) -> list[bytes]:
        """Return the events from a seq on, each as it goes out."""
        if self._lines is None:
            self._lines = [jsontext.encode_decoded(event) for event in self._events]
        first = self.end - len(self._lines)
        return self._lines[max(from_seq - first, 0) :]


class Watcher:
    """One subscription.

    Attributes:
        next_seq: The seq of the next event that it is owed.
        joined: Whether live events reach its queue; while it does not change, nothing durable passes it by.
        missed: Something became durable while it was not joined.
        lagged: It fell behind: `next_seq` is where to read on.
        ended: Why the session ended, or None.
    """

    def __init__(self, session_id: str, from_seq: int) -> None:
        self.session_id = session_id
        self.next_seq = from_seq
        self.joined = False
        self.missed = False
        self.lagged = False
        self.ended: str | None = None
        self._was_joined = False
        self._queue: list[Published] = []
        self._wake = trio.Event()

    @property
    def queued(self) -> bool:
        """Whether there are events to send."""
        return bool(self._queue)

    def join(self) -> None:
        """Let live events come, now that everything before them was sent."""
        self.joined = self._was_joined = True

    def publish(self, batch: Published) -> None:
        """Take durable events; called on the event loop in their order."""
        if self.joined and not self._has_room(batch):
            self.joined = False
            self.forget()
        if self.joined:
            batch.wait()
            self._queue.append(batch)
        else:
            self.missed = True
            self.lagged |= self._was_joined and batch.end - self.next_seq > MAX_BEHIND_EVENTS
        self._wake.set()

    def _has_room(self, batch: Published) -> bool:
        queued = sum(one.size for one in self._queue)
        return batch.fits and queued + batch.size <= MAX_QUEUED_BYTES

    def end(self, reason: str) -> None:
        """Note that no more events will come."""
        self.ended = reason
        self._wake.set()

    async def wait_change(self) -> None:
        """Wait until there are events, in the queue or on the disk, a lag or an end."""
        if self.joined and not self._queue and self.ended is None:
            await self._wake.wait()
        self._wake = trio.Event()

    def take(self) -> list[bytes]:
        """Take what is queued, each event as it goes out."""
        taken: list[bytes] = []
        for batch in self._queue:
            taken += batch.lines(self.next_seq)
            self.next_seq = max(batch.end, self.next_seq)
        self.forget()
        return taken

    def forget(self) -> None:
        """Drop what is queued."""
        for batch in self._queue:
            batch.leave()
        self._queue = []


class Watchers:
    """All watchers, by session id; a session need not be live to be followed.

    Attributes:
        blocks: What was read last for those who are behind.
    """

    def __init__(self) -> None:
        self._by_id: defaultdict[str, set[Watcher]] = defaultdict(set)
        self._queued = Queued()
        self.blocks = Blocks()

    def add(self, watcher: Watcher) -> None:
        """Let `publish` reach a watcher."""
        self._by_id[watcher.session_id].add(watcher)

    def remove(self, watcher: Watcher) -> None:
        """Forget a watcher, and what it was not sent."""
        watcher.forget()
        self._settle(watcher.session_id, but=watcher)
        followers = self._by_id.get(watcher.session_id)
        if followers is not None:
            followers.discard(watcher)
            if not followers:
                del self._by_id[watcher.session_id]

    def publish(self, session_id: str, events: Sequence[Event], size: int) -> None:
        """Pass durable events, which take about `size` bytes in memory, on to those who follow the session."""
        followers = self._by_id.get(session_id)
        if followers:
            batch = Published(events, size, self._queued)
            for watcher in followers:
                watcher.publish(batch)

    def join(self, watcher: Watcher) -> None:
        """Let live events come to a watcher that was sent everything before them."""
        watcher.join()
        self._settle(watcher.session_id)

    def _settle(self, session_id: str, but: Watcher | None = None) -> None:
        """Drop what was read for those who are behind, where nobody is."""
        followers = self._by_id.get(session_id, ())
        if all(one.joined or one is but for one in followers):
            self.blocks.drop(session_id)

    def end(self, session_id: str, reason: str) -> None:
        """Tell those who follow the session that it is gone."""
        self.blocks.drop(session_id)
        for watcher in self._by_id.get(session_id, ()):
            watcher.end(reason)

    @property
    def queued_bytes(self) -> int:
        """About what the events take in memory that wait for any of them."""
        return self._queued.held_bytes

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(map(len, self._by_id.values()))
