"""The seam: what the sessions need from a store, and nothing about how it keeps it.

Everything here is blocking code and knows no trio. One `SessionHandle` is used by one thread at a time, except
`read`, which may run beside an `append` of the same handle. Errors are those of `dsh_protocol.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsh_protocol.events import Event, Header

Access = Literal["read", "write"]


class HandleClosedError(ValueError):
    """A handle was used after it was closed: what it had is on disk, and a fresh one reads it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a session cannot be read in full, or not be written: `kind` is one of `dsh_protocol.errors`."""

    kind: str
    message: str
    path: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Labels:
    """What a person has put on a session. Kept beside the log, of which it changes nothing."""

    title: str | None = None
    archived: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class StoredSession:
    """What the store can say of a session without reading its events.

    `updated_at` is the log's mtime in epoch milliseconds; `revision` changes with every change of the file. `summary`
    is the one of the snapshot that is kept beside the log, where that is of this very revision. `deleted_at` is set of
    what lies in the trash.
    """

    session_id: str
    header: Header | None
    path: str
    size_bytes: int
    revision: str
    updated_at: int
    problem: Problem | None = None
    summary: bytes | None = None
    labels: Labels | None = None
    deleted_at: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the first `next_seq` events of a session come to, kept beside its log so that they need not be read again.

    `state` and `summary` mean nothing to the store. The summary is the small part, which a list shows.
    """

    next_seq: int
    state: bytes
    summary: bytes


@dataclass(frozen=True, slots=True)
class HolderRecord:
    """Who holds, or last held, the write handle; kept beside the log so that it outlives the daemon.

    Attributes:
        writer_hash: SHA-256 of the writer string, hex.
        pid: From the peer's credentials; 0 where the kernel gave none.
        start_time: That process's start time (field 22 of /proc/PID/stat), so that a reused pid is told apart.
        boot_id: Of the kernel that gave both.
        client: The name the client gave.
        since: Epoch milliseconds.
        base_seq: Length of the stored log when the handle was opened.
        continued_hash: Of the writer string that was continued, whose holder may have missed the answer with the new
            one; empty where none was.
    """

    writer_hash: str
    pid: int
    start_time: int
    boot_id: str
    client: str
    since: int
    base_seq: int
    continued_hash: str = ""


class SessionHandle(Protocol):
    """One session, open for reading or writing.

    A handle for writing is the only one in this process and, through a lock, among processes. Closing it
    releases both, also when closing raises.
    """

    @property
    def header(self) -> Header:
        """The immutable header."""
        ...

    @property
    def next_seq(self) -> int:
        """The number of durable events."""
        ...

    @property
    def size_bytes(self) -> int:
        """The log's size on disk; 0 before it is materialised."""
        ...

    @property
    def materialised(self) -> bool:
        """Whether the log exists on disk."""
        ...

    def read(self, offset: int = 0, length: int | None = None) -> Iterator[Event]:
        """Yield durable events in order from seq `offset`; past the end nothing. Never a torn tail.

        What is durable is settled when the first event is asked for: an append that ends later is not seen. A read that
        outlives its handle keeps the file open until it is exhausted or dropped.

        Raises:
            LogCorruptError: After the last event in front of a defect.
            LogChangedError: Another program took away what was durable.
        """
        ...

    def append(self, events: Sequence[Event], holder: HolderRecord | None = None) -> None:
        """Make `events` durable as one batch (one frame); materialise the log with it where there is none.

        Their seqs go on from `next_seq` without a gap. No events are no batch: nothing is done.

        On return they are synced. On an error the file is as before (truncated to the acknowledged length).
        `holder`, where given, is made durable before the first byte of the batch.

        Raises:
            NoSpaceError, WriteFailedError: Nothing was appended; the same batch may be tried again.
            LogChangedError: Another program changed the log; nothing was written, nor will be by this handle.
            SessionSealedError: The append failed and could not be undone; or one before it.
            SeqConflictError: The batch does not begin at `next_seq`; the store looks at its first event alone.
            FrameTooLargeError: A batch of more than 64 MiB, unless it is the one that materialises the log.
            HandleClosedError: The handle is closed.
        """
        ...

    def flush(self, holder: HolderRecord | None = None) -> None:
        """Materialise the log with its header alone, where it is not on disk yet."""
        ...

    def snapshot(self) -> Snapshot | None:
        """The snapshot that is kept of this log; None where there is none that is proven to be of these events."""
        ...

    def keep(self, snapshot: Snapshot) -> bool:
        """Keep a snapshot of the whole log, and that all of it was acknowledged, durable on return.

        May run beside an `append`. A store that keeps nothing returns False and loses nothing but time.

        Returns:
            Whether it is kept: False where the log is not on disk or has another length by now.

        Raises:
            NoSpaceError, WriteFailedError: It is not kept; what was kept before still is.
        """
        ...

    def read_holder(self) -> HolderRecord | None:
        """The holder record beside the log; None where there is none or it cannot be read."""
        ...

    def write_holder(self, holder: HolderRecord) -> None:
        """Replace the holder record, durable on return. Only on a materialised log."""
        ...

    def clear_holder(self) -> None:
        """Remove the holder record, durable on return; nothing where there is none."""
        ...

    def close(self) -> None:
        """Release the lock and the files. Idempotent. A session never materialised leaves no trace."""
        ...


class SessionStore(Protocol):
    """All sessions under one root."""

    def create(self, header: Header) -> SessionHandle:
        """Take the id for a new session; nothing is on disk until the first append or flush.

        Raises:
            SessionExistsError: The id is taken, here or on disk, in any project.
            IdInvalidError, InvalidParamsError: The id or the cwd cannot be stored.
        """
        ...

    def open(self, session_id: str, access: Access) -> SessionHandle:
        """Open a stored session. For writing: lock, repair a torn tail (set aside first), validate.

        Raises:
            SessionNotFoundError: No such session on disk.
            SessionBusyError: Another handle or process has it for writing.
            LogCorruptError, FormatUnsupportedError, UnsafePathError: Refused for writing, bytes untouched;
                for reading, raised by `read` only where nothing more can be read.
        """
        ...

    def rescue(self, session_id: str) -> Iterator[Event]:
        """Yield the events of a session that `open` refuses for its header, as far as they go on from seq 0.

        Raises:
            SessionNotFoundError: No such session on disk.
            UnsafePathError, WriteFailedError, OverloadedError: It cannot be looked into.
        """
        ...

    def fork(
        self, source: SessionHandle, end: int, header: Header, closing: Sequence[Event]
    ) -> SessionHandle:
        """Make a session of the first `end` events of another and `closing`; it is on disk, whole, on return.

        The history is taken over without being looked at, so it costs what its bytes cost.

        Args:
            source: Open in this store; what it counts as durable may be taken.
            end: How many events.
            header: The new session's.
            closing: Go on from seq `end`.

        Returns:
            The new session's write handle.

        Raises:
            SessionExistsError, IdInvalidError, InvalidParamsError: As `create`.
            LogCorruptError: The source has not that many events that can be read.
            NoSpaceError, WriteFailedError: There is no new session.
        """
        ...

    def read_holder(self, session_id: str) -> HolderRecord | None:
        """The holder record beside a stored session's log, without opening it."""
        ...

    def stat(self, session_id: str) -> StoredSession:
        """What is known of one session without reading its events. Raises SessionNotFoundError."""
        ...

    def list(self) -> Iterator[StoredSession]:
        """Yield every materialised session, in no order; a bad one with its problem, never an exception."""
        ...

    def read_labels(self, session_id: str) -> Labels | None:
        """The labels of a stored session; None where it has none. Raises SessionNotFoundError."""
        ...

    def write_labels(self, session_id: str, labels: Labels) -> None:
        """Replace a stored session's labels, durable on return. The log is not touched, and may be open.

        Raises:
            SessionNotFoundError: Nothing of it is on disk.
            NoSpaceError, WriteFailedError: The old ones or the new ones stand.
        """
        ...

    def delete(self, session_id: str) -> None:
        """Move a session to the trash, with all that lies beside its log; durable on return. Its log is not read.

        Raises:
            SessionNotFoundError: There is none.
            SessionBusyError: A handle or another program has it for writing.
            UnsafePathError: What stands there is not this user's.
            NoSpaceError, WriteFailedError: It stands where it stood, or is in the trash, whole.
        """
        ...

    def undelete(self, session_id: str) -> None:
        """Move what was deleted last under that id back to where it was; durable on return.

        Raises:
            SessionNotFoundError: Nothing of that id is in the trash.
            SessionExistsError: There is a session of that id again.
            NoSpaceError, WriteFailedError: As `delete`.
        """
        ...

    def purge(self, session_id: str, deleted_at: int) -> None:
        """Remove for good what was deleted under that id at that time; durable on return.

        Raises:
            SessionNotFoundError: Nothing of it is in the trash.
            NoSpaceError, WriteFailedError: It lies where it lay, or is out of the trash for good; what is left of its
                files then goes with the next one.
        """
        ...

    def list_deleted(self) -> Iterator[StoredSession]:
        """Yield what lies in the trash, in no order; an id may come twice."""
        ...
