"""What becomes of events that were admitted and whose writer is gone, or whose daemon stops.

The rule that holds here: they are tried once more, and what cannot be written is told by session and seqs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from dsh_protocol.errors import DshdError, WriteFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dshd.sessions.session import Session

log = structlog.get_logger()

_MOST_TOLD = 100


async def flush_left(session: Session) -> DshdError | None:
    """Try to make everything admitted durable; return why it is not. It stays with the session then."""
    if session.drain.clean:
        return None
    try:
        await session.drain.wait_durable(session.admitted_seq, losable=False)
    except DshdError as error:
        log.warning(
            "session.events_kept",
            session=session.id,
            first_seq=session.durable_seq,
            next_seq=session.admitted_seq,
            kind=error.kind,
        )
        return error
    return None


def unwritten_error(left: Sequence[Session]) -> DshdError:
    """What is told of a stop that leaves sessions with something to write: why, and the events that are given up."""
    spans = [
        {"id": one.id, "firstSeq": one.durable_seq, "nextSeq": one.admitted_seq} for one in left
    ]
    failure = left[0].drain.failure or WriteFailedError("the disk does not answer")
    more = f", and what {len(left) - 1} others have," if len(left) > 1 else ""
    return type(failure)(
        f"what session '{left[0].id}' has from seq {left[0].durable_seq} on{more} is not on disk and is given up,"
        f" for the daemon stops all the same: {failure.message}",
        **{**failure.facts, "sessions": spans[:_MOST_TOLD]},
    )


def give_up(sessions: Iterable[Session]) -> bool:
    """Retire sessions whatever they still have to write. Returns whether that was nothing."""
    written = True
    for session in sessions:
        if not session.drain.clean:
            written = False
            log.error(
                "session.events_lost",
                session=session.id,
                first_seq=session.durable_seq,
                next_seq=session.admitted_seq,
            )
            session.drain.abandon()
        session.retired.set()
    return written
