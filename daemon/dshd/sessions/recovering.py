"""Closing the turn that a crash interrupted, and saying what each of its unanswered calls needs.

The rule that holds here: a recovery is decided by the log alone and committed once. Whoever asks again, also a later
holder, is told the same until the next turn begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import LogChangedError, RecoveryRequiredError, SessionSealedError
from dshd.sessions import closers

if TYPE_CHECKING:
    from dsh_protocol.events import Event, Header
    from dshd.sessions.asked import Caller
    from dshd.sessions.fold import Fold
    from dshd.sessions.session import Session


def recovery(session: Session) -> dict[str, Any] | None:
    """The recovery that is due (a preview), or the committed one of the last interrupted turn, or None."""
    if session.recovery_due:
        return preview(session.fold, session.header)
    committed = session.fold.committed
    if committed is None:
        return None
    return {
        "committed": True,
        "repairs": closers.committed_repairs(session.fold, session.header),
        "closers": list(committed.closers),
        "nextSeq": session.next_seq,
    }


async def recover(session: Session, writer: str, caller: Caller, now: int) -> dict[str, Any]:
    """Close the interrupted turn, durably, and say what each unanswered call needs.

    Repeated, also by a later holder, it gives the same again until the next `turn/start`. A recover whose flush
    fails, or that is cancelled, keeps its closers queued, and nothing can be appended before one has told the
    repairs; a retry adds no event.

    Args:
        session: Whose turn.
        writer: Proves the claim.
        caller: Told when the closers have their seqs.
        now: The end-seed's time.
    """
    claim = session.require_writer(writer)
    admission = session.admit_closers(_closing(session, now) if session.recovery_due else [])
    caller.admitted(admission)
    await session.wait_durable(claim, admission, begun=caller.hold_cancel)
    session.recovery_untold = False
    found = recovery(session) or {
        "committed": True,
        "repairs": [],
        "closers": [],
        "nextSeq": session.next_seq,
    }
    return session.with_notification_error(claim, found)


def _closing(session: Session, now: int) -> list[Event]:
    """Apply closers and end-seed to the fold and return them."""
    if isinstance(session.drain.failure, SessionSealedError | LogChangedError):
        raise session.drain.failure.with_facts()
    fold = session.fold
    closing = closers.closers(fold)
    events = [*closing, end_seed(fold.next_seq + len(closing), now)]
    for event in events:
        fold.apply(event)
    if fold.committed is not None:
        # by the log alone, a step that the agent ended in the same millisecond looks like a closer
        fold.committed = replace(fold.committed, closers=closing)
    return events


def preview(fold: Fold, header: Header) -> dict[str, Any]:
    """The recovery that the open turn of a log needs; `nextSeq` counts closers and end-seed."""
    closing = closers.closers(fold)
    return {
        "committed": False,
        "repairs": closers.repairs(fold, header),
        "closers": closing,
        "nextSeq": fold.next_seq + len(closing) + 1,
    }


def recovery_required(session: Session) -> RecoveryRequiredError:
    """The refusal of an append while the last turn is interrupted, until a recover has said what its calls need."""
    fold = session.fold
    turn, calls = fold.open_turn, list(fold.pending)
    if session.recovery_untold and fold.committed is not None:
        turn, calls = fold.last_turn, [call.call_id for call in fold.committed.calls]
    asked = f" with {len(calls)} unanswered calls" if calls else ""
    return RecoveryRequiredError(
        f"session '{session.id}': turn {turn} was interrupted{asked};"
        " call session.recover before appending",
        session=session.id,
        openTurn=turn,
        pendingCalls=calls,
    )


def end_seed(seq: int, now: int) -> Event:
    """The event that separates what an earlier holder wrote from what the new one writes."""
    return {"type": "session/end-seed", "seq": seq, "time": now, "data": {}}
