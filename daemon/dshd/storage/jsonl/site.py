"""Where and how one session is stored: what both kinds of handle need.

The rule that holds here: a site is a value. It opens nothing by itself and outlives every handle.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from dsh_protocol.errors import FrameTooLargeError
from dshd.storage.jsonl.frames import MAX_PLAIN
from dshd.storage.jsonl.rows import pack
from dshd.storage.jsonl.source import Source

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from dsh_protocol.vocabulary import Event
    from dshd.storage.files import Disk
    from dshd.storage.jsonl.frames import FrameEncoder
    from dshd.storage.jsonl.layout import Place
    from dshd.storage.jsonl.root import Root
    from dshd.storage.jsonl.scan import Walk


class Site(NamedTuple):
    """Where and how a session is stored."""

    root: Root
    disk: Disk
    place: Place
    encoder: FrameEncoder
    pack_chunks: bool

    @property
    def path(self) -> str:
        """The log's whole path."""
        return self.root.full(self.place.log)

    def source(self, fd: int) -> Source:
        """Return the open log as something to scan."""
        return Source(self.disk, fd, self.path, self.place.zstd)

    def open_directory(self) -> int:
        """Open the session's directory."""
        return self.root.open_directory(self.place.project, self.place.segment)

    @contextmanager
    def directory(self) -> Generator[int, None, None]:
        """Have the session's directory open for a while."""
        directory = self.open_directory()
        try:
            yield directory
        finally:
            self.disk.close(directory)

    def encoded(self, events: Sequence[Event]) -> bytes:
        """Return the bytes of one batch.

        Raises:
            FrameTooLargeError: It is larger than what a frame may hold.
        """
        return b"".join(self.pieces(events))

    def pieces(self, events: Sequence[Event]) -> list[bytes]:
        """Return the bytes of one batch in the parts that are made durable one after the other.

        A frame is whole or not. Lines are judged by the end of a turn: where one stands, what is before it was
        acknowledged. So in a raw log it is not written before that is durable.

        Raises:
            FrameTooLargeError: See `encoded`.
        """
        parts = [events] if self.place.zstd else _turns(events)
        texts = [
            b"".join(chain.from_iterable((row, b"\n") for row in self._rows(part)))
            for part in parts
        ]
        size = sum(map(len, texts))
        if size > MAX_PLAIN:
            raise FrameTooLargeError(
                f"a batch of {size} bytes is more than {MAX_PLAIN}; append it in parts",
                limit="maxFrameBytes",
            )
        return [self.framed(text) for text in texts]

    def _rows(self, events: Sequence[Event]) -> list[bytes]:
        return pack(events, pack_chunks=self.pack_chunks)

    def framed(self, text: bytes) -> bytes:
        """Return text as the log's encoding has it."""
        return self.encoder.encode(text) if self.place.zstd else text


def _turns(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Cut a batch in front of each end of a turn."""
    start = 0
    for at, event in enumerate(events):
        if event.get("type") == "turn/end" and at > start:
            yield events[start:at]
            start = at
    yield events[start:]


def within(walk: Walk, offset: int, end: int | None) -> Iterator[Event]:
    """Yield a walk's events whose seq is at least `offset` and below `end`."""
    for batch in walk.batches():
        first = walk.seq - len(batch)
        if end is not None and first >= end:
            return
        yield from batch[max(0, offset - first) : None if end is None else end - first]
        if end is not None and walk.seq >= end:
            return
