"""The methods of one session and of the list of them: what they take and what they answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dsh_protocol.events import Event  # noqa: TC001  # msgspec reads the annotations
from dsh_protocol.objects import (
    Count,
    Events,
    Params,
    Problem,
    Recovery,
    Repair,
    Result,
    Session,
    State,
)


class CreateParams(Params, frozen=True):
    """Make a session and take its write handle.

    Nothing is on disk until the first append is durable or a flush.

    Attributes:
        id: A fresh one is made where absent.
        cwd: Absolute path.
    """

    id: str | None = None
    cwd: str | None = None
    parent_session: str | None = None
    seed_length: Count | None = None
    origin: Literal["subagent"] | None = None
    delegation_depth: Count | None = None
    agent_preset: str | None = None


class CreateResult(Result, frozen=True):
    """The session, and the proof of the right to append to it."""

    session: Session
    writer: str


class Continue(Params, frozen=True):
    """What an agent that outlived its daemon or its connection knows of the handle that it held."""

    next_seq: Count
    writer: str


class OpenParams(Params, frozen=True):
    """Open a session: for reading, or to take the one write handle.

    Attributes:
        access: Reading takes nothing and needs no close.
        resume: Go on as the holder after a lost connection or daemon, with no repairs and no end-seed.
        takeover: Take a handle that is reserved for a living process which lost its connection.
    """

    id: str
    access: Literal["read", "write"]
    resume: Continue | None = msgspec.field(default=None, name="continue")
    takeover: bool | None = None


class OpenResult(Result, frozen=True):
    """The session, the writer (null for reading), and the recovery of an interrupted turn (null where none)."""

    session: Session
    writer: str | None
    recovery: Recovery | None


class AppendParams(Params, frozen=True):
    """Admit events, all or none; they are durable within the batch window or at the next flush.

    Attributes:
        expected_seq: The seq of the first event: what makes a repeated call harmless.
    """

    id: str
    writer: str
    events: Events
    expected_seq: Count | None = None


class AppendResult(Result, frozen=True):
    """Where the events stand. `duplicate`: they stood there already."""

    first_seq: int
    next_seq: int
    durable_seq: int
    duplicate: bool


class FlushParams(Params, frozen=True):
    """Wait until everything admitted before this call is durable."""

    id: str
    writer: str


class RecoverParams(Params, frozen=True):
    """Close the interrupted turn, durably; answer what to do about each call that it left open."""

    id: str
    writer: str


class ReadParams(Params, frozen=True):
    """Read events as stored, admitted ones too; at least one where there is one, whatever `maxBytes`."""

    id: str
    offset: Count | None = None
    length: Count | None = None
    max_bytes: Count | None = None


class ReadResult(Result, frozen=True):
    """A slice of the log. `end`: nothing follows it now."""

    events: list[Event]
    next_offset: int
    end: bool
    durable_seq: int


class MessagesParams(Params, frozen=True):
    """Read the history that a model is sent, an interrupted turn closed in memory only.

    Attributes:
        offset: Index of the first message wanted.
        partial: Give what there is of a history that cannot be read faithfully, with the problem.
    """

    id: str
    offset: Count | None = None
    limit: Count | None = None
    partial: bool | None = None


class MessagesResult(Result, frozen=True):
    """Messages from `offset`. `nextOffset` is null after the last one.

    Attributes:
        unanswered: The calls of ended steps and turns that the log leaves without a result. The history answers each
            behind the message that asked, as recovery would, and the log stays as it is. Those answered among these
            messages; left out where there are none.
        left_out: Which of the other members are missing (null) because the line has no room for them beside these
            messages; left out where none is. A `limit` of 0 asks for them without messages.
    """

    messages: list[dict[str, Any]]
    next_offset: int | None
    request_header: dict[str, Any] | None
    request_context: dict[str, Any] | None
    recovery: Recovery | None
    problem: Problem | None
    unanswered: list[Repair] | msgspec.UnsetType = msgspec.UNSET
    left_out: list[str] | msgspec.UnsetType = msgspec.UNSET


class StatParams(Params, frozen=True):
    """Show one session, folded first where its state is not known."""

    id: str


class SessionResult(Result, frozen=True):
    """One session."""

    session: Session


class ListParams(Params, frozen=True):
    """List sessions, newest activity first; a damaged one is shown with its problem.

    Attributes:
        states: Only these, and those whose state is not known yet.
        limit: 100 where absent, at most 1,000; a page ends earlier where one line holds no more.
        cursor: From the page before.
        archived: Only those that are archived, or only those that are not; all where absent.
        since: Only those with activity at or after this time, epoch milliseconds.
        deleted: Those in the trash instead, what was deleted last first; in one page.
        count: Answer `total` too.
    """

    cwd: str | None = None
    states: list[State] | None = None
    limit: Count | None = None
    cursor: str | None = None
    archived: bool | None = None
    since: Count | None = None
    deleted: bool | None = None
    count: bool | None = None


class ListResult(Result, frozen=True):
    """A page of sessions. `nextCursor` is null after the last one.

    Attributes:
        total: How many there are on all pages; only where `count` asked for it.
    """

    sessions: list[Session]
    next_cursor: str | None
    total: int | msgspec.UnsetType = msgspec.UNSET


class ForkParams(Params, frozen=True):
    """Make a session that begins with another's events; on disk before the answer, without a writer.

    Attributes:
        boundary: Seq of the last event taken; the source's last where absent.
        new_id: A fresh one is made where absent.
    """

    id: str
    boundary: Count | None = None
    new_id: str | None = None


class CloseParams(Params, frozen=True):
    """Flush, then give up the write handle; it is given up also where the flush fails."""

    id: str
    writer: str


class CloseResult(Result, frozen=True):
    """How the session was left.

    Attributes:
        notification_error: The error object of a failed notification that was not told yet.
    """

    next_seq: int
    durable_seq: int
    notification_error: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class DeleteParams(Params, frozen=True):
    """Put a session into the trash; `session.undelete` brings it back.

    Refused while somebody may still write to it: `SESSION_BUSY`.
    """

    id: str


class UndeleteParams(Params, frozen=True):
    """Bring back what was deleted last under an id."""

    id: str


class PurgeParams(Params, frozen=True):
    """Remove a session that lies in the trash for good: nothing brings it back, and its room is free.

    The daemon never does it of its own accord.

    Attributes:
        deleted_at: When it was put there, as `session.list` shows it; an id may lie there several times.
    """

    id: str
    deleted_at: Count


class SetLabelParams(Params, frozen=True):
    """Set what a person calls a session and where it is shown; what is absent stays as it is.

    Labels lie beside the log; its header and its events stay as they are.

    Attributes:
        title: Goes before the log's own; an empty one takes the label away.
        archived: Not shown by `dshctl list` unless asked for.
        pinned: Never taken by `dshctl prune`.
    """

    id: str
    title: str | None = None
    archived: bool | None = None
    pinned: bool | None = None


class SearchParams(Params, frozen=True):
    """Find what users, models and tools said, in all sessions; those of the newest activity first.

    Attributes:
        text: Words that must all occur in one event, each as it is or as the beginning of a longer one; words in
            quotes as they follow each other. Case, accents and punctuation do not count.
        limit: 20 where absent, at most 100.
        cursor: From the page before.
        per_session: At most so many places of one session, its newest.
    """

    text: str
    limit: Count | None = None
    cursor: str | None = None
    per_session: Count | None = None


class Hit(Result, frozen=True):
    """One place where the text was found: the event's seq, and the text around it."""

    session: Session
    seq: int
    excerpt: str


class SearchResult(Result, frozen=True):
    """A page of places. `nextCursor` is null after the last one."""

    hits: list[Hit]
    next_cursor: str | None
