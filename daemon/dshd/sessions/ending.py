"""The end of write handles, and what becomes of events whose writer is gone or whose daemon stops.

The rule that holds here: they are tried once more, and what cannot be written is told by session and seqs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from dsh_protocol.errors import DshdError, SessionNotFoundError, WriteFailedError
from dshd.sessions.claims import Continue, writer_lost
from dshd.sessions.values import MAX_SAFE_INTEGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dshd.sessions.claims import Taker
    from dshd.sessions.registry import Registry
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


async def close(registry: Registry, session_id: str, writer: str, taker: Taker) -> dict[str, Any]:
    """End a write handle, also one whose connection was lost and that is reserved for its holder since.

    Raises:
        WriterLostError: The writer holds nothing, and nothing is reserved for it.
        DshdError: As `Registry.close`; of a reserved one also: it cannot be opened, and stays reserved.
    """
    live = registry.get(session_id)
    held = live is not None and live.claim is not None and not live.claim.lost
    if not held:
        lost = Continue(MAX_SAFE_INTEGER, writer)  # whatever stands in the log by now
        try:
            session = await registry.open_write(session_id, taker, lost, takeover=False)
        except SessionNotFoundError:
            raise writer_lost(session_id, "no such session is stored") from None
        if session.claim is not None:
            writer = session.claim.writer
    return await registry.close(session_id, writer)


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
