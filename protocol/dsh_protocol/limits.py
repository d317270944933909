"""The limits of size and flow, with their defaults.

`initialize` and `daemon.status` state them; an error that names a limit uses the name that it has here on the wire.
"""

from __future__ import annotations

import msgspec

_MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What one daemon takes.

    Attributes:
        max_line_bytes: Bytes of one line, either way, without its newline.
        max_values: JSON values in one line; keys are not counted.
        max_depth: Arrays and objects inside each other, the outermost counted.
        max_event_bytes: Bytes of one event as stored.
        max_batch_events: Events in one call.
        max_pending_bytes: What the admitted events of one session may take in memory before they are durable: the bytes
            that they came in, and some hundred more for each.
        max_connections: Connections at a time; fewer where the process may not have enough descriptors. All are of
            one user, so this is the limit of a user too.
        max_open_sessions: Sessions open for writing at a time, or not yet written; limited by descriptors likewise.
        max_calls_in_flight: Unanswered calls of one connection.
        max_batch_calls: Calls in one line.
        max_subscriptions: Subscriptions of one connection.
        max_unsent_bytes: Replies that one connection has not taken yet, before the daemon stops reading from it.
        unsent_seconds: How long a reply may wait for a client that does not read; then its connection ends.
        hello_seconds: How long a connection may say nothing at all.
        frame_seconds: How long a line that was begun may take, while nothing else is owed to its connection.
    """

    max_line_bytes: int = 16 * _MIB
    max_values: int = 100_000
    max_depth: int = 64
    max_event_bytes: int = 8 * _MIB
    max_batch_events: int = 10_000
    max_pending_bytes: int = 16 * _MIB
    max_connections: int = 512
    max_open_sessions: int = 4096
    max_calls_in_flight: int = 256
    max_batch_calls: int = 1000
    max_subscriptions: int = 64
    max_unsent_bytes: int = _MIB
    unsent_seconds: int = 10
    hello_seconds: int = 5
    frame_seconds: int = 30


DEFAULT_LIMITS = Limits()
