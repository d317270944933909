"""The methods by which a person keeps sessions in order: labels, the trash, the search."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import msgspec

from dsh_protocol.errors import InvalidParamsError
from dshd.sessions import labels, trash
from dshd.sessions.search import Asked, Place

if TYPE_CHECKING:
    from dsh_protocol.methods import session as methods
    from dshd.rpc.context import Context

_DEFAULT_HITS = 20
_MAX_HITS = 100


async def delete_session(context: Context, params: methods.DeleteParams) -> dict[str, Any]:
    """Put a session into the trash."""
    services = context.services
    await trash.delete(services.registry, services.catalogue, params.id)
    return {}


async def undelete_session(context: Context, params: methods.UndeleteParams) -> dict[str, Any]:
    """Bring a deleted session back."""
    services = context.services
    await trash.undelete(services.registry, params.id)
    return {"session": await services.catalogue.stat(params.id)}


async def purge_session(context: Context, params: methods.PurgeParams) -> dict[str, Any]:
    """Remove a deleted session for good."""
    await trash.purge(context.services.registry, params.id, params.deleted_at)
    return {}


async def set_label(context: Context, params: methods.SetLabelParams) -> dict[str, Any]:
    """Change a session's labels."""
    services = context.services
    change = labels.Change(params.title, params.archived, params.pinned)
    await labels.set_labels(services.registry, params.id, change)
    return {"session": await services.catalogue.stat(params.id)}


async def search(context: Context, params: methods.SearchParams) -> dict[str, Any]:
    """Find what was said."""
    for name, value in (("limit", params.limit), ("perSession", params.per_session)):
        if value == 0:
            raise InvalidParamsError(
                f"session.search cannot take a params.{name} of 0; ask for one at least",
                path=f"params.{name}",
            )
    asked = Asked(
        text=params.text,
        limit=min(_DEFAULT_HITS if params.limit is None else params.limit, _MAX_HITS),
        per_session=params.per_session,
        after=None if params.cursor is None else _decode(params.cursor),
    )
    hits, place = await context.services.search.find(asked)
    return {"hits": hits, "nextCursor": None if place is None else _encode(place)}


def _encode(place: Place) -> str:
    row = [place.updated_at, place.session_id, place.seq, place.told]
    return base64.urlsafe_b64encode(msgspec.json.encode(row)).decode()


def _decode(text: str) -> Place:
    try:
        row = msgspec.json.decode(base64.urlsafe_b64decode(text), type=tuple[int, str, int, int])
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
        raise InvalidParamsError(
            "params.cursor is not one that session.search gave; begin again without one",
            path="params.cursor",
        ) from error
    return Place(*row)
