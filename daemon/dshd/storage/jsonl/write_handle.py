"""The handle that writes a session, from its creation or from where its log ends.

The rule that holds here: what a handle for writing counts is durable. `next_seq` and the size move together, after the
sync and never before; a read that runs beside an append sees the log as it was before it or after it.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from dsh_protocol.errors import (
    DshdError,
    FrameTooLargeError,
    SeqConflictError,
    SessionSealedError,
)
from dsh_protocol.events import header_to_wire
from dsh_protocol.jsontext import encode
from dshd.storage.jsonl.derived import DERIVED, Derived, derive, read_derived, write_derived
from dshd.storage.jsonl.faults import changed, read_error, write_error
from dshd.storage.jsonl.forking import (
    SHARED_FROM,
    Lent,
    find_cut,
    moved,
    padded,
    rows_of,
    taken,
)
from dshd.storage.jsonl.frames import MAX_PLAIN
from dshd.storage.jsonl.holder import HOLDER, clear_holder, read_holder, write_holder
from dshd.storage.jsonl.index import SeqIndex
from dshd.storage.jsonl.layout import LEFTOVER
from dshd.storage.jsonl.lock import SESSION_LOCK, lock_session
from dshd.storage.jsonl.log import Start, publish
from dshd.storage.jsonl.scan import Known, Walk
from dshd.storage.jsonl.site import within
from dshd.storage.store import HandleClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from dsh_protocol.events import Header
    from dsh_protocol.vocabulary import Event
    from dshd.storage.jsonl.derived import Head
    from dshd.storage.jsonl.log import LogFile
    from dshd.storage.jsonl.site import Site
    from dshd.storage.store import HolderRecord, Snapshot

_FIRST_BATCH = 8 * 1024 * 1024


class WriteHandle:
    """A session open for writing: the lock, the open log, and how far both have come.

    Args:
        site: Where it is, or will be.
        header: The header, stored already or still to be.
        lock: The descriptor that has `session.lock`; None for a session not on disk yet.
        log: The open log; None likewise.
        first: Where its header ends.
        index: What is known of its positions.
        next_seq: How many events are in it.
        derived: The head of the derived file that was found to be this log's.
        level: Whether that one needs not be written anew while nothing is appended.
        released: Called once when the handle is closed.
    """

    def __init__(  # noqa: PLR0913  # the five parts of a handle, made in one place, the store
        self,
        site: Site,
        header: Header,
        *,
        lock: int | None = None,
        log: LogFile | None = None,
        first: int = 0,
        index: SeqIndex | None = None,
        next_seq: int = 0,
        derived: Head | None = None,
        level: bool = False,
        released: Callable[[], None],
    ) -> None:
        self._site = site
        self._header = header
        self._lock = lock
        self._log = log
        self._first_offset = first
        self._index = index or SeqIndex()
        self._next_seq = next_seq
        self._derived = derived
        self._level = level
        self._reached = Known(0, 0, 0) if log is None else Known(log.size, next_seq, log.crc)
        self._sealed: SessionSealedError | None = None
        self._released: Callable[[], None] | None = released

    @property
    def header(self) -> Header:
        """The immutable header."""
        return self._header

    @property
    def next_seq(self) -> int:
        """The number of durable events."""
        return self._next_seq

    @property
    def size_bytes(self) -> int:
        """The acknowledged length."""
        return 0 if self._log is None else self._log.size

    @property
    def materialised(self) -> bool:
        """Whether the log exists on disk."""
        return self._log is not None

    def read(self, offset: int = 0, length: int | None = None) -> Iterator[Event]:
        """Yield durable events; those of an append that runs meanwhile are not among them."""
        log, end = self._log, self._next_seq
        if log is None or offset >= end:
            return
        limit = log.size
        if length is not None:
            end = min(end, offset + length)
        seen = max(offset, 0)
        try:
            with log.file.borrowed() as fd:
                start = self._index.locate(offset)
                walk = Walk(self._site.source(fd), self._index, start, limit)
                for event in within(walk, offset, end):
                    seen += 1
                    yield event
        except OSError as error:
            raise read_error(error, log.path) from error
        if seen < end:
            raise changed(log.path, f"event {seen} of {end} durable ones is not in it any more")

    def append(self, events: Sequence[Event], holder: HolderRecord | None = None) -> None:
        """Make one batch durable; see `SessionHandle`."""
        self._require_open()
        if not events:
            return
        for due, event in enumerate(events, self._next_seq):
            got = event.get("seq")
            if got != due:
                raise SeqConflictError(
                    f"a batch for seq {self._next_seq} has {got!r} where {due} is due",
                    expected=due,
                    got=got,
                )
        if self._log is None:
            self._materialise(events, holder)
            return
        self._log.require_writable()
        pieces = self._site.pieces(events)
        if holder is not None:
            self.write_holder(holder)
        at = self._log.size
        self._log.append(*pieces)
        self._index.add(at, self._next_seq)
        self._next_seq += len(events)
        self._reached = Known(self._log.size, self._next_seq, self._log.crc)

    def flush(self, holder: HolderRecord | None = None) -> None:
        """Materialise an empty session; see `SessionHandle`."""
        self._require_open()
        if self._log is None:
            self._materialise((), holder)
        elif holder is not None:
            self.write_holder(holder)

    def _require_open(self) -> None:
        if self._released is None:
            raise ValueError("append or flush on a closed session handle")

    def _materialise(self, events: Sequence[Event], holder: HolderRecord | None) -> None:
        """Put the session on disk, with its first batch."""
        if (
            self._sealed is not None
        ):  # what stands under its name is ours, and may not be what is durable
            raise self._sealed.with_facts()
        header, index, seq, rest = self._framed_header(), SeqIndex(), 0, b""
        first = len(header)
        index.add(first, 0)
        for part, frame in self._first(events):
            index.add(first + len(rest), seq)
            rest += frame
            seq += len(part)
        self._put(Start(header, rest), index, seq, holder)

    def begin_with(self, lent: Lent, end: int, closing: Sequence[Event]) -> None:
        """Put the session on disk with the first `end` events of another log, and `closing` behind them.

        Raises:
            LogCorruptError: The other log has not that many.
            NoSpaceError, WriteFailedError: Nothing was put there.
        """
        try:
            cut = find_cut(lent, end)
            copied = taken(lent, cut)
        except OSError as error:
            raise read_error(error, lent.source.path) from error
        header = self._framed_header()
        if copied.size >= SHARED_FROM and self._shares(lent):
            header = padded(header, lent.first, zstd=lent.source.zstd)
        index, rows = moved(lent, cut, len(header)), cut.rows + rows_of(list(closing))
        rest = self._site.framed(rows) if rows else b""
        self._put(Start(header, rest, copied), index, end + len(closing), None)

    def _shares(self, lent: Lent) -> bool:
        """Whether the new log, somewhere under this root, can share blocks with the other."""
        try:
            directory = self._site.root.make()
        except OSError:
            return False
        try:
            return self._site.disk.shares(lent.source.fd, directory)
        finally:
            self._site.disk.close(directory)

    def _framed_header(self) -> bytes:
        line = encode({"type": "session", **header_to_wire(self._header)}) + b"\n"
        return self._site.framed(line)

    def _put(
        self, start: Start, index: SeqIndex, next_seq: int, holder: HolderRecord | None
    ) -> None:
        """Put the session on disk: directories, lock, holder record, then the whole log under its name."""
        site = self._site
        try:
            directory = site.root.make_directory(site.place.project, site.place.segment)
            try:
                if self._lock is None:
                    self._lock = lock_session(site.disk, directory, self._header.id)
                if holder is not None:
                    write_holder(site.disk, directory, holder)
                log = publish(site.disk, directory, site.path, start)
            finally:
                site.disk.close(directory)
        except SessionSealedError as error:
            self._sealed = error
            raise
        except OSError as error:
            raise write_error(error, site.path) from error
        self._index, self._next_seq, self._log = index, next_seq, log
        self._first_offset = len(start.header)
        self._reached = Known(log.size, next_seq, log.crc)

    @contextmanager
    def lent(self) -> Generator[Lent]:
        """Lend the log, as far as it is acknowledged, to be copied."""
        log, known = self._log, self._reached
        if log is None:
            raise HandleClosedError("a session that is not on disk has nothing to copy")
        with log.file.borrowed() as fd:
            yield Lent(self._site.source(fd), self._index, self._first_offset, known.size, known)

    def _first(self, events: Sequence[Event]) -> Iterator[tuple[Sequence[Event], bytes]]:
        """Yield the first batch and its bytes: one frame, or several where a forked history fits none.

        They are published at once or not at all, so the batch is not split for anybody who reads it.
        """
        if not events:
            return
        try:
            yield events, self._site.encoded(events)
        except FrameTooLargeError:
            for part in _parts(events):
                yield part, self._site.encoded(part)

    def _directory(self) -> int:
        try:
            return self._site.open_directory()
        except OSError as error:
            raise write_error(error, self._site.path) from error

    def snapshot(self) -> Snapshot | None:
        """See `SessionHandle`."""
        if self._derived is None:
            return None
        directory = self._directory()
        try:
            found = read_derived(self._site.disk, directory, whole=True)
        except OSError:
            return None
        finally:
            self._site.disk.close(directory)
        return found.snapshot if found is not None and found.head == self._derived else None

    def keep(self, snapshot: Snapshot) -> bool:
        """Bring the derived file level; see `SessionHandle`."""
        log, known = self._log, self._reached
        if log is None or known.events != snapshot.next_seq or not log.is_ours():
            return False
        site = self._site
        try:
            with log.file.borrowed() as fd:
                head = derive(site.source(fd), self._first_offset, known)
            if self._level and head == self._derived:
                return True
            state = site.encoder.encode(snapshot.state) if len(snapshot.state) <= MAX_PLAIN else b""
            positions = tuple(self._index.before(known.size))
            directory = self._directory()
            try:
                derived = Derived(head, snapshot.summary, positions, state)
                write_derived(site.disk, directory, derived)
            finally:
                site.disk.close(directory)
        except OSError as error:
            raise write_error(error, f"{log.path}: {DERIVED}") from error
        self._derived, self._level = head, True
        return True

    def read_holder(self) -> HolderRecord | None:
        """See `SessionHandle`."""
        if self._log is None:
            return None
        directory = self._directory()
        try:
            return read_holder(self._site.disk, directory)
        finally:
            self._site.disk.close(directory)

    def write_holder(self, holder: HolderRecord) -> None:
        """Replace the record; see `SessionHandle`. Raises NoSpaceError or WriteFailedError."""
        directory = self._directory()
        try:
            write_holder(self._site.disk, directory, holder)
        except OSError as error:
            raise write_error(error, f"{self._site.path}: {HOLDER}") from error
        finally:
            self._site.disk.close(directory)

    def clear_holder(self) -> None:
        """Remove the record; see `SessionHandle`. Raises NoSpaceError or WriteFailedError."""
        if self._log is None:
            return
        directory = self._directory()
        try:
            clear_holder(self._site.disk, directory)
        except OSError as error:
            raise write_error(error, f"{self._site.path}: {HOLDER}") from error
        finally:
            self._site.disk.close(directory)

    def close(self) -> None:
        """Release everything; see `SessionHandle`."""
        released, self._released = self._released, None
        if released is None:
            return
        try:
            if self._log is not None:
                self._log.file.close()
            elif self._lock is not None:
                self._leave_no_trace()
        finally:
            try:
                if self._lock is not None:
                    self._site.disk.close(self._lock)
            finally:
                released()

    def _leave_no_trace(self) -> None:
        """Remove what failed attempts to materialise left. A log that could not be withdrawn keeps it all."""
        disk, place = self._site.disk, self._site.place
        with suppress(OSError, DshdError):
            directory = self._site.open_directory()
            try:
                names = disk.listdir(directory)
                if place.log_name in names:
                    return
                for name in names:
                    if name in {HOLDER, SESSION_LOCK} or LEFTOVER.fullmatch(name):
                        disk.unlink(name, at=directory)
            finally:
                disk.close(directory)
            self._site.root.remove_directory(place.project, place.segment)


def _parts(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Cut a history that is too large for one frame into parts that are not."""
    start, held = 0, 0
    for at, event in enumerate(events):
        size = len(encode(event))
        if held + size > _FIRST_BATCH and at > start:
            yield events[start:at]
            start, held = at, 0
        held += size
    yield events[start:]
