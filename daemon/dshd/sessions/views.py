"""How the wire shows a session: the one place where a `Session` object is put together.

The rule: a view is made of what is known already; nothing is read for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_protocol.events import header_to_wire
from dshd.sessions.claims import holder_alive, record_holder

if TYPE_CHECKING:
    from dsh_protocol.errors import DshdError
    from dshd.sessions.catalogue import Folded
    from dshd.sessions.session import Session
    from dshd.storage.store import HolderRecord, Labels, Problem, StoredSession

_UNSUPPORTED = "FORMAT_UNSUPPORTED"
_SHOWN_TITLE_CHARS = 16 * 1024


def problem_of(error: DshdError) -> dict[str, Any]:
    """The wire's `problem` for an error of reading."""
    return {
        "kind": error.kind,
        "message": error.message,
        "path": error.facts.get("path"),
        "offset": error.facts.get("offset"),
    }


def as_wire(problem: Problem) -> dict[str, Any]:
    """The wire's `problem` for what the store found wrong with a log as a whole."""
    return {
        "kind": problem.kind,
        "message": problem.message,
        "path": problem.path,
        "offset": problem.offset,
    }


def live_view(session: Session) -> dict[str, Any]:
    """The wire's `Session` for a live one."""
    fold, header = session.fold, session.header
    state, writer = _live_state(session)
    failure = session.drain.failure
    view: dict[str, Any] = {
        "id": session.id,
        "header": header_to_wire(header),
        "state": state,
        "nextSeq": session.next_seq,
        "durableSeq": session.durable_seq,
        "sizeBytes": session.handle.size_bytes,
        "revision": f"live:{session.durable_seq}:{session.next_seq}",
        "createdAt": header.created_at,
        "updatedAt": session.updated_at,
        "title": _shown(fold.title),
        "turns": fold.turns,
        "openTurn": fold.open_turn,
        "openStep": fold.open_step,
        "pendingCalls": list(fold.pending),
        "writer": writer,
        "problem": None if failure is None else problem_of(failure),
    }
    return labelled(view, session.labels)


def _live_state(session: Session) -> tuple[str, dict[str, Any] | None]:
    claim, record = session.claim, session.reservation
    writer = None
    if claim is not None:
        writer = claim.holder()
    elif record is not None and session.fold.open_turn is not None and holder_alive(record):
        writer = record_holder(record)
    if session.fold.open_turn is None:
        return "idle", writer
    return ("interrupted" if writer is None else "active"), writer


def stored_view(
    stored: StoredSession, folded: Folded | None, record: HolderRecord | None
) -> dict[str, Any]:
    """The wire's `Session` for one that is not live. Without a fold its state is `unknown`."""
    header = stored.header
    problem = None if stored.problem is None else as_wire(stored.problem)
    if folded is not None and problem is None:
        problem = folded.problem
    view: dict[str, Any] = {
        "id": stored.session_id,
        "header": None if header is None else header_to_wire(header),
        "state": _stored_state(folded, problem, record),
        "nextSeq": None,
        "durableSeq": None,
        "sizeBytes": stored.size_bytes,
        "revision": stored.revision,
        "createdAt": None if header is None else header.created_at,
        "updatedAt": stored.updated_at,
        "title": None,
        "turns": None,
        "openTurn": None,
        "openStep": None,
        "pendingCalls": None,
        "writer": None if record is None else record_holder(record),
        "problem": problem,
    }
    if folded is not None:
        view["nextSeq"] = view["durableSeq"] = folded.next_seq
        view["title"], view["turns"] = _shown(folded.title), folded.turns
        view["openTurn"], view["openStep"] = folded.open_turn, folded.open_step
        view["pendingCalls"] = list(folded.pending_calls)
    if stored.deleted_at is not None:
        view["deletedAt"] = stored.deleted_at
    return labelled(view, stored.labels)


def _shown(title: str | None) -> str | None:
    """Return a title as a view has it: one that is far too long to be one is cut, and whole in the log alone."""
    if title is None or len(title) <= _SHOWN_TITLE_CHARS:
        return title
    return title[:_SHOWN_TITLE_CHARS] + "…"


def labelled(view: dict[str, Any], labels: Labels | None) -> dict[str, Any]:
    """Put a person's labels on a view; their title goes before the log's own."""
    if labels is not None:
        view["title"] = view["title"] if labels.title is None else labels.title
        view["labels"] = {
            "title": labels.title,
            "archived": labels.archived,
            "pinned": labels.pinned,
        }
    return view


def _stored_state(
    folded: Folded | None, problem: dict[str, Any] | None, record: HolderRecord | None
) -> str:
    if problem is not None and problem["kind"] == "OVERLOADED":
        return "unknown"
    if problem is not None:
        return "unsupported" if problem["kind"] == _UNSUPPORTED else "damaged"
    if folded is None:
        return "unknown"
    if folded.open_turn is None:
        return "idle"
    return "interrupted" if record is None else "active"
