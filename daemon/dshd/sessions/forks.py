"""Forks: a new session that begins with another's events up to a closed turn.

The child is on disk, whole, before anybody is told of it; the source is only read.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import InvalidParamsError, OpenTurnError, SessionExistsError
from dsh_protocol.events import Header
from dsh_protocol.ids import new_session_id
from dshd.sessions.fold import Fold
from dshd.sessions.folding import surface_problem
from dshd.sessions.reading import format_problem
from dshd.sessions.session import now_ms
from dshd.sessions.surface import SurfaceDefectError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsh_protocol.events import Event
    from dshd.sessions.registry import Registry


async def fork(
    registry: Registry, session_id: str, boundary: int | None, new_id: str | None
) -> str:
    """Make the child and return its id.

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
    """
    child_id = new_session_id() if new_id is None else new_id
    if child_id in registry.live:
        raise _exists(child_id)
    session = registry.get(session_id)
    if session is not None:
        if boundary is not None and boundary >= session.admitted_seq:
            raise _outside(session_id, boundary, session.admitted_seq)
        end = session.admitted_seq if boundary is None else boundary + 1
        await session.drain.wait_durable(end, losable=False)
        events = await session.read(0, end)
        source = session.header
    else:
        source, events = await registry.in_reader(_stored, registry, session_id, boundary)
    seed = _seed(source, events)
    async with registry.exclusive(child_id):
        if child_id in registry.live:
            raise _exists(child_id)
        await registry.in_reader(
            _write, registry, _child_header(source, child_id, len(events)), seed
        )
    return child_id


def _stored(
    registry: Registry, session_id: str, boundary: int | None
) -> tuple[Header, list[Event]]:
    handle = registry.store.open(session_id, "read")
    try:
        wanted = None if boundary is None else boundary + 1
        events = list(islice(handle.read(), wanted))
        if boundary is not None and len(events) <= boundary:
            raise _outside(session_id, boundary, len(events))
        return handle.header, events
    finally:
        handle.close()


def _seed(source: Header, events: Iterable[Event]) -> list[Event]:
    """The child's events: the source's, and the mark where they end."""
    fold, seed = Fold(), list(events)
    try:
        for event in seed:
            problem = format_problem(source.id, event)
            if problem is not None:
                raise problem
            fold.apply(event)
    except SurfaceDefectError as defect:
        raise surface_problem(source.id, fold.next_seq, defect.rule) from defect
    if fold.open_turn is not None:
        raise OpenTurnError(
            f"session '{source.id}': seq {fold.next_seq - 1} lies inside turn {fold.open_turn};"
            " fork at the end of a turn, or recover the session first",
            session=source.id,
            openTurn=fold.open_turn,
        )
    if not fold.ends_with_end_seed:
        end: dict[str, Any] = {
            "type": "session/end-seed",
            "seq": fold.next_seq,
            "time": now_ms(),
            "data": {},
        }
        seed.append(end)
    return seed


def _child_header(source: Header, child_id: str, seed_length: int) -> Header:
    return Header(
        id=child_id,
        created_at=now_ms(),
        cwd=source.cwd,
        parent_session=source.id,
        seed_length=seed_length,
    )


def _write(registry: Registry, header: Header, seed: list[Event]) -> None:
    handle = registry.store.create(header)
    try:
        handle.append(seed)
    finally:
        handle.close()


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
