"""The objects that results and error facts share. Keys are camelCase on the wire.

A key of a result is always there: null says that there is none, or that it is not known yet.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from dsh_protocol.events import Event, EventIn, Header
from dsh_protocol.jsontypes import MAX_SAFE_INTEGER

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INTEGER)]
"""A number of things, a seq, or a length in bytes."""

Milliseconds = Annotated[int, msgspec.Meta(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER)]
"""A time since the Unix epoch; may be negative, as in a log it may."""

Events = Annotated[
    list[Any],
    msgspec.Meta(extra_json_schema={"items": {"$ref": "#/components/schemas/EventIn"}}),
]
"""Events to append. They are checked one by one when admitted, so that the error can name the one."""

State = Literal["idle", "active", "interrupted", "damaged", "unsupported", "unknown"]

__all__ = [
    "Count",
    "Empty",
    "EventIn",
    "Events",
    "Milliseconds",
    "Params",
    "Position",
    "Problem",
    "Recovery",
    "Repair",
    "Result",
    "Server",
    "Session",
    "State",
    "Writer",
]


class Params(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Parameters of a method. An optional one may be left out or null, which is the same."""


class Result(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Result of a method, or an object in one."""


class Empty(Result, frozen=True):
    """Nothing but that it was done."""


class Server(Result, frozen=True):
    """A running daemon. `instanceId` changes with every start."""

    name: str
    version: str
    pid: int
    instance_id: str


class Writer(Result, frozen=True):
    """Who holds a session's write handle; also the fact `holder` of `SESSION_BUSY`.

    Attributes:
        pid: From the credentials of the connection; 0 where the kernel gave none.
        client: The name that it gave in `initialize`.
        since: When the handle was opened, epoch milliseconds.
        connected: False while the handle is only reserved for a process that has lost its connection.
    """

    pid: int
    client: str
    since: int
    connected: bool


class Problem(Result, frozen=True):
    """Why something cannot be read in full or written. `kind` is one of the errors'."""

    kind: str
    message: str
    path: str | None = None
    offset: int | None = None


class Labels(Result, frozen=True):
    """What a person has put on a session, beside its log.

    Attributes:
        title: Goes before the log's own title; null where the person gave none.
        archived: `dshctl list` does not show it unless asked.
        pinned: Nothing that clears up takes it.
    """

    title: str | None
    archived: bool
    pinned: bool


class Session(Result, frozen=True):
    """One session as `create`, `open`, `stat`, `list` and `fork` show it.

    Attributes:
        header: Null where the log is too damaged to tell.
        state: `idle` (no open turn), `active` (open turn, and a live or reserved writer), `interrupted`
            (open turn, no writer), `damaged`, `unsupported` (written by a newer program), `unknown` (not read yet).
        next_seq: The log's length, with what is admitted and not durable yet.
        durable_seq: How many events a power cut cannot take away.
        revision: Changes whenever the file does.
        updated_at: Of a live session the last admission, else the log's mtime; epoch milliseconds.
        title: The label's, else the last one in the log; of one with more than 16,384 characters the first, and `…`.
        pending_calls: Call ids that have no result.
        labels: Left out where a person has put none on it.
        deleted_at: When it was put into the trash, epoch milliseconds; only of what lies there.
    """

    id: str
    header: Header | None
    state: State
    next_seq: int | None
    durable_seq: int | None
    size_bytes: int
    revision: str
    created_at: int | None
    updated_at: int
    title: str | None
    turns: int | None
    open_turn: int | None
    open_step: int | None
    pending_calls: list[str] | None
    writer: Writer | None
    problem: Problem | None
    labels: Labels | msgspec.UnsetType = msgspec.UNSET
    deleted_at: int | msgspec.UnsetType = msgspec.UNSET


class Repair(Result, frozen=True):
    """The verdict on one call that a crash left unanswered.

    Attributes:
        arguments: The JSON text as the model wrote it.
        code: `TOOL_NOT_STARTED`: no durable `tool/call`; it may be retried if still needed.
            `TOOL_OUTCOME_UNKNOWN`: it was started; retry only what is read-only or idempotent, otherwise
            verify outside state or ask the user.
        call_seq: Of the `tool/call`; null where there is none.
        idempotency_key: As `checkpoint.tool` gave it; null where the call was not started.
        message: The closer's text, which the model reads.
    """

    call_id: str
    name: str
    arguments: str
    turn: int
    step: int
    code: Literal["TOOL_NOT_STARTED", "TOOL_OUTCOME_UNKNOWN"]
    call_seq: int | None
    idempotency_key: str | None
    message: str


class Recovery(Result, frozen=True):
    """What closes an interrupted turn.

    Attributes:
        committed: False in a preview: nothing is written yet.
        repairs: One for each unanswered call, in transcript order.
        closers: The events that close the turn, in order.
        next_seq: The seq of the caller's next event, also in a preview.
        notification_error: The error object of a failed notification that was not told yet.
    """

    committed: bool
    repairs: list[Repair]
    closers: list[Event]
    next_seq: int
    notification_error: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class Position(Result, frozen=True):
    """How long the log is, and how much of it is durable."""

    next_seq: int
    durable_seq: int
