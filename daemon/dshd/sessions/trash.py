"""Deleting a session, bringing it back, and removing it for good.

The one rule: nothing that somebody may still write to is deleted, and what is deleted is only put out of the way; what
lies there is removed one by one, when a person asks for just that. A damaged session, or one that a newer program
wrote, can be put away like any other: its log is not needed for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from dsh_protocol.errors import SessionBusyError, SessionExistsError
from dshd.sessions.claims import busy_error
from dshd.sessions.watchers import DELETED

if TYPE_CHECKING:
    from dshd.sessions.catalogue import Catalogue
    from dshd.sessions.registry import Registry


async def delete(registry: Registry, catalogue: Catalogue, session_id: str) -> None:
    """Put a session into the trash, durable on return; those who follow it are told.

    Raises:
        SessionNotFoundError: There is none.
        SessionBusyError: It has a writer, or a living process may go on with its open turn.
        UnsafePathError, NoSpaceError, WriteFailedError: As the store has them.
    """
    async with registry.exclusive(session_id):
        registry.refuse_if_closing()
        session = registry.get(session_id)
        if session is not None and session.claim is not None:
            raise session.busy()
        if session is not None:
            raise SessionBusyError(
                f"session '{session_id}' has events that are not on disk yet; open it and flush first",
                session=session_id,
                holder=None,
            )
        view = await catalogue.stat(session_id)
        if view["writer"] is not None:
            raise busy_error(session_id, view["writer"])
        with trio.CancelScope(shield=True):  # whoever follows it is told what was done
            await registry.in_opener(registry.store.delete, session_id)
            registry.watchers.end(session_id, DELETED)


async def undelete(registry: Registry, session_id: str) -> None:
    """Bring back what was deleted last under an id, durable on return.

    Raises:
        SessionNotFoundError: Nothing of that id is in the trash.
        SessionExistsError: There is a session of that id again.
        NoSpaceError, WriteFailedError: As the store has them.
    """
    async with registry.exclusive(session_id):
        registry.refuse_if_closing()
        if registry.get(session_id) is not None:
            raise SessionExistsError(
                f"session '{session_id}' exists again; nothing was brought back over it",
                session=session_id,
            )
        await registry.in_opener(registry.store.undelete, session_id)


async def purge(registry: Registry, session_id: str, deleted_at: int) -> None:
    """Remove for good what was deleted under an id at that time, durable on return. A session of that id stays.

    Raises:
        SessionNotFoundError: Nothing of it is in the trash.
        NoSpaceError, WriteFailedError: As the store has them.
    """
    async with registry.exclusive(session_id):
        registry.refuse_if_closing()
        with trio.CancelScope(shield=True):  # it is done, or it is not
            await registry.in_opener(registry.store.purge, session_id, deleted_at)
