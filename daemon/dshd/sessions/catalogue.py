"""The catalogue: what is shown of sessions, live or stored, without opening them for writing.

Folded states of stored logs are kept by the revision of the file, so that a list reads headers only. The one rule:
a session that cannot be read is shown with its problem and disturbs no other.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from dsh_protocol import jsontext
from dsh_protocol.errors import DshdError, OverloadedError, SessionNotFoundError
from dshd.sessions.claims import holder_alive
from dshd.sessions.fold import Fold
from dshd.sessions.folding import kept_fold
from dshd.sessions.surface import SurfaceDefectError
from dshd.sessions.views import live_view, problem_of, stored_view
from dshd.storage.jsonl.vocabulary import stored_defect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_protocol.events import Event
    from dshd.sessions.registry import Registry
    from dshd.storage.store import HolderRecord, StoredSession

_KEPT_STATES = 20_000
_FOLD_NOW_BYTES = 256 * 1024
_UNSUPPORTED = "FORMAT_UNSUPPORTED"
_CORRUPT = "LOG_CORRUPT"
_PASSING = frozenset({"OVERLOADED", "WRITE_FAILED"})
"""Problems of the machine, not of the log: they are looked at anew each time."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What a fold says of a stored log, as far as a list shows it."""

    next_seq: int
    title: str | None
    turns: int
    open_turn: Any
    open_step: Any
    pending_calls: tuple[str, ...]
    problem: dict[str, Any] | None


class Catalogue:
    """Views of all sessions.

    Args:
        registry: Knows the live ones and the store.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._folded: OrderedDict[str, tuple[str, Folded]] = OrderedDict()
        self._views: dict[str, tuple[StoredSession, dict[str, Any]]] = {}
        self._due: dict[str, None] = {}
        self._wake = trio.Event()

    # ------------------------------------------------------------------ one session

    async def stat(self, session_id: str) -> dict[str, Any]:
        """Return the view of one session, folded first where its state is not known.

        Raises:
            SessionNotFoundError: It is neither live nor on disk.
        """
        session = self._registry.get(session_id)
        if session is not None:
            return live_view(session)
        return await self._registry.in_reader(self._stat_stored, session_id)

    def _stat_stored(self, session_id: str) -> dict[str, Any]:
        stored = self._registry.store.stat(session_id)
        folded = self._known(stored) or self._fold(stored)
        return self._stored_view(stored, folded)

    async def show_new(self, session_id: str, fold: Fold | None) -> dict[str, Any]:
        """Return the view of a session that was just put on disk.

        Args:
            session_id: Which.
            fold: Of all its events. Where it is not known the state is `unknown`, and found out in the background.
        """
        if self._registry.get(session_id) is not None:
            return await self.stat(session_id)
        if fold is None:
            self._due[session_id] = None
            self._wake.set()
        return await self._registry.in_reader(self._show_new, session_id, fold)

    def _show_new(self, session_id: str, fold: Fold | None) -> dict[str, Any]:
        stored = self._registry.store.stat(session_id)
        folded = None if fold is None else _as_folded(fold, fold.next_seq, None)
        if folded is not None:
            self._folded[session_id] = (stored.revision, folded)
        return self._stored_view(stored, folded)

    def _known(self, stored: StoredSession) -> Folded | None:
        kept = self._folded.get(stored.session_id)
        if kept is not None and kept[0] == stored.revision:
            return kept[1]
        return None if stored.summary is None else _as_kept(stored.summary)

    def _fold(self, stored: StoredSession) -> Folded | None:
        """Fold a stored log and keep the result for its revision. Blocking."""
        if stored.header is None:
            return None
        try:
            folded = fold_stored(self._registry, stored.session_id)
        except SessionNotFoundError:
            return None
        if folded.problem is not None and folded.problem["kind"] in _PASSING:
            return folded
        self._folded[stored.session_id] = (stored.revision, folded)
        self._folded.move_to_end(stored.session_id)
        while len(self._folded) > _KEPT_STATES:
            self._folded.popitem(last=False)
        return folded

    def _stored_view(self, stored: StoredSession, folded: Folded | None) -> dict[str, Any]:
        record = None
        if folded is not None and folded.open_turn is not None:
            record = self._living_holder(stored.session_id)
        return stored_view(stored, folded, record)

    def _living_holder(self, session_id: str) -> HolderRecord | None:
        try:
            record = self._registry.store.read_holder(session_id)
        except DshdError:
            return None
        return record if record is not None and holder_alive(record) else None

    # ------------------------------------------------------------------ all sessions

    async def list_all(self) -> list[dict[str, Any]]:
        """Return the views of all sessions, newest activity first.

        A stored session whose state is not known yet has state `unknown` where its log is large; it is folded in
        the background.
        """
        live = {session.id: live_view(session) for session in self._registry.live.values()}
        stored, due = await self._registry.in_reader(self._list_stored, frozenset(live))
        if due:
            self._due.update(dict.fromkeys(due))
            self._wake.set()
        views = [*live.values(), *stored]
        views.sort(key=lambda view: (-view["updatedAt"], view["id"]))
        return views

    def _list_stored(self, live: frozenset[str]) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the views of stored sessions, and the ids of those left to be folded. Blocking."""
        views: list[dict[str, Any]] = []
        lasting: dict[str, tuple[StoredSession, dict[str, Any]]] = {}
        due: list[str] = []
        budget = _FOLD_NOW_BYTES
        for stored in self._registry.store.list():
            if stored.session_id in live:
                continue
            kept = self._views.get(stored.session_id)
            if kept is not None and kept[0] is stored:  # the store found nothing changed
                lasting[stored.session_id] = kept
                views.append(kept[1])
                continue
            folded = self._known(stored)
            if folded is None and stored.header is not None:
                if stored.size_bytes <= budget:
                    budget -= stored.size_bytes
                    folded = self._fold(stored)
                else:
                    due.append(stored.session_id)
            view = self._stored_view(stored, folded)
            views.append(view)
            if folded is not None and folded.open_turn is None and _lasts(folded.problem):
                lasting[stored.session_id] = (stored, view)
        self._views = lasting
        return views, due

    async def list_deleted(self) -> list[dict[str, Any]]:
        """Return the views of what lies in the trash, what was deleted last first; nothing of it is folded."""
        views = await self._registry.in_reader(self._list_deleted)
        views.sort(key=lambda view: (-view["deletedAt"], view["id"]))
        return views

    def _list_deleted(self) -> list[dict[str, Any]]:
        return [
            stored_view(stored, self._known(stored), None)
            for stored in self._registry.store.list_deleted()
        ]

    async def run(self) -> None:
        """Fold in the background what a list left unknown; until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._due:
                session_id = next(iter(self._due))
                del self._due[session_id]
                with suppress(
                    OverloadedError
                ):  # no thread now: the next list finds it unknown again
                    await self._registry.in_reader(self._fold_by_id, session_id)

    def _fold_by_id(self, session_id: str) -> None:
        try:
            self._fold(self._registry.store.stat(session_id))
        except DshdError:
            return  # it is gone, or its problem is in the list


def _lasts(problem: dict[str, Any] | None) -> bool:
    """Whether what is wrong with a log is wrong as long as the log is what it is."""
    return problem is None or problem["kind"] not in _PASSING


def fold_stored(registry: Registry, session_id: str) -> Folded:
    """Fold what is readable of a stored log. Blocking.

    Raises:
        SessionNotFoundError: There is none.
    """
    foldable = True
    problem: dict[str, Any] | None = None
    try:
        handle = registry.store.open(session_id, "read")
    except SessionNotFoundError:
        raise
    except DshdError as error:
        return _as_folded(Fold(), 0, problem_of(error))
    fold = kept_fold(handle)
    length = fold.next_seq
    try:
        for event in handle.read(length):
            defect = _problem_in(session_id, event)
            problem = problem or defect
            foldable = foldable and (defect is None or defect["kind"] == _UNSUPPORTED)
            if foldable:  # behind an event of a broken shape they are only counted
                fold.apply(event)
            length += 1
    except DshdError as error:
        problem = problem_of(error)
    except SurfaceDefectError as defect:
        text = f"the event at seq {fold.next_seq} breaks the rule '{defect.rule}'"
        problem = {"kind": _CORRUPT, "message": text, "path": None, "offset": None}
    finally:
        handle.close()
    return _as_folded(fold, length, problem)


def _problem_in(session_id: str, event: Event) -> dict[str, Any] | None:
    """Why a log with this event cannot be continued: another program's vocabulary, or a broken shape."""
    defect = stored_defect(event)
    if defect is None:
        return None
    rule, of_format = defect
    text = f"session '{session_id}': the event at seq {event['seq']} breaks '{rule}'"
    kind = _UNSUPPORTED if of_format else _CORRUPT
    return {"kind": kind, "message": text, "path": None, "offset": None}


def _as_kept(summary: bytes) -> Folded | None:
    """What a summary says that is kept beside a log; None where another version wrote it."""
    try:
        found = jsontext.decode_stored(summary)
        return Folded(**found, problem=None)
    except (jsontext.JsonTextError, TypeError):
        return None


def _as_folded(fold: Fold, length: int, problem: dict[str, Any] | None) -> Folded:
    return Folded(
        next_seq=length,
        title=fold.title,
        turns=fold.turns,
        open_turn=fold.open_turn,
        open_step=fold.open_step,
        pending_calls=tuple(fold.pending),
        problem=problem,
    )


def counts(views: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many sessions are in each state."""
    found: dict[str, int] = {}
    for view in views:
        found[view["state"]] = found.get(view["state"], 0) + 1
    return found
