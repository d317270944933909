"""Forks: a new session that begins with another's events up to a closed turn.

The child is on disk, whole, before anybody is told of it; the source is only read. The one rule: the history is not
gone through. The store takes it over as bytes; here only the end of it is looked at, and the fold that is known of it
goes with it. Where none is known the history is folded once, and then it was never looked at before either.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dsh_protocol import jsontext
from dsh_protocol.errors import DshdError, InvalidParamsError, OpenTurnError, SessionExistsError
from dsh_protocol.events import Header
from dsh_protocol.ids import new_session_id
from dshd.sessions.fold import Fold
from dshd.sessions.folding import kept_fold, surface_problem
from dshd.sessions.foldstate import decode_state, encode_state, take_state
from dshd.sessions.history import format_problem, unfaithful
from dshd.sessions.keeping import summary_of
from dshd.sessions.session import now_ms
from dshd.sessions.surface import SurfaceDefectError
from dshd.sessions.values import members
from dshd.storage.store import HandleClosedError, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_protocol.events import Event
    from dshd.sessions.foldstate import State
    from dshd.sessions.registry import Registry
    from dshd.storage.store import SessionHandle

_WINDOW = 64
_LARGEST_WINDOW = 4096
_FOLD_BYTES = 512 * 1024
"""A history of about so little is folded, whatever the boundary, so that everything is known of the child."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is to be made: a session `child_id` of the first `end` events; all of them, where that is None."""

    source_id: str
    child_id: str
    end: int | None
    state: State | None = None  # of a fold of just these events


async def fork(
    registry: Registry, session_id: str, boundary: int | None, new_id: str | None
) -> tuple[str, Fold | None]:
    """Make the child and return its id, and its fold where that is known.

    Args:
        registry: Knows the source.
        session_id: The source, live or stored.
        boundary: Seq of the last event that the child gets; the source's last by default.
        new_id: Of the child; a fresh one by default.

    Raises:
        SessionExistsError: The child's id is taken.
        SessionNotFoundError: There is no such source.
        InvalidParamsError: The boundary lies outside the log.
        OpenTurnError: It lies inside a turn.
        LogCorruptError, FormatUnsupportedError: What is in front of it is known to be no good.
    """
    child_id = new_session_id() if new_id is None else new_id
    if child_id in registry.live:
        raise _exists(child_id)
    end = None if boundary is None else boundary + 1
    wish = _Wish(session_id, child_id, end)
    session = registry.get(session_id)
    handle: SessionHandle | None = None
    if session is not None:
        length = session.admitted_seq
        if end is not None and end > length:
            raise _outside(session_id, end - 1, length)
        whole = end in {None, length} and session.fold.next_seq == length
        state = take_state(session.fold) if whole else None
        wish = _Wish(session_id, child_id, length if end is None else end, state)
        await session.drain.wait_durable(wish.end or 0, losable=False)
        handle = session.handle
    async with registry.exclusive(child_id):
        if child_id in registry.live:
            raise _exists(child_id)
        return child_id, await registry.in_reader(partial(_make, registry, wish, handle))


def _make(registry: Registry, wish: _Wish, live: SessionHandle | None) -> Fold | None:
    """Make the child and return its fold, where that is known. Blocking."""
    if live is not None and live.materialised:
        with suppress(HandleClosedError):
            return _copy(registry, wish, live)
    source = registry.store.open(wish.source_id, "read")
    try:
        problem = registry.store.stat(wish.source_id).problem
        if problem is not None:
            raise unfaithful(wish.source_id, problem, "salvage it")
        return _copy(registry, wish, source)
    finally:
        source.close()


def _copy(registry: Registry, wish: _Wish, source: SessionHandle) -> Fold | None:
    fold, end = _known_fold(wish, source)
    last = _last(source, end)
    _require_closed(source, wish.source_id, end)
    problem = None if last is None else format_problem(wish.source_id, last)
    if problem is not None:
        raise problem
    closing: list[Event] = []
    if last is None or last["type"] != "session/end-seed":
        mark: Event = {"type": "session/end-seed", "seq": end, "time": now_ms(), "data": {}}
        closing.append(mark)
    header = _child_header(source.header, wish.child_id, end)
    child = registry.store.fork(source, end, header, closing)
    try:
        _keep(child, fold, closing)
    finally:
        child.close()
    return fold


def _known_fold(wish: _Wish, source: SessionHandle) -> tuple[Fold | None, int]:
    """Return the fold of what is copied, where it costs little or nobody has ever made it, and how long that is.

    Raises:
        InvalidParamsError: The boundary lies outside the log.
        LogCorruptError, FormatUnsupportedError: What is in front of it is no good.
    """
    known = None if wish.state is None else decode_state(encode_state(wish.state))
    if known is not None:
        return known, known.next_seq
    kept, end = kept_fold(source), wish.end
    if end is None or end >= kept.next_seq:
        return _folded(source, kept, wish)
    if source.size_bytes * end // kept.next_seq <= _FOLD_BYTES:
        return _folded(source, Fold(), wish)
    return None, end


def _folded(source: SessionHandle, fold: Fold, wish: _Wish) -> tuple[Fold, int]:
    """Fold on up to the boundary."""
    start = fold.next_seq
    length = None if wish.end is None else wish.end - start
    try:
        for event in source.read(start, length):
            problem = format_problem(wish.source_id, event)
            if problem is not None:
                raise problem
            fold.apply(event)
    except SurfaceDefectError as defect:
        raise surface_problem(wish.source_id, fold.next_seq, defect.rule) from defect
    if wish.end is not None and fold.next_seq < wish.end:
        raise _outside(wish.source_id, wish.end - 1, fold.next_seq)
    return fold, fold.next_seq


def _last(source: SessionHandle, end: int) -> Event | None:
    return next(iter(source.read(end - 1, 1)), None) if end else None


def _require_closed(source: SessionHandle, session_id: str, end: int) -> None:
    """Raise where the last start or end of a turn below seq `end` is a start."""
    for event in _backwards(source, end):
        if event["type"] == "turn/end":
            return
        if event["type"] == "turn/start":
            turn = members(event["data"]).get("turn")
            raise OpenTurnError(
                f"session '{session_id}': seq {end - 1} lies inside turn {turn};"
                " fork at the end of a turn, or recover the session first",
                session=session_id,
                openTurn=turn,
            )


def _backwards(source: SessionHandle, end: int) -> Iterator[Event]:
    """Yield events from the last one below seq `end` back to the first, some at a time."""
    size = _WINDOW
    while end > 0:
        start = max(0, end - size)
        yield from reversed(list(source.read(start, end - start)))
        end, size = start, min(2 * size, _LARGEST_WINDOW)


def _keep(child: SessionHandle, fold: Fold | None, closing: list[Event]) -> None:
    """Keep beside the child what is known of it, so that its first reader need not go through its history either."""
    snapshot = Snapshot(child.next_seq, b"", b"")
    if fold is not None:
        for event in closing:
            fold.apply(event)
        state, summary = encode_state(take_state(fold)), jsontext.encode(summary_of(fold))
        snapshot = Snapshot(fold.next_seq, state, summary)
    with suppress(DshdError):  # the child is whole without it
        child.keep(snapshot)


def _child_header(source: Header, child_id: str, seed_length: int) -> Header:
    return Header(
        id=child_id,
        created_at=now_ms(),
        cwd=source.cwd,
        parent_session=source.id,
        seed_length=seed_length,
    )


def _outside(session_id: str, boundary: int, length: int) -> InvalidParamsError:
    return InvalidParamsError(
        f"session '{session_id}' has {length} events, so seq {boundary} is no boundary in it",
        path="params.boundary",
        nextSeq=length,
    )


def _exists(session_id: str) -> SessionExistsError:
    return SessionExistsError(
        f"session '{session_id}' exists already; choose another id", session=session_id
    )
