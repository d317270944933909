"""Whole sessions read from the daemon, page by page, for the verbs that look at all of one.

The rule: what is read is cleaned before anything else sees it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from dsh_client.cli.cleaning import EventCleaner
from dsh_client.cli.values import as_object
from dsh_protocol.errors import (
    FormatUnsupportedError,
    LogCorruptError,
    SessionNotFoundError,
    UnsafePathError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_client.cli.context import Context

PAGE_BYTES = 1 << 20


class Source(NamedTuple):
    """A session as it was found: its id, what the daemon says of it, what a recovery would do."""

    id: str
    session: dict[str, Any]
    recovery: dict[str, Any]


def look(name: str, context: Context) -> Source:
    """Return a session by its name; one with a problem as far as it goes.

    Raises:
        SessionNotFoundError: There is none.
    """
    opened = open_for_reading(name, context)
    session = opened["session"]
    return Source(str(session["id"]), session, as_object(opened.get("recovery")))


def open_for_reading(name: str, context: Context) -> dict[str, Any]:
    """Return the result of a read-open, cleaned; of a session that refuses to be opened, that of a look at it."""
    try:
        _, opened = context.call_session("session.open", name, {"access": "read"})
    except (LogCorruptError, FormatUnsupportedError, UnsafePathError):
        _, opened = context.call_session("session.stat", name, {})
    # Ids and places stay as they are: the next command needs them.
    opened["session"]["title"] = context.clean(opened["session"].get("title"))
    if opened.get("recovery"):
        opened["recovery"] = context.clean(opened["recovery"])
    found: dict[str, Any] = opened
    return found


def read_events(
    session_id: str, context: Context, start: int = 0, stop: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events of a session with `start <= seq < stop`, cleaned."""
    cleaner = EventCleaner(context.redactor)
    offset = start
    while stop is None or offset < stop:
        params: dict[str, Any] = {"id": session_id, "offset": offset, "maxBytes": PAGE_BYTES}
        if stop is not None:
            params["length"] = stop - offset
        page = context.call("session.read", params)
        yield from cleaner.events(page["events"])
        offset = page["nextOffset"]
        if page["end"] or not page["events"]:
            return


def at_seq(name: str, mark: str, context: Context) -> tuple[Source, int | None]:
    """Return the session that `ID` or `ID<mark>SEQ` names, and the seq.

    An id may hold the mark itself, so the whole name is tried first.
    """
    try:
        return look(name, context), None
    except SessionNotFoundError:
        parts = re.fullmatch(rf"(.+){re.escape(mark)}([0-9]{{1,15}})", name, re.DOTALL)
        if parts is None:
            raise
        return look(parts[1], context), int(parts[2])
