"""From a stored log to its fold. Blocking; reading never mends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_protocol.errors import LogCorruptError
from dshd.sessions.fold import Fold
from dshd.sessions.foldstate import decode_state
from dshd.sessions.surface import SurfaceDefectError

if TYPE_CHECKING:
    from dshd.storage.store import SessionHandle


def kept_fold(handle: SessionHandle) -> Fold:
    """Return the fold that is kept beside a log, as far as it goes; an empty one where there is none."""
    snapshot = handle.snapshot()
    fold = None if snapshot is None else decode_state(snapshot.state)
    if fold is None or snapshot is None or fold.next_seq != snapshot.next_seq:
        return Fold()
    return fold


def fold_log(handle: SessionHandle) -> Fold:
    """Fold a log, from where the fold ends that is kept beside it.

    Raises:
        LogCorruptError: It cannot be read to its end, or its surface cannot be folded.
    """
    fold = kept_fold(handle)
    for event in handle.read(fold.next_seq):
        try:
            fold.apply(event)
        except SurfaceDefectError as defect:
            raise surface_problem(handle.header.id, fold.next_seq, defect.rule) from defect
    return fold


def surface_problem(session_id: str, seq: int, rule: str) -> LogCorruptError:
    """The error for a stored log whose surface cannot be folded."""
    return LogCorruptError(
        f"session '{session_id}': the event at seq {seq} breaks the rule '{rule}';"
        " run dshd verify to see what is readable",
        session=session_id,
        seq=seq,
        rule=rule,
    )
