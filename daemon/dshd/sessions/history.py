"""The history that is derived from a session, live or stored, and the preview of its recovery.

What cannot be read faithfully is named; a history is not gutted in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from dsh_protocol import jsontext
from dsh_protocol.defects import defect_text
from dsh_protocol.errors import (
    DshdError,
    FormatUnsupportedError,
    LogCorruptError,
    SessionNotFoundError,
)
from dsh_protocol.jsontext import encode_fast
from dsh_protocol.limits import DEFAULT_LIMITS
from dshd.sessions import closers
from dshd.sessions.claims import holder_alive
from dshd.sessions.fold import Fold
from dshd.sessions.folding import surface_problem
from dshd.sessions.messages import Transcript
from dshd.sessions.reading import ENVELOPE_BYTES, LARGEST_PAGE_BYTES, in_reader, snapshot
from dshd.sessions.recovering import preview, recovery
from dshd.sessions.surface import SurfaceDefectError
from dshd.sessions.unanswered import Unanswered, reports
from dshd.sessions.views import problem_of
from dshd.storage.jsonl.vocabulary import stored_defect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dsh_protocol.events import Event, Header
    from dshd.sessions.registry import Registry
    from dshd.sessions.session import Session
    from dshd.sessions.unanswered import Answer
    from dshd.storage.store import Problem


MOST_BYTES = DEFAULT_LIMITS.max_line_bytes - ENVELOPE_BYTES
"""Of a page, with all that stands beside its messages."""
_BESIDE = ("requestHeader", "requestContext", "recovery", "unanswered")


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Which messages are wanted, from index `offset`; `partial` takes what there is of an unreadable history."""

    offset: int
    limit: int | None
    partial: bool


async def messages(
    registry: Registry, session_id: str, page: MessagePage, admitted: Callable[[], None]
) -> dict[str, Any]:
    """Return a page of the derived, provider-ready history; an interrupted turn is closed in memory only.

    Raises:
        FormatUnsupportedError, LogCorruptError: It cannot be read faithfully and `partial` was not asked for.
    """
    found = snapshot(registry, session_id)
    interrupted = found is not None and is_interrupted(found.session)
    admitted()
    live = None
    if found is not None:
        header = found.session.header
        live = partial(_history, found.events(), header, page, interrupted=interrupted)
    return await in_reader(registry, live, partial(_stored_history, registry, session_id, page))


def is_interrupted(session: Session) -> bool:
    """Whether a live session's open turn belongs to nobody who could go on with it."""
    if session.fold.open_turn is None:
        return False
    if session.recovery_due:
        return True
    record = session.reservation
    return session.claim is None and (record is None or not holder_alive(record))


def _stored_history(registry: Registry, session_id: str, page: MessagePage) -> dict[str, Any]:
    try:
        handle = registry.store.open(session_id, "read")
    except (LogCorruptError, FormatUnsupportedError) as error:
        if not page.partial:
            raise
        return _history(registry.store.rescue(session_id), None, page, known=error)
    try:
        stored = registry.store.stat(session_id)
        known = None
        if stored.problem is not None:
            known = unfaithful(session_id, stored.problem, "ask for a partial history")
            if not page.partial:
                raise known
        record = registry.store.read_holder(session_id)
        alive = record is not None and holder_alive(record)
        header = handle.header
        return _history(handle.read(), header, page, interrupted=not alive, known=known)
    finally:
        handle.close()


def unfaithful(session_id: str, problem: Problem, remedy: str) -> DshdError:
    """The refusal of a history for what is wrong with the log as a whole: its place, its header, a second log."""
    kind = FormatUnsupportedError if problem.kind == "FORMAT_UNSUPPORTED" else LogCorruptError
    return kind(
        f"session '{session_id}': {problem.message}; {remedy}, or read its events",
        session=session_id,
        path=problem.path,
    )


def _history(
    events: Iterable[Event],
    header: Header | None,
    page: MessagePage,
    *,
    interrupted: bool = False,
    known: DshdError | None = None,
) -> dict[str, Any]:
    """A page of the history of some events; `known` is what is wrong with their log as a whole, its header perhaps."""
    fold, transcript, unanswered = Fold(), Transcript(), Unanswered()
    session_id = "" if header is None else header.id
    problem: DshdError | None = None
    try:
        for event in events:
            problem = format_problem(session_id, event)
            if problem is not None:
                break
            fold.apply(event)
            transcript.add(event)
            unanswered.add(event)
    except DshdError as error:
        problem = error
    except SurfaceDefectError as defect:
        problem = surface_problem(session_id, fold.next_seq, defect.rule)
    problem = known or problem
    if problem is not None and not page.partial:
        raise problem.with_facts()
    recovery = None
    if interrupted and fold.open_turn is not None and header is not None and problem is None:
        recovery = preview(fold, header)
        for event in closers.closers(fold):
            transcript.add(event)
            unanswered.add(event)
    answers = unanswered.answers(open_turn=fold.open_turn is not None and recovery is None)
    history = transcript.history(
        {seq: [answer.message for answer in due] for seq, due in answers.items()}
    )
    texts = [jsontext.encode(message) for message in islice(history.messages, page.offset, None)]
    shown = _fitting(texts, page.limit)
    following = page.offset + len(shown)
    result: dict[str, Any] = {
        "messages": shown,
        "nextOffset": following if following < len(history.messages) else None,
        "requestHeader": _raw(history.request_header),
        "requestContext": _raw(history.request_context),
        "recovery": recovery,
        "problem": None if problem is None else problem_of(problem),
    }
    told = _told(answers, history.messages[page.offset : following], header)
    if told:
        result["unanswered"] = told
    size = sum(map(len, texts[: len(shown)])) + len(shown)
    return within_line(result, MOST_BYTES - size)


def within_line(result: dict[str, Any], room: int) -> dict[str, Any]:
    """Leave out of a page, the largest first, what has no room beside its messages; `leftOut` names it."""
    sizes = {key: len(encode_fast(result[key])) for key in _BESIDE if result.get(key) is not None}
    left_out: list[str] = []
    while sizes and sum(sizes.values()) > room:
        largest = max(sizes, key=sizes.__getitem__)
        del sizes[largest]
        left_out.append(largest)
    if not left_out:
        return result
    page = {key: None if key in left_out else value for key, value in result.items()}
    if "unanswered" in left_out:
        del page["unanswered"]
    return {**page, "leftOut": left_out}


def _told(
    answers: dict[int, list[Answer]], given: list[dict[str, Any]], header: Header | None
) -> list[dict[str, Any]]:
    """What is told of the answers that stand among the messages of a page."""
    ids = set(map(id, given))
    due = [one for each in answers.values() for one in each if id(one.message) in ids]
    return reports(due, header)


def format_problem(session_id: str, event: Event) -> DshdError | None:
    """Why a history with this event cannot be told faithfully; None where it can."""
    defect = stored_defect(event)
    if defect is None:
        return None
    rule, of_format = defect
    kind = FormatUnsupportedError if of_format else LogCorruptError
    return kind(
        f"session '{session_id}': the event at seq {event['seq']} breaks '{rule}': {defect_text(rule)};"
        " ask for a partial history, or read its events",
        session=session_id,
        seq=event["seq"],
        rule=rule,
    )


def _fitting(texts: Sequence[bytes], limit: int | None) -> list[msgspec.Raw]:
    """As many messages as were asked for and fit a page, one at least."""
    shown: list[msgspec.Raw] = []
    size = 0
    for text in islice(texts, limit):
        size += len(text) + 1
        if shown and size > LARGEST_PAGE_BYTES:
            break
        shown.append(msgspec.Raw(text))
    return shown


def _raw(value: Any) -> msgspec.Raw | None:
    return None if value is None else msgspec.Raw(jsontext.encode(value))


# ---------------------------------------------------------------------- recovery


async def recovery_preview(registry: Registry, session_id: str) -> dict[str, Any] | None:
    """Return what recovery would do, or did, for a session that is opened for reading; None where nothing.

    Raises:
        SessionNotFoundError: There is no such session.
    """
    session = registry.get(session_id)
    if session is not None:
        if is_interrupted(session):
            return preview(session.fold, session.header)
        return recovery(session) if session.claim is None else None
    return await registry.in_reader(_stored_preview, registry, session_id)


def _stored_preview(registry: Registry, session_id: str) -> dict[str, Any] | None:
    try:
        handle = registry.store.open(session_id, "read")
    except SessionNotFoundError:
        raise
    except DshdError:
        return None  # it is shown with its problem
    fold = Fold()
    try:
        as_a_whole = registry.store.stat(session_id).problem
        if as_a_whole is not None:
            raise unfaithful(session_id, as_a_whole, "salvage it")
        for event in handle.read():
            problem = format_problem(session_id, event)
            if problem is not None:
                raise problem  # one end for all that is shown with its problem
            fold.apply(event)
        if fold.open_turn is not None:
            record = registry.store.read_holder(session_id)
            if record is not None and holder_alive(record):
                return None
            return preview(fold, handle.header)
        if fold.committed is None:
            return None
        return _committed(fold, handle.header, fold.next_seq)
    except (DshdError, SurfaceDefectError):
        return None  # likewise
    finally:
        handle.close()


def _committed(fold: Fold, header: Header, next_seq: int) -> dict[str, Any] | None:
    """The recovery of the last turn as it stands in the log, until the next `turn/start`."""
    if fold.committed is None:
        return None
    return {
        "committed": True,
        "repairs": closers.committed_repairs(fold, header),
        "closers": list(fold.committed.closers),
        "nextSeq": next_seq,
    }
