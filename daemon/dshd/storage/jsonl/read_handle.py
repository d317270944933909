"""The handle that reads a stored session.

The rule that holds here: reading takes nothing and mends nothing. What grows meanwhile is seen by the next read.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dshd.storage.jsonl.derived import read_derived
from dshd.storage.jsonl.faults import read_error
from dshd.storage.jsonl.forking import Lent
from dshd.storage.jsonl.holder import read_holder
from dshd.storage.jsonl.index import SeqIndex
from dshd.storage.jsonl.scan import Walk
from dshd.storage.jsonl.site import within

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from dsh_protocol.events import Header
    from dsh_protocol.vocabulary import Event
    from dshd.storage.jsonl.derived import Lineage
    from dshd.storage.jsonl.index import Position
    from dshd.storage.jsonl.log import OpenFile
    from dshd.storage.jsonl.site import Site
    from dshd.storage.store import HolderRecord, Snapshot


class ReadHandle:
    """A stored session, open for reading. Takes nothing and mends nothing."""

    def __init__(
        self, site: Site, file: OpenFile, header: Header, first: int, derived: Lineage
    ) -> None:
        self._site = site
        self._file = file
        self._header = header
        self._first = first
        self._derived = derived
        self._index = SeqIndex([(first, 0), *derived.positions])
        self._counted: tuple[int, int] = (-1, 0)

    @property
    def header(self) -> Header:
        """The immutable header."""
        return self._header

    @property
    def size_bytes(self) -> int:
        """The file's size now."""
        with self._file.borrowed() as fd:
            return self._site.disk.fstat(fd).st_size

    @property
    def next_seq(self) -> int:
        """The number of whole events; the first look reads the log, later ones what was added to it.

        Raises:
            LogCorruptError: There is a defect; how far it can be read, `read` tells.
        """
        size = self.size_bytes
        if self._counted[0] != size:
            with self._file.borrowed() as fd:
                walk = self._walk(fd, self._index.last(), size)
                for _ in walk.batches():
                    pass
            self._require_kept()
            self._counted = (size, walk.seq)
        return self._counted[1]

    @property
    def materialised(self) -> bool:
        """A handle for reading is always one of a log on disk."""
        return True

    def read(self, offset: int = 0, length: int | None = None) -> Iterator[Event]:
        """Yield events in order, as far as the log is good; see `SessionHandle`."""
        end = None if length is None else offset + length
        try:
            with self._file.borrowed() as fd:
                size = self._site.disk.fstat(fd).st_size
                yield from within(self._walk(fd, self._index.locate(offset), size), offset, end)
        except OSError as error:
            raise read_error(error, self._site.path) from error
        if end is None:
            self._require_kept()

    def _walk(self, fd: int, start: Position, limit: int) -> Walk:
        crc = 0 if start.offset == self._first else None
        source = self._site.source(fd)
        return Walk(source, self._index, start, limit, self._derived.known, crc=crc)

    def _require_kept(self) -> None:
        """Raise where everything that is there can be read, and is not what was acknowledged."""
        if self._derived.loss is not None:
            raise self._derived.loss

    @contextmanager
    def lent(self) -> Generator[Lent]:
        """Lend the log, as long as it is now, to be copied."""
        with self._file.borrowed() as fd:
            size = self._site.disk.fstat(fd).st_size
            known = self._derived.known
            yield Lent(self._site.source(fd), self._index, self._first, size, known)

    def snapshot(self) -> Snapshot | None:
        """See `SessionHandle`."""
        head = self._derived.head
        if head is None:
            return None
        try:
            directory = self._site.open_directory()
        except OSError:
            return None
        try:
            found = read_derived(self._site.disk, directory, whole=True)
        except OSError:
            return None
        finally:
            self._site.disk.close(directory)
        return found.snapshot if found is not None and found.head == head else None

    def keep(self, snapshot: Snapshot) -> bool:  # noqa: ARG002  # the seam's signature
        """Keep nothing: this handle reads."""
        return False

    def append(
        self,
        events: Sequence[Event],  # noqa: ARG002  # the seam's signature
        holder: HolderRecord | None = None,  # noqa: ARG002  # likewise
    ) -> None:
        """Refuse: this handle reads."""
        raise TypeError("append on a handle that was opened for reading")

    def flush(self, holder: HolderRecord | None = None) -> None:
        """Do nothing: what is read is on disk."""

    def read_holder(self) -> HolderRecord | None:
        """See `SessionHandle`."""
        try:
            directory = self._site.open_directory()
        except OSError:
            return None
        try:
            return read_holder(self._site.disk, directory)
        finally:
            self._site.disk.close(directory)

    def write_holder(self, holder: HolderRecord) -> None:  # noqa: ARG002  # likewise
        """Refuse: this handle reads."""
        raise TypeError("write_holder on a handle that was opened for reading")

    def clear_holder(self) -> None:
        """Refuse: this handle reads."""
        raise TypeError("clear_holder on a handle that was opened for reading")

    def close(self) -> None:
        """Release the file. Idempotent."""
        self._file.close()
