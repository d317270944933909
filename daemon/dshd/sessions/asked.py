"""What a call wants to append, and what it was given.

A call's events are measured here before they are admitted: the loop goes on between the large ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from dsh_protocol import jsontext
from dsh_protocol.errors import FrameTooLargeError
from dshd.sessions.at_once import need_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsh_protocol.events import Event
    from dsh_protocol.limits import Limits
    from dshd.sessions.fold import Fold

EVENT_BYTES = 768
"""About what an event takes in memory beyond the bytes that it came in."""
_UNBROKEN_BYTES = 1024 * 1024
"""Of events that are measured without a pause; one of the largest takes some 20 ms."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Events that a call wants to append, as they came.

    Attributes:
        events: One JSON value an event, unchecked.
        expected_seq: The seq that the caller takes for the first of them.
        size: Bytes of the line that carried them.
        then: A checkpoint's condition on the log after the events; gives the events that it adds.
        added: Recognises the one event that `then` adds among stored ones; None where it adds none.
    """

    events: Sequence[Any] = ()
    expected_seq: int | None = None
    size: int = 0
    then: Callable[[Fold], Sequence[Any]] | None = None
    added: Callable[[Event], bool] | None = None

    @property
    def count(self) -> int:
        """How many events it comes to."""
        return len(self.events) + (self.added is not None)

    @property
    def held_bytes(self) -> int:
        """About what its events take in memory while they wait for the disk."""
        return self.size + EVENT_BYTES * self.count

    async def check_sizes(self, limits: Limits) -> bool:
        """Refuse too many events, and those that are too large.

        Returns:
            Whether others had a turn meanwhile, so that what was checked before must be checked again.

        Raises:
            FrameTooLargeError: With the `limit`, its `maximum` and the event's `index`.
        """
        if len(self.events) > limits.max_batch_events:
            raise FrameTooLargeError(
                f"{len(self.events)} events in one call are more than maxBatchEvents"
                f" ({limits.max_batch_events}); send them in several calls",
                limit="maxBatchEvents",
                maximum=limits.max_batch_events,
            )
        if self.size <= limits.max_event_bytes:
            return False
        need_task()
        unbroken = 0
        for index, event in enumerate(self.events):
            size = len(jsontext.encode_decoded(event))
            if size > limits.max_event_bytes:
                raise FrameTooLargeError(
                    f"event {index} has {size} bytes, more than maxEventBytes"
                    f" ({limits.max_event_bytes}); keep large content elsewhere and refer to it",
                    limit="maxEventBytes",
                    maximum=limits.max_event_bytes,
                    index=index,
                )
            unbroken += size
            if unbroken > _UNBROKEN_BYTES:
                unbroken = 0
                await trio.lowlevel.checkpoint()
        return True


@dataclass(frozen=True, slots=True)
class Admission:
    """What an append was given, or had been given before (`duplicate`)."""

    first_seq: int
    next_seq: int
    duplicate: bool = False

    def facts(self) -> dict[str, int]:
        """The fact `admitted` of an error."""
        return {"firstSeq": self.first_seq, "nextSeq": self.next_seq}


@dataclass(frozen=True, slots=True)
class Caller:
    """What is told to, and asked of, the call that is served.

    Attributes:
        admitted: To be called when the call's events have their seqs: the connection's next call may come in.
        cancelled: Whether a cancel has been read.
        hold_cancel: From here on a cancel only sets that flag.
    """

    admitted: Callable[[Admission], None]
    cancelled: Callable[[], bool]
    hold_cancel: Callable[[], None]
