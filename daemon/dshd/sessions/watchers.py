"""Watchers: who follows a session, and what they have not been sent yet.

A watcher gets durable events only. It first reads what is stored, then is joined to the live ones at exactly the seq
where it stands; its queue is bounded, and one that falls behind is told so and ends.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_protocol.events import Event

DELETED = "the session was deleted"
MAX_QUEUED_EVENTS = 10_000


class Watcher:
    """One subscription.

    Attributes:
        next_seq: The seq of the next event that it is owed.
        joined: Whether live events reach its queue; from then on nothing durable passes it by.
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
        self._queue: list[Event] = []
        self._wake = trio.Event()

    @property
    def queued(self) -> bool:
        """Whether there are events to send."""
        return bool(self._queue)

    def publish(self, events: Sequence[Event]) -> None:
        """Queue durable events; called on the event loop in their order."""
        if not self.joined:
            self.missed = True
        elif not self.lagged:
            if len(self._queue) + len(events) > MAX_QUEUED_EVENTS and self._queue:
                self.lagged = True
                self._queue.clear()
            else:
                self._queue.extend(one for one in events if one["seq"] >= self.next_seq)
        self._wake.set()

    def end(self, reason: str) -> None:
        """Note that no more events will come."""
        self.ended = reason
        self._wake.set()

    async def wait_change(self) -> None:
        """Wait until there are events, a lag or an end."""
        if not self._queue and not self.lagged and self.ended is None:
            await self._wake.wait()
        self._wake = trio.Event()

    def take(self) -> list[Event]:
        """Take what is queued."""
        events, self._queue = self._queue, []
        if events:
            self.next_seq = events[-1]["seq"] + 1
        return events


class Watchers:
    """All watchers, by session id; a session need not be live to be followed."""

    def __init__(self) -> None:
        self._by_id: defaultdict[str, set[Watcher]] = defaultdict(set)

    def add(self, watcher: Watcher) -> None:
        """Let `publish` reach a watcher."""
        self._by_id[watcher.session_id].add(watcher)

    def remove(self, watcher: Watcher) -> None:
        """Forget a watcher."""
        followers = self._by_id.get(watcher.session_id)
        if followers is not None:
            followers.discard(watcher)
            if not followers:
                del self._by_id[watcher.session_id]

    def publish(self, session_id: str, events: Sequence[Event]) -> None:
        """Pass durable events on to those who follow the session."""
        for watcher in self._by_id.get(session_id, ()):
            watcher.publish(events)

    def end(self, session_id: str, reason: str) -> None:
        """Tell those who follow the session that it is gone."""
        for watcher in self._by_id.get(session_id, ()):
            watcher.end(reason)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(map(len, self._by_id.values()))
