"""Finding sessions by what was said in them.

The index proposes, the logs decide: it is brought up to what is durable before each answer, and every place that is
told was looked at in its log. The one rule: without an index the same is found, only later. All of it runs in a thread
of its own, in short steps, so that neither the event loop nor a reader waits for it.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
import trio

from dsh_protocol import jsontext
from dsh_protocol.errors import DshdError, InvalidParamsError, SessionNotFoundError
from dshd.sessions.texts import match_of, shown, text_of
from dshd.sessions.threads import in_thread
from dshd.storage.textindex import (
    Excerpts,
    IndexDamagedError,
    Indexed,
    IndexUnusableError,
    TextIndex,
    set_aside,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsh_protocol.events import Event
    from dshd.sessions.catalogue import Catalogue
    from dshd.storage.store import SessionHandle, SessionStore

log = structlog.get_logger()

_STEP_S = 0.25
_STEP_CHARACTERS = 4_000_000
_PASSING = frozenset({"OVERLOADED", "WRITE_FAILED"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page of places ended: behind which event, and how many of its session were told."""

    updated_at: int
    session_id: str
    seq: int
    told: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What is looked for.

    Attributes:
        text: A person's words.
        limit: How many places at most.
        per_session: How many of one session at most; None for all.
        after: Where the page before this one ended.
    """

    text: str
    limit: int
    per_session: int | None
    after: Place | None


class _Hit(NamedTuple):
    """A place: its session, its event, what stands there, and the how manieth of its session it is."""

    view: dict[str, Any]
    seq: int
    excerpt: str
    told: int


@dataclass(frozen=True, slots=True)
class _Source:
    """A session as a search sees it: what its log was when the search began."""

    view: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.view["id"])

    @property
    def is_live(self) -> bool:
        return str(self.view["revision"]).startswith("live:")

    @property
    def end(self) -> int | None:
        """Where what may be told ends; None for the end of the log."""
        return int(self.view["durableSeq"]) if self.is_live else None

    @property
    def revision(self) -> str:
        return "" if self.is_live else str(self.view["revision"])

    def is_in(self, known: Indexed | None) -> bool:
        """Whether the index has all of it."""
        if known is None:
            return self.end == 0
        return known.next_seq == self.end if self.is_live else known.revision == self.revision


class Search:
    """The search over all sessions of one root.

    Args:
        catalogue: Knows what sessions there are.
        store: Where they lie.
        root: Where the index lies.
    """

    def __init__(self, catalogue: Catalogue, store: SessionStore, root: str) -> None:
        self._catalogue = catalogue
        self._store = store
        self._root = root
        self._limiter = trio.CapacityLimiter(1)
        self._filling = trio.Lock()
        self._index: TextIndex | None = None

    async def find(self, asked: Asked) -> tuple[list[dict[str, Any]], Place | None]:
        """Return a page of places, those of the newest activity first, and where it ended.

        Raises:
            InvalidParamsError: The text holds nothing that can be looked for.
        """
        match = match_of(asked.text)
        if match is None:
            raise InvalidParamsError(
                "session.search needs a letter or a digit in params.text; marks alone are not indexed",
                path="params.text",
            )
        sources = [_Source(view) for view in await self._catalogue.list_all()]
        for _ in range(2):
            try:
                await self._fill(sources)
                hits = await self._in_thread(self._found, match, sources, asked)
                return _page(hits, asked)
            except IndexDamagedError as error:
                log.warning("search.index_damaged", reason=str(error))
                await self._in_thread(self._give_up, True)  # noqa: FBT003  # positions only, in a thread
            except IndexUnusableError as error:
                log.warning("search.index_unusable", reason=str(error))
                break
        await self._in_thread(self._give_up, False)  # noqa: FBT003  # likewise
        return _page(await self._scanned(match, sources, asked), asked)

    async def _in_thread(self, call: Any, *args: Any) -> Any:
        return await in_thread(call, *args, limiter=self._limiter)

    def _give_up(self, damaged: bool) -> None:  # noqa: FBT001  # called by position, in a thread
        """Let go of the index; of a damaged one also its file. Blocking."""
        self.close()
        if damaged:
            try:
                set_aside(self._root)
            except OSError as error:
                raise IndexUnusableError(str(error)) from error

    def close(self) -> None:
        """Close the index's file. Idempotent."""
        index, self._index = self._index, None
        if index is not None:
            index.close()

    # ------------------------------------------------------------------ filling the index

    async def _fill(self, sources: Sequence[_Source]) -> None:
        """Bring the index up to the sources; what was done before a cancel stays done."""
        async with self._filling:
            due = await self._in_thread(self._due, sources)
            while due:
                due = await self._in_thread(self._take_in, due)

    def _due(self, sources: Sequence[_Source]) -> list[_Source]:
        """Open the index, forget who is gone, and return who is not in it as they are now. Blocking."""
        if self._index is not None and self._index.wasted:
            raise IndexDamagedError("most of it belongs to sessions that are gone")
        if self._index is None:
            self._index = TextIndex(self._root)
        index = self._index
        gone = index.known.keys() - {source.id for source in sources}
        if gone:
            with index.filling():
                for session_id in gone:
                    index.forget(session_id)
        return [source for source in sources if not source.is_in(index.known.get(source.id))]

    def _take_in(self, due: list[_Source]) -> list[_Source]:
        """Take in some of what is due and return the rest. Blocking, for a fraction of a second."""
        index = self._index
        if index is None:
            raise IndexUnusableError("it was closed")
        until, budget, left = time.monotonic() + _STEP_S, _STEP_CHARACTERS, list(due)
        with index.filling():
            while left and budget > 0 and time.monotonic() < until:
                taken, whole = self._take_one(index, left[0], budget)
                budget -= taken + 1
                if whole:
                    left.pop(0)
        return left

    def _take_one(self, index: TextIndex, source: _Source, budget: int) -> tuple[int, bool]:
        """Take in what follows of one session; return how many characters, and whether that was all of it."""
        known = index.known.get(source.id)
        try:
            handle = self._store.open(source.id, "read")
        except SessionNotFoundError:
            return 0, True  # never written, or gone since
        except DshdError as error:
            if (
                error.kind not in _PASSING
            ):  # it is shown with its problem; nothing of it can be read
                index.forget(source.id)
                index.add(source.id, [], Indexed(None, source.revision, 0, ""))
            return 0, True
        try:
            created = handle.header.created_at
            if known is None or known.created != created or not _goes_on(handle, known):
                if known is not None:
                    index.forget(source.id)
                known = Indexed(created, "", 0, "")
            reading = _Reading(handle, known.next_seq, source.end)
            rows = list(reading.rows(budget))
        finally:
            handle.close()
        revision = source.revision if reading.ended else ""
        tail = known.tail if reading.last is None else _digest(reading.last)
        index.add(source.id, rows, Indexed(created, revision, reading.next_seq, tail))
        return reading.characters, reading.ended

    # ------------------------------------------------------------------ asking it

    def _found(self, match: str, sources: Sequence[_Source], asked: Asked) -> list[_Hit]:
        """Return one place more than was asked for, where there is one. Blocking."""
        index = self._index
        if index is None:
            raise IndexUnusableError("it was closed")
        few = index.find(match)
        hits: list[_Hit] = []
        with closing(Excerpts(match)) as looking:
            for source, below, before in _from(sources, asked):
                most = _most(asked, len(hits), before)
                if most <= 0:
                    continue
                if few is None:
                    seqs = index.find_in(source.id, match, most, below)
                else:
                    seqs = [seq for seq in few.get(source.id, ()) if below is None or seq < below]
                looked_up = self._looked_up(source, looking, seqs[:most])
                for told, (seq, excerpt) in enumerate(looked_up, before + 1):
                    hits.append(_Hit(source.view, seq, excerpt, told))
                if len(hits) > asked.limit:
                    break
        return hits

    def _looked_up(
        self, source: _Source, looking: Excerpts, seqs: Sequence[int]
    ) -> list[tuple[int, str]]:
        """Return those of a session's events that match indeed."""
        if not seqs:
            return []
        try:
            handle = self._store.open(source.id, "read")
        except DshdError:
            return []
        texts: list[tuple[int, str]] = []
        try:
            for seq in seqs:
                texts += _Reading(handle, seq, seq + 1).rows(1)
        finally:
            handle.close()
        return [(seq, shown(excerpt)) for seq, excerpt in looking.of(texts)]

    # ------------------------------------------------------------------ without it

    async def _scanned(self, match: str, sources: Sequence[_Source], asked: Asked) -> list[_Hit]:
        """Find the same by reading every log until there is enough."""
        hits: list[_Hit] = []
        for source, below, before in _from(sources, asked):
            most = _most(asked, len(hits), before)
            if most <= 0:
                continue
            scanned = await self._in_thread(self._scan, source, match, below, most)
            for told, (seq, excerpt) in enumerate(scanned, before + 1):
                hits.append(_Hit(source.view, seq, excerpt, told))
            if len(hits) > asked.limit:
                break
        return hits

    def _scan(
        self, source: _Source, match: str, below: int | None, most: int
    ) -> list[tuple[int, str]]:
        try:
            handle = self._store.open(source.id, "read")
        except DshdError:
            return []
        found: list[tuple[int, str]] = []
        try:
            ends = [end for end in (source.end, below) if end is not None]
            reading = _Reading(handle, 0, min(ends, default=None))
            with closing(Excerpts(match)) as looking:
                while not reading.ended:
                    found += looking.of(list(reading.rows(_STEP_CHARACTERS)))
        finally:
            handle.close()
        last = sorted(found, reverse=True)[:most]
        return [(seq, shown(excerpt)) for seq, excerpt in last]


class _Reading:
    """Reads the texts of a log from one seq to another, as far as it can be read.

    Attributes:
        next_seq: How far it has come.
        last: The last event that was read.
        ended: Whether that is all there is to be read.
        characters: How much text that was.
    """

    def __init__(self, handle: SessionHandle, start: int, end: int | None) -> None:
        length = None if end is None else max(0, end - start)
        self._events = iter(handle.read(start, length))
        self.next_seq = start
        self.last: Event | None = None
        self.ended = length == 0
        self.characters = 0

    def rows(self, budget: int) -> Iterator[tuple[int, str]]:
        """Yield texts with their seqs until about `budget` characters are read, or everything is."""
        left = budget
        while left > 0 and not self.ended:
            try:
                event = next(self._events, None)
            except DshdError:
                event = None  # what stands behind a defect cannot be read, nor found
            if event is None:
                self.ended = True
                return
            self.last, self.next_seq = event, event["seq"] + 1
            text = text_of(event)
            left -= 16 if text is None else len(text)
            if text is not None:
                self.characters += len(text)
                yield event["seq"], text


def _goes_on(handle: SessionHandle, known: Indexed) -> bool:
    """Whether a log is still the one that was read, with more events or none behind."""
    if not known.next_seq:
        return True
    try:
        last = next(iter(handle.read(known.next_seq - 1, 1)), None)
    except DshdError:
        return False
    return last is not None and _digest(last) == known.tail


def _digest(event: Event) -> str:
    return hashlib.blake2b(jsontext.encode(event), digest_size=16).hexdigest()


def _from(sources: Sequence[_Source], asked: Asked) -> Iterator[tuple[_Source, int | None, int]]:
    """Yield the sources that a page may have, each with the seq it ends below and how many of it were told."""
    after = asked.after
    for source in sources:
        key = (-source.view["updatedAt"], source.id)
        if after is None or key > (-after.updated_at, after.session_id):
            yield source, None, 0
        elif source.id == after.session_id:
            yield source, after.seq, after.told


def _most(asked: Asked, found: int, told: int) -> int:
    """How many more places of a session are wanted."""
    wanted = asked.limit + 1 - found
    return wanted if asked.per_session is None else min(wanted, asked.per_session - told)


def _page(hits: Sequence[_Hit], asked: Asked) -> tuple[list[dict[str, Any]], Place | None]:
    told = hits[: asked.limit]
    page = [{"session": hit.view, "seq": hit.seq, "excerpt": hit.excerpt} for hit in told]
    if len(hits) <= asked.limit:
        return page, None
    last = told[-1]
    return page, Place(last.view["updatedAt"], last.view["id"], last.seq, last.told)
