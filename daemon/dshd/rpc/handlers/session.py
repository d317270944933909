"""The methods of one session, and the list of all."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import msgspec

from dsh_protocol import envelope
from dsh_protocol.errors import InvalidParamsError
from dsh_protocol.events import Header
from dsh_protocol.version import FORMAT_VERSION
from dshd.sessions import ending, history, reading, recovering
from dshd.sessions.asked import Asked
from dshd.sessions.claims import Continue
from dshd.sessions.forks import fork
from dshd.sessions.session import now_ms
from dshd.sessions.views import live_view

if TYPE_CHECKING:
    from dsh_protocol.methods import session as methods
    from dshd.rpc.context import Context

_DEFAULT_LIST = 100
_MAX_LIST = 1000
_ENVELOPE_BYTES = 1000
"""Of a line, for what is around the sessions of a list: the id of the call, the cursor, the total."""


async def create(context: Context, params: methods.CreateParams) -> dict[str, Any]:
    """Make a session and take its write handle."""

    def header_of(session_id: str) -> Header:
        return Header(
            version=FORMAT_VERSION,
            id=session_id,
            created_at=now_ms(),
            cwd=params.cwd,
            parent_session=params.parent_session,
            seed_length=params.seed_length,
            origin=params.origin,
            delegation_depth=params.delegation_depth or 0,
            agent_preset=params.agent_preset,
        )

    taker = context.connection.taker()
    session = await context.services.registry.create(header_of, params.id, taker)
    assert session.claim is not None  # noqa: S101  # it was just taken
    return {"session": live_view(session), "writer": session.claim.writer}


async def open_session(context: Context, params: methods.OpenParams) -> dict[str, Any]:
    """Open for reading, which takes nothing, or take the write handle."""
    services = context.services
    if params.access == "read":
        recovery = await history.recovery_preview(services.registry, params.id)
        view = await services.catalogue.stat(params.id)
        return {"session": view, "writer": None, "recovery": recovery}
    resume = params.resume
    continued = None if resume is None else Continue(resume.next_seq, resume.writer)
    session = await services.registry.open_write(
        params.id,
        context.connection.taker(),
        continued,
        takeover=bool(params.takeover),
    )
    assert session.claim is not None  # noqa: S101  # it was just taken
    recovery = recovering.recovery(session)
    if continued is not None and not (session.recovery_due or session.recovery_untold):
        recovery = None
    for repair in (recovery or {}).get("repairs", ()):
        services.metrics.inc("dshd_repairs", code=repair["code"])
    return {
        "session": live_view(session),
        "writer": session.claim.writer,
        "recovery": recovery,
    }


async def append(context: Context, params: methods.AppendParams) -> dict[str, Any]:
    """Admit events; they are durable within the batch window."""
    session = context.services.registry.writable(params.id)
    asked = Asked(params.events, params.expected_seq, context.call.size)
    admission = await session.admit(params.writer, asked)
    context.call.note_admission(admission)
    return {
        "firstSeq": admission.first_seq,
        "nextSeq": admission.next_seq,
        "durableSeq": session.durable_seq,
        "duplicate": admission.duplicate,
    }


async def flush(context: Context, params: methods.FlushParams) -> dict[str, Any]:
    """Make everything admitted durable."""
    session = context.services.registry.writable(params.id)
    call = context.call
    next_seq, durable_seq = await session.flush(params.writer, call.note_admitted, call.hold_cancel)
    return {"nextSeq": next_seq, "durableSeq": durable_seq}


async def recover(context: Context, params: methods.RecoverParams) -> dict[str, Any]:
    """Close the interrupted turn."""
    session = context.services.registry.writable(params.id)
    if session.recovery_due:
        context.services.metrics.inc("dshd_recoveries")
    return await recovering.recover(session, params.writer, context.caller(), now_ms())


async def close(context: Context, params: methods.CloseParams) -> dict[str, Any]:
    """Flush, then give up the write handle."""
    context.call.hold_cancel()
    taker = context.connection.taker()
    return await ending.close(context.services.registry, params.id, params.writer, taker)


async def read(context: Context, params: methods.ReadParams) -> dict[str, Any]:
    """Read events as stored."""
    limits = context.services.settings.limits
    wanted = params.max_bytes
    budget = min(limits.max_line_bytes - reading.ENVELOPE_BYTES, reading.LARGEST_PAGE_BYTES)
    page = reading.Page(
        offset=params.offset or 0,
        length=params.length,
        max_bytes=min(reading.PAGE_BYTES if wanted is None else wanted, budget),
    )
    return await reading.read(
        context.services.registry, params.id, page, context.call.note_admitted
    )


async def messages(context: Context, params: methods.MessagesParams) -> dict[str, Any]:
    """Read the history that a model is sent."""
    asked = history.MessagePage(
        offset=params.offset or 0, limit=params.limit, partial=bool(params.partial)
    )
    return await history.messages(
        context.services.registry, params.id, asked, context.call.note_admitted
    )


async def stat(context: Context, params: methods.StatParams) -> dict[str, Any]:
    """Show one session."""
    return {"session": await context.services.catalogue.stat(params.id)}


async def list_sessions(context: Context, params: methods.ListParams) -> dict[str, Any]:
    """List sessions, newest activity first.

    The cursor holds the first page's time and the last place. After the last of the older sessions come those that
    changed since the first page: one may come twice, none is missed.
    """
    limit = min(_DEFAULT_LIST if params.limit is None else params.limit, _MAX_LIST)
    if limit == 0:
        raise InvalidParamsError(
            "session.list cannot take a params.limit of 0; ask for one at least",
            path="params.limit",
        )
    catalogue = context.services.catalogue
    listed = await (catalogue.list_deleted() if params.deleted else catalogue.list_all())
    views = [view for view in listed if _wanted(view, params)]
    following: _Cursor | None = None
    if params.deleted:
        found = views
    else:
        cursor = _Cursor(now_ms()) if params.cursor is None else _decode_cursor(params.cursor)
        found, following = _page(views, cursor, limit)
        most = context.services.settings.limits.max_line_bytes - _ENVELOPE_BYTES
        if (count := _count_fitting(found, most)) < len(found):
            found, following = _page(views, cursor, count)
    result = {
        "sessions": found,
        "nextCursor": None if following is None else _encode_cursor(following),
    }
    return {**result, "total": len(views)} if params.count else result


async def fork_session(context: Context, params: methods.ForkParams) -> dict[str, Any]:
    """Make a session that begins with another's events."""
    services = context.services
    child, fold = await fork(services.registry, params.id, params.boundary, params.new_id)
    return {"session": await services.catalogue.show_new(child, fold)}


class _Cursor(msgspec.Struct, array_like=True, frozen=True):
    """Where a page ended: before which (updatedAt, id), among the older sessions or the changed ones."""

    began: int
    updated_at: int | None = None
    session_id: str = ""
    changed: bool = False


def _count_fitting(views: list[dict[str, Any]], most_bytes: int) -> int:
    """How many of the first ones fit a line, one at least: a few large sessions must not cost the list."""
    if len(envelope.encode_result(0, views)) <= most_bytes:
        return len(views)
    size = count = 0
    for view in views:
        size += len(envelope.encode_result(0, view))
        if size > most_bytes:
            break
        count += 1
    return max(1, count)


def _page(
    views: list[dict[str, Any]], cursor: _Cursor, limit: int
) -> tuple[list[dict[str, Any]], _Cursor | None]:
    older = [] if cursor.changed else _after(views, cursor)
    found = older[:limit]
    if len(older) > limit:
        last = found[-1]
        return found, _Cursor(cursor.began, last["updatedAt"], last["id"])
    if cursor.updated_at is None:
        return found, None  # one page, nothing can have slipped by
    start = cursor if cursor.changed else _Cursor(cursor.began, changed=True)
    changed = [view for view in _after(views, start) if view["updatedAt"] >= cursor.began]
    room = limit - len(found)
    found = [*found, *changed[:room]]
    if len(changed) <= room:
        return found, None
    if room == 0:
        return found, start
    last = found[-1]
    return found, _Cursor(cursor.began, last["updatedAt"], last["id"], changed=True)


def _after(views: list[dict[str, Any]], cursor: _Cursor) -> list[dict[str, Any]]:
    if cursor.updated_at is None:
        return views
    place = (-cursor.updated_at, cursor.session_id)
    return [view for view in views if (-view["updatedAt"], view["id"]) > place]


def _wanted(view: dict[str, Any], params: methods.ListParams) -> bool:
    header: dict[str, Any] = view["header"] or {}
    if params.cwd is not None and header.get("cwd") != params.cwd:
        return False
    if params.since is not None and view["updatedAt"] < params.since:
        return False
    labels: dict[str, Any] = view.get("labels") or {}
    if params.archived not in {None, bool(labels.get("archived"))}:
        return False
    states = params.states
    return states is None or view["state"] in states or view["state"] == "unknown"


def _encode_cursor(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode()


def _decode_cursor(text: str) -> _Cursor:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=_Cursor)
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
        raise InvalidParamsError(
            "params.cursor is not one that session.list gave; begin again without one",
            path="params.cursor",
        ) from error
