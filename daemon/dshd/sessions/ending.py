"""What becomes of events that were admitted and whose writer is gone, or whose daemon stops.

The rule that holds here: they are tried once more, and what cannot be written is told by session and seqs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from dsh_protocol.errors import DshdError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dshd.sessions.session import Session

log = structlog.get_logger()


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
