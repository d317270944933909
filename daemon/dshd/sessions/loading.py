"""What a stored session is when it comes back to be written to: its log's handle, its fold, and what lies beside them.

The rule that holds here: who may not have it is refused before anything of it is live, and then nothing stays open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from dshd.sessions.claims import check_reserved, writer_lost
from dshd.sessions.folding import fold_log
from dshd.sessions.values import members

if TYPE_CHECKING:
    from dsh_protocol.events import Event
    from dshd.sessions.claims import Continue, Wish
    from dshd.sessions.fold import Fold
    from dshd.sessions.registry import Registry
    from dshd.storage.store import HolderRecord, Labels, SessionHandle


class Loaded(NamedTuple):
    """A session as it was stored, open for writing."""

    handle: SessionHandle
    fold: Fold
    reservation: HolderRecord | None
    labels: Labels | None


async def load(registry: Registry, session_id: str, wish: Wish) -> Loaded:
    """Open a stored session for one who may have it.

    Raises:
        SessionBusyError: It is reserved for a living process, or another program writes.
        WriterLostError: The wish is to go on with a handle that somebody has had since.
        DshdError: It cannot be opened.
    """
    handle = await registry.in_opener(registry.store.open, session_id, "write")
    try:
        fold = await registry.in_opener(fold_log, handle)
        record = await registry.in_opener(handle.read_holder)
        labels = await registry.in_opener(registry.store.read_labels, session_id)
        check_reserved(session_id, fold.open_turn, record, wish)
        if wish.continued is not None and fold.next_seq > wish.continued.next_seq:
            await registry.in_opener(_check_untouched, handle, wish.continued)
    except BaseException:
        with trio.CancelScope(shield=True):
            await registry.close_handle(handle)
        raise
    return Loaded(handle, fold, record, labels)


def _check_untouched(handle: SessionHandle, continued: Continue) -> None:
    """Refuse to continue over closers or an end-seed that the agent does not know of."""
    if any(_ends_a_life(event) for event in handle.read(continued.next_seq)):
        raise writer_lost(handle.header.id, f"it was recovered after seq {continued.next_seq}")


def _ends_a_life(event: Event) -> bool:
    if event["type"] == "session/end-seed":
        return True
    if event["type"] != "turn/end":
        return False
    return members(event["data"]).get("reason") == {"kind": "interrupted"}
