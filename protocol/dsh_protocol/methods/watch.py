"""Watching a session: the methods, and the notifications that the daemon sends for them."""

from __future__ import annotations

from dsh_protocol.events import Event  # noqa: TC001  # msgspec reads the annotations
from dsh_protocol.objects import Count, Params, Result


class SubscribeParams(Params, frozen=True):
    """Be told every durable event from `fromSeq` on, stored ones first, whoever writes."""

    id: str
    from_seq: Count


class SubscribeResult(Result, frozen=True):
    """Comes before the first event."""

    subscription_id: str


class UnsubscribeParams(Params, frozen=True):
    """End a subscription of this connection."""

    subscription_id: str


class EventNotice(Result, frozen=True):
    """Durable events, in order."""

    subscription_id: str
    events: list[Event]


class LaggedNotice(Result, frozen=True):
    """The watcher is too slow and the subscription ends: read on from `fromSeq`, then subscribe again."""

    subscription_id: str
    from_seq: int


class EndedNotice(Result, frozen=True):
    """The session was deleted, or never came to be; the subscription ends."""

    subscription_id: str
    reason: str
