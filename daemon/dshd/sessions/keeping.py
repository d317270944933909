"""Keeping a session's folded state beside its log, so that the log need not be read again.

The rule that holds here: nobody waits for it. It is done when the session has rested, and when it ends; a batch that
comes meanwhile goes first, and a failure costs the next reader time, nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import trio

from dsh_protocol import jsontext
from dsh_protocol.errors import DshdError
from dshd.sessions.foldstate import encode_state, take_state
from dshd.sessions.incidents import new_incident
from dshd.sessions.threads import in_thread
from dshd.storage.store import Snapshot

if TYPE_CHECKING:
    from dshd.sessions.fold import Fold
    from dshd.sessions.foldstate import State
    from dshd.sessions.session import Session

log = structlog.get_logger()

REST_S = 1.0


class Keeper:
    """Keeps one session's snapshot level with its log."""

    def __init__(self) -> None:
        self._moved = trio.Event()
        self._due = True  # what was found at open may lag behind
        self._touched = 0.0

    def touch(self) -> None:
        """Note that the log has grown."""
        self._touched = trio.current_time()
        if not self._due:
            self._due = True
            self._moved.set()

    async def run(self, session: Session, limiter: trio.CapacityLimiter) -> None:
        """Keep a snapshot after every rest of a second, until cancelled; a session at work does not wake it."""
        self._touched = trio.current_time()
        while True:
            if not self._due:
                self._moved = trio.Event()
                await self._moved.wait()
            rest = self._touched + REST_S - trio.current_time()
            if rest > 0:
                await trio.sleep(rest)
            else:
                self._due = False
                await keep(session, limiter)


async def keep(session: Session, limiter: trio.CapacityLimiter) -> None:
    """Keep a snapshot now, where everything admitted is durable; a failure is logged and no more.

    A disk that hangs is left alone when this is cancelled.
    """
    fold = session.fold
    if not session.drain.clean or fold.next_seq != session.durable_seq:
        return
    try:
        write = partial(_keep, session, take_state(fold), summary_of(fold))
        await in_thread(write, limiter=limiter, abandon_on_cancel=True)
    except (DshdError, OSError, ValueError) as error:
        log.warning("session.snapshot_failed", session=session.id, exc_info=error)
    except Exception as error:  # noqa: BLE001  # a defect here must not end the session, which does not need this
        new_incident("session.snapshot_fault", error, session=session.id)


def _keep(session: Session, state: State, summary: dict[str, Any]) -> None:
    snapshot = Snapshot(state["next_seq"], encode_state(state), jsontext.encode(summary))
    session.handle.keep(snapshot)


def summary_of(fold: Fold) -> dict[str, Any]:
    """Return what a list shows of a fold."""
    return {
        "next_seq": fold.next_seq,
        "title": fold.title,
        "turns": fold.turns,
        "open_turn": fold.open_turn,
        "open_step": fold.open_step,
        "pending_calls": list(fold.pending),
    }
