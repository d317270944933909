"""Labels: what a person calls a session, and whether it is archived or pinned.

They lie beside the log and are a matter of whoever lists sessions; the one rule: the log, its header and its writer
notice nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import trio

from dsh_protocol.errors import InvalidParamsError, SessionNotFoundError
from dshd.storage.store import Labels

if TYPE_CHECKING:
    from dshd.sessions.registry import Registry

MAX_TITLE = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be set; None leaves a label as it is, and an empty title takes it away."""

    title: str | None = None
    archived: bool | None = None
    pinned: bool | None = None

    def on(self, labels: Labels) -> Labels:
        """Return labels with this change made."""
        if self.title is not None:
            labels = replace(labels, title=self.title or None)
        if self.archived is not None:
            labels = replace(labels, archived=self.archived)
        if self.pinned is not None:
            labels = replace(labels, pinned=self.pinned)
        return labels


async def set_labels(registry: Registry, session_id: str, change: Change) -> None:
    """Change a session's labels, durable on return.

    Raises:
        SessionNotFoundError: There is none, or nothing of it is on disk yet.
        InvalidParamsError: The title is too long, or no text.
        NoSpaceError, WriteFailedError: They are as they were.
    """
    _check_title(change.title)
    async with registry.exclusive(session_id):
        registry.refuse_if_closing()
        session = registry.get(session_id)
        if session is not None and not session.handle.materialised:
            raise SessionNotFoundError(
                f"nothing of session '{session_id}' is on disk yet; label it after its first flush",
                session=session_id,
            )
        with trio.CancelScope(shield=True):  # what is on disk and what is shown are one
            labels = await registry.in_opener(_set, registry, session_id, change)
            if session is not None:
                session.labels = labels


def _set(registry: Registry, session_id: str, change: Change) -> Labels | None:
    before = registry.store.read_labels(session_id) or Labels()
    after = change.on(before)
    if after != before:
        registry.store.write_labels(session_id, after)
    return None if after == Labels() else after


def _check_title(title: str | None) -> None:
    if title is None:
        return
    if len(title) > MAX_TITLE:
        raise InvalidParamsError(
            f"params.title has {len(title)} characters, more than {MAX_TITLE}; take a shorter one",
            path="params.title",
        )
    try:
        title.encode()
    except UnicodeEncodeError as error:
        raise InvalidParamsError(
            "params.title holds half of a surrogate pair; send text", path="params.title"
        ) from error
