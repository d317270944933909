"""How a write handle is taken: open or create, recover what was left, find out where the log stands.

It owns nothing; the handle keeps what is found here. The one rule: an interrupted turn is closed before anything can be
recorded, and what was closed is told. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict

from dsh_client.errors import DaemonUnavailableError
from dsh_client.exchange import as_object
from dsh_protocol.errors import (
    DshdError,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
)

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Header(TypedDict, total=False):
    """What `session.create` takes besides the id; keys as on the wire."""

    cwd: str
    parentSession: str
    seedLength: int
    origin: Any
    delegationDepth: int
    agentPreset: str


@dataclass(frozen=True, slots=True)
class Opening:
    """How a session is opened.

    Attributes:
        id: The session's id; None makes a new session.
        create: Whether a session that does not exist is made.
        takeover: Whether a handle reserved for a living agent is taken from it.
        header: Further parameters of `session.create` (`cwd`, `origin`, …).
    """

    id: str | None
    create: bool
    takeover: bool
    header: Header

    def create_params(self, session_id: str) -> dict[str, Any]:
        """Return the parameters of `session.create`, for the first time or again."""
        return {"id": session_id, **{k: v for k, v in self.header.items() if v is not None}}


@dataclass(frozen=True, slots=True)
class Taken:
    """A write handle just taken.

    Attributes:
        session: The session as the daemon describes it.
        writer: The right to append.
        next_seq: The seq of the handle's first event.
        durable_seq: How many events are durable.
        recovery: What was closed of an interrupted turn, committed; None where there is nothing.
    """

    session: dict[str, Any]
    writer: str
    next_seq: int
    durable_seq: int
    recovery: dict[str, Any] | None


async def take(ask: Ask, session_id: str, opening: Opening, *, again: bool) -> Taken:
    """Take the write handle over one connection, and close the turn that its last holder left open.

    Args:
        ask: Makes a call on that connection.
        session_id: The session.
        opening: How it is opened.
        again: Whether an earlier connection was lost over this: what that one left may be in the way for a moment.

    Raises:
        DaemonUnavailableError: It is in the way; try again.
        SessionBusyError: Somebody else has the handle.
    """
    try:
        opened = await _open_or_create(ask, session_id, opening)
    except (SessionBusyError, SessionExistsError) as error:
        if again and _is_ours(error):
            raise DaemonUnavailableError(str(error)) from error
        raise
    session, writer = opened["session"], opened["writer"]
    next_seq, durable = session["nextSeq"], session.get("durableSeq", 0)
    recovery = as_object(opened.get("recovery"))
    if recovery is not None and not recovery.get("committed"):
        recovery = await _recover(ask, {"id": session_id, "writer": writer})
        next_seq = durable = recovery["nextSeq"]
    return Taken(session, writer, next_seq, durable, recovery)


async def _recover(ask: Ask, handle: dict[str, Any]) -> dict[str, Any]:
    try:
        return await ask("session.recover", handle)
    except DshdError as error:
        failure = error
    with suppress(DshdError):
        await ask("session.close", handle)  # the connection may be shared and live on
    raise failure


async def _open_or_create(ask: Ask, session_id: str, opening: Opening) -> dict[str, Any]:
    params: dict[str, Any] = {"id": session_id, "access": "write"}
    if opening.takeover:
        params["takeover"] = True
    if opening.id is not None:
        try:
            return await ask("session.open", params)
        except SessionNotFoundError:
            if not opening.create:
                raise
    try:
        return await ask("session.create", opening.create_params(session_id))
    except SessionExistsError:
        if opening.id is None:
            raise
        return await ask("session.open", params)  # somebody else made it meanwhile


def _is_ours(error: DshdError) -> bool:
    """Whether what is in the way is this process's own connection, whose end the daemon has not seen yet."""
    holder = as_object(error.facts.get("holder"))
    return isinstance(error, SessionExistsError) or (
        holder is not None and holder.get("pid") == os.getpid()
    )
