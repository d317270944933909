"""Reading sessions, live or stored: events by page.

Reading never mends. What cannot be read is named, and what can be is given.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from dsh_protocol import jsontext
from dsh_protocol.errors import (
    DshdError,
    FormatUnsupportedError,
    LogCorruptError,
    UnsafePathError,
)
from dshd.sessions.blocks import BLOCK_BYTES, Block
from dshd.sessions.views import as_wire, problem_of
from dshd.storage.store import HandleClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsh_protocol.events import Event
    from dshd.sessions.registry import Registry
    from dshd.sessions.session import Session
    from dshd.storage.store import SessionHandle, SessionStore

ENVELOPE_BYTES = 64 * 1024
PAGE_BYTES = 512 * 1024
LARGEST_PAGE_BYTES = 4 * 1024 * 1024
_PAGE_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class Page:
    """Which events are wanted: from seq `offset`, at most `length` of them and about `max_bytes`."""

    offset: int
    length: int | None
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A live session at one moment: what is admitted now, whatever comes while it is read."""

    session: Session
    durable_seq: int
    pending: tuple[Event, ...]

    def events(self, offset: int = 0) -> Iterator[Event]:
        """Yield from seq `offset`. Blocking."""
        if offset < self.durable_seq:
            yield from self.session.handle.read(offset, self.durable_seq - offset)
        yield from self.pending[max(offset - self.durable_seq, 0) :]


def encode_event(event: Event) -> bytes:
    """An event as it goes out: keys in stored order, lone surrogates escaped."""
    return jsontext.encode_decoded(event)


def snapshot(registry: Registry, session_id: str) -> Snapshot | None:
    """Return a live session as it is now; None where nobody has it open."""
    session = registry.get(session_id)
    if session is None:
        return None
    return Snapshot(session, session.durable_seq, tuple(session.drain.pending))


# ---------------------------------------------------------------------- events


async def read(
    registry: Registry, session_id: str, page: Page, admitted: Callable[[], None]
) -> dict[str, Any]:
    """Return a page of admitted events and how far they are durable.

    At least one event where there is one, whatever the budget. What lies behind damage is not there; the result then
    names the `problem`.

    Args:
        registry: Knows the session.
        session_id: Which one.
        page: What is wanted.
        admitted: Called when it is settled what will be read.
    """
    found = snapshot(registry, session_id)
    admitted()
    live = None if found is None else partial(_read_live, found, page)
    return await in_reader(registry, live, partial(_read_stored, registry, session_id, page))


async def in_reader(
    registry: Registry,
    live: Callable[[], dict[str, Any]] | None,
    stored: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Read by the session's own handle where it is live; by a fresh one where that is closed by now."""
    if live is not None:
        with suppress(HandleClosedError):
            return await registry.in_reader(live)
    return await registry.in_reader(stored)


def _read_live(found: Snapshot, page: Page) -> dict[str, Any]:
    end = found.durable_seq + len(found.pending)
    events, problem = _page(found.events(page.offset), page)
    following = page.offset + len(events)
    result = {
        "events": events,
        "nextOffset": following,
        "end": following >= end or problem is not None,
        "durableSeq": found.durable_seq,
    }
    return result if problem is None else {**result, "problem": problem}


def _read_stored(registry: Registry, session_id: str, page: Page) -> dict[str, Any]:
    try:
        handle = registry.store.open(session_id, "read")
    except (LogCorruptError, FormatUnsupportedError, UnsafePathError) as error:
        return _read_headless(registry.store, session_id, page, error)
    try:
        events, _ = _page(handle.read(page.offset), page)
        length, problem = _readable(handle)
        as_a_whole = registry.store.stat(session_id).problem
    finally:
        handle.close()
    following = page.offset + len(events)
    result = {
        "events": events,
        "nextOffset": following,
        "end": following >= length,
        "durableSeq": length,
    }
    if as_a_whole is not None:
        problem = as_wire(as_a_whole)
    return result if problem is None else {**result, "problem": problem}


def _read_headless(
    store: SessionStore, session_id: str, page: Page, problem: DshdError
) -> dict[str, Any]:
    """A page of a session that cannot be opened: what stands behind its header, where that is what is wrong."""
    length = 0
    with suppress(DshdError):
        length = sum(1 for _ in store.rescue(session_id))
    events, _ = _page(islice(store.rescue(session_id), page.offset, None), page)
    following = page.offset + len(events)
    return {
        "events": events,
        "nextOffset": following,
        "end": following >= length,
        "durableSeq": length,
        "problem": problem_of(problem),
    }


def _readable(handle: SessionHandle) -> tuple[int, dict[str, Any] | None]:
    """How many events of a stored log can be read, and what keeps the rest from it."""
    try:
        return handle.next_seq, None
    except DshdError as error:
        problem = problem_of(error)
    length = 0
    with suppress(DshdError):
        for _ in handle.read():
            length += 1
    return length, problem


def _page(source: Iterator[Event], page: Page) -> tuple[list[msgspec.Raw], dict[str, Any] | None]:
    events: list[msgspec.Raw] = []
    size = 0
    try:
        for event in islice(source, page.length):
            text = encode_event(event)
            size += len(text) + 1
            if events and size > page.max_bytes:
                break
            events.append(msgspec.Raw(text))
    except DshdError as error:
        return events, problem_of(error)
    return events, None


async def durable_page(registry: Registry, session_id: str, offset: int) -> list[msgspec.Raw]:
    """Return durable events from seq `offset` on, a page at most; none where all have been read.

    Raises:
        SessionNotFoundError: The session is gone.
    """
    blocks = registry.watchers.blocks
    known = blocks.find(session_id, offset, PAGE_BYTES)
    if known:
        return known
    since, found = blocks.drops, snapshot(registry, session_id)
    page = Page(offset, _PAGE_EVENTS, BLOCK_BYTES)
    if found is not None:
        if offset >= found.durable_seq:
            return []
        page = Page(offset, min(_PAGE_EVENTS, found.durable_seq - offset), BLOCK_BYTES)
    live = None if found is None else partial(_read_live, found, page)
    stored = partial(_read_stored, registry, session_id, page)
    result = await in_reader(registry, live, stored)
    block = Block(session_id, offset, result["events"])
    blocks.keep(block, since)
    return block.page(offset, PAGE_BYTES)
