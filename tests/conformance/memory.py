"""The reference: a store that keeps sessions in memory, as simply as the seam allows. No program uses it.

It is what the suite is read against: where suite and reference disagree, one of them is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from dsh_protocol import jsontext
from dsh_protocol.errors import (
    FormatUnsupportedError,
    IdInvalidError,
    LogCorruptError,
    SeqConflictError,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
)
from dsh_protocol.events import KNOWN_TYPES, check_header, header_to_wire
from dshd.storage.store import StoredSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsh_protocol.events import Header
    from dshd.storage.store import Access, HolderRecord, Labels, SessionHandle, Snapshot

Event = dict[str, Any]


@dataclass
class Record:
    """One stored session: its header, its events as text, how often it changed, and who writes it."""

    header: Header
    rows: list[bytes] = field(default_factory=list[bytes])
    changes: int = 0
    held: bool = False
    holder: HolderRecord | None = None
    kept: Snapshot | None = None
    labels: Labels | None = None


@dataclass
class MemoryStorage:
    """What the stores opened over it share."""

    records: dict[str, Record] = field(default_factory=dict[str, Record])
    trash: list[Record] = field(default_factory=list[Record])
    lock: Lock = field(default_factory=Lock)

    def open(self) -> MemoryStore:
        """See `Storage`."""
        return MemoryStore(self)


class MemoryStore:
    """All sessions of one storage."""

    def __init__(self, storage: MemoryStorage) -> None:
        self.storage = storage
        self.pending: set[str] = set()

    def create(self, header: Header) -> MemoryHandle:
        """See `SessionStore`."""
        check_header({"type": "session", **header_to_wire(header)})
        if not header.id:
            raise IdInvalidError("the session id is empty")
        with self.storage.lock:
            if header.id in self.storage.records or header.id in self.pending:
                raise SessionExistsError(f"session {header.id!r} exists")
            self.pending.add(header.id)
        return MemoryHandle(self, header, None)

    def open(self, session_id: str, access: Access) -> MemoryHandle:
        """See `SessionStore`."""
        record = self.record(session_id)
        if access == "read":
            return MemoryHandle(self, record.header, record, reads=True)
        with self.storage.lock:
            if record.held:
                raise SessionBusyError(f"session {session_id!r} is open for writing")
            for row in record.rows:
                event = jsontext.decode_stored(row)
                if event["type"] not in KNOWN_TYPES and event.get("ignorable") is not True:
                    raise FormatUnsupportedError(f"unknown type {event['type']!r}")
            record.held = True
        return MemoryHandle(self, record.header, record)

    def fork(
        self, source: SessionHandle, end: int, header: Header, closing: Sequence[Event]
    ) -> MemoryHandle:
        """See `SessionStore`."""
        history = list(source.read(0, end))
        if len(history) < end:
            raise LogCorruptError(f"there are {len(history)} events, not {end}")
        child = self.create(header)
        child.append([*history, *closing])
        child.flush()
        return child

    def record(self, session_id: str) -> Record:
        """Return what is stored of a session."""
        try:
            return self.storage.records[session_id]
        except KeyError:
            raise SessionNotFoundError(f"no session {session_id!r}") from None

    def rescue(self, session_id: str) -> Iterator[Event]:
        """See `SessionStore`: here no header is ever lost."""
        self.record(session_id)
        return iter(())

    def read_holder(self, session_id: str) -> HolderRecord | None:
        """See `SessionStore`."""
        return self.record(session_id).holder

    def stat(self, session_id: str) -> StoredSession:
        """See `SessionStore`."""
        return _stored(self.record(session_id))

    def list(self) -> Iterator[StoredSession]:
        """See `SessionStore`."""
        for session_id in list(self.storage.records):
            yield self.stat(session_id)

    def read_labels(self, session_id: str) -> Labels | None:
        """See `SessionStore`."""
        return self.record(session_id).labels

    def write_labels(self, session_id: str, labels: Labels) -> None:
        """See `SessionStore`."""
        self.record(session_id).labels = labels

    def delete(self, session_id: str) -> None:
        """See `SessionStore`."""
        with self.storage.lock:
            if self.record(session_id).held:
                raise SessionBusyError(f"session {session_id!r} is open for writing")
            self.storage.trash.append(self.storage.records.pop(session_id))

    def undelete(self, session_id: str) -> None:
        """See `SessionStore`."""
        with self.storage.lock:
            if session_id in self.storage.records:
                raise SessionExistsError(f"session {session_id!r} exists")
            for record in reversed(self.storage.trash):
                if record.header.id == session_id:
                    self.storage.trash.remove(record)
                    self.storage.records[session_id] = record
                    return
        raise SessionNotFoundError(f"no session {session_id!r} in the trash")

    def purge(self, session_id: str, deleted_at: int) -> None:
        """See `SessionStore`: here nothing notes when it was deleted."""
        del deleted_at
        with self.storage.lock:
            for record in reversed(self.storage.trash):
                if record.header.id == session_id:
                    self.storage.trash.remove(record)
                    return
        raise SessionNotFoundError(f"no session {session_id!r} in the trash")

    def list_deleted(self) -> Iterator[StoredSession]:
        """See `SessionStore`."""
        yield from map(_stored, list(self.storage.trash))


def _stored(record: Record) -> StoredSession:
    size = sum(map(len, record.rows))
    return StoredSession(record.header.id, record.header, "memory", size, str(record.changes), 0)


class MemoryHandle:
    """One session, open for reading or writing."""

    def __init__(
        self, store: MemoryStore, header: Header, record: Record | None, *, reads: bool = False
    ) -> None:
        self.header = header
        self.store = store
        self.record = record
        self.reads = reads
        self.closed = False

    @property
    def next_seq(self) -> int:
        """See `SessionHandle`."""
        return 0 if self.record is None else len(self.record.rows)

    @property
    def size_bytes(self) -> int:
        """See `SessionHandle`."""
        return 0 if self.record is None else sum(map(len, self.record.rows))

    @property
    def materialised(self) -> bool:
        """See `SessionHandle`."""
        return self.record is not None

    def read(self, offset: int = 0, length: int | None = None) -> Iterator[Event]:
        """See `SessionHandle`."""
        self.require_open()
        rows = [] if self.record is None else list(self.record.rows)
        end = None if length is None else offset + length
        return map(jsontext.decode_stored, rows[offset:end])

    def append(self, events: Sequence[Event], holder: HolderRecord | None = None) -> None:
        """See `SessionHandle`."""
        self.require_writable()
        for due, event in enumerate(events, self.next_seq):
            if event["seq"] != due:
                text = f"seq {due} is due"
                raise SeqConflictError(text, expected=due, got=event["seq"])
        rows = [jsontext.encode(event) for event in events]
        if rows:
            self.stored().rows.extend(rows)
            self.stored().changes += 1

    def flush(self, holder: HolderRecord | None = None) -> None:
        """See `SessionHandle`."""
        self.require_writable()
        self.stored()

    def stored(self) -> Record:
        """Return the record, made with the first batch or flush."""
        if self.record is None:
            self.record = Record(self.header, held=True)
            self.store.storage.records[self.header.id] = self.record
        return self.record

    def require_open(self) -> None:
        """Refuse what a closed handle cannot do."""
        if self.closed:
            raise ValueError("the handle is closed")

    def require_writable(self) -> None:
        """Refuse what a handle for reading, or a closed one, cannot do."""
        self.require_open()
        if self.reads:
            raise TypeError("the handle reads")

    def snapshot(self) -> Snapshot | None:
        """See `SessionHandle`."""
        return None if self.record is None else self.record.kept

    def keep(self, snapshot: Snapshot) -> bool:
        """See `SessionHandle`."""
        if self.record is None or snapshot.next_seq != len(self.record.rows):
            return False
        self.record.kept = snapshot
        return True

    def read_holder(self) -> HolderRecord | None:
        """See `SessionHandle`."""
        return None if self.record is None else self.record.holder

    def write_holder(self, holder: HolderRecord) -> None:
        """See `SessionHandle`."""
        self.stored().holder = holder

    def clear_holder(self) -> None:
        """See `SessionHandle`."""
        if self.record is not None:
            self.record.holder = None

    def close(self) -> None:
        """See `SessionHandle`."""
        if self.closed:
            return
        self.closed = True
        if not self.reads:
            self.store.pending.discard(self.header.id)
            if self.record is not None:
                self.record.held = False
