"""Reading a log: rows, events in order, and where what is good ends.

The rule that holds here: torn is a value, corrupt raises. A tail that can be an unfinished last write is reported and
left alone; a defect in front of anything that proves it was acknowledged is `LOG_CORRUPT`. Nothing here writes.
"""

from __future__ import annotations

import io
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from dsh_protocol.errors import LogCorruptError
from dshd.storage.jsonl.faults import corrupt
from dshd.storage.jsonl.frames import (
    MAGIC,
    MAX_PLAIN,
    FrameDefectError,
    decode_frame,
    frames,
    good_frame_after,
)
from dshd.storage.jsonl.rows import RowDefectError, is_object, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsh_protocol.events import Event
    from dshd.storage.jsonl.frames import Frame
    from dshd.storage.jsonl.index import Position, SeqIndex
    from dshd.storage.jsonl.source import Source

_PIECE = 128 * 1024
_BATCH = 4096
_HOLLOW = b"\0"
"""Stands for the beginning of a line that can be no row, so that it takes no memory: no row holds a NUL."""


class Known(NamedTuple):
    """What is known to have been acknowledged: every byte of the log below `size`, and what they held.

    Attributes:
        size: A lower bound of the acknowledged length; a frame or row ends there.
        events: How many events stand below it.
        crc: CRC-32 of the bytes from behind the header up to there.
    """

    size: int
    events: int
    crc: int


class Torn(NamedTuple):
    """What follows the last good row or frame and was never acknowledged."""

    offset: int
    size: int
    reason: str


class _Issue(NamedTuple):
    offset: int
    reason: str
    expected: int


def _seq_is(event: Any, expected: int) -> bool:
    if not is_object(event):
        return False
    seq = event.get("seq")
    return type(seq) in {int, float} and seq == expected


def _ends_turn(event: Any) -> bool:
    return is_object(event) and event.get("type") == "turn/end"


class Walk:
    """One pass over a log from a known position to `limit`.

    Args:
        source: The open log.
        index: Learns the positions that are passed.
        start: Where to begin.
        limit: The end of the file, as far as this pass is concerned.
        known: A lower bound of what was acknowledged; None where there is none. A defect below it is never a tail.
        crc: CRC-32 of the bytes from behind the header to `start`; None where it is not known. Where it is, what
            was acknowledged is proven when the pass reaches the bound.

    Attributes:
        offset: The end of what is good, so far; of the whole log when `batches` is exhausted.
        seq: The number of events up to there.
        crc: CRC-32 of the bytes from behind the header up to there, where it was known at the start.
        torn: The tail behind it, known when `batches` is exhausted.
        frames: How many were read; `unchecked_frames` of them carry no checksum.
    """

    def __init__(  # noqa: PLR0913  # a pass is made of these, and every one is given in one place only
        self,
        source: Source,
        index: SeqIndex,
        start: Position,
        limit: int,
        known: Known | None = None,
        *,
        crc: int | None = None,
    ) -> None:
        self.offset, self.seq = start
        self.crc = crc
        self.torn: Torn | None = None
        self.frames = 0
        self.unchecked_frames = 0
        self._source = source
        self._index = index
        self._limit = limit
        self._bound = 0 if known is None else known.size
        self._to_prove = known if crc is not None and self.offset < self._bound else None
        self._issue: _Issue | None = None

    def batches(self) -> Iterator[list[Event]]:
        """Yield events in order, grouped as reading happened to find them, some thousands at most.

        Raises:
            LogCorruptError: After the last events in front of the defect.
        """
        yield from self._frames() if self._source.zstd else self._lines()
        if self.torn is None and self.offset < self._bound:
            raise self._lost(self.offset, "it ends there")

    def _corrupt(self, offset: int, reason: str) -> LogCorruptError:
        return corrupt(self._source.path, offset, reason, expected=self.seq)

    def _lost(self, offset: int, reason: str) -> LogCorruptError:
        """Return the error for a defect below the bound."""
        if self._limit < self._bound:
            text = f"{reason}: the log is shorter than acknowledged ({self._limit} of {self._bound} bytes)"
        else:
            text = f"{reason}, below the {self._bound} bytes that were acknowledged"
        return self._corrupt(offset, text)

    def _reach(self, offset: int) -> None:
        """Move the end of what is good; at the bound, prove that what was acknowledged is what is there."""
        self.offset = offset
        known = self._to_prove
        if known is None or offset < known.size:
            return
        self._to_prove = None
        if known != (offset, self.seq, self.crc):
            text = (
                f"the bytes before are not the ones that were acknowledged ({known.events} events)"
            )
            raise self._corrupt(known.size, text)

    # ------------------------------------------------------------------ Zstandard

    def _frames(self) -> Iterator[list[Event]]:
        pending, reader = b"", frames(self._source.pread, self.offset, self._limit)
        while True:
            try:
                frame = next(reader, None)
                if frame is None:
                    break
                text = pending + decode_frame(frame)
                if not frame.checksummed:
                    self._require_rows(frame, text)
            except FrameDefectError as defect:
                self._judge(defect, pending)
                return
            self.frames += 1
            self.unchecked_frames += not frame.checksummed
            if not pending:
                self._index.add(frame.offset, self.seq)
            whole = text.rfind(b"\n") + 1
            pending = text[whole:]
            if len(pending) > MAX_PLAIN:
                raise self._corrupt(frame.offset, "a row is longer than 64 MiB")
            yield from self._rows(text[:whole], frame.offset)
            if self.crc is not None:
                self.crc = crc32(frame.content, self.crc)
            if not pending:
                self._reach(frame.end)
        if pending:
            raise self._corrupt(self.offset, "complete frames end in an unfinished row")

    def _rows(self, text: bytes, offset: int) -> Iterator[list[Event]]:
        """Yield the events of a frame's rows up to a defect, then raise it: in a whole frame nothing is tolerated."""
        batch: list[Event] = []
        failure: LogCorruptError | None = None
        for line in io.BytesIO(text):
            try:
                found = unpack(line[:-1])
            except RowDefectError as defect:
                failure = self._corrupt(offset, f"unparsable row: {defect}")
                break
            first = next(found)
            if not _seq_is(first, self.seq):
                failure = self._corrupt(offset, "seq gap in a frame")
                break
            batch.append(first)
            self.seq += 1
            for event in found:  # the members behind the first follow it
                batch.append(event)
                self.seq += 1
                if len(batch) >= _BATCH:
                    yield batch
                    batch = []
            if len(batch) >= _BATCH:
                yield batch
                batch = []
        yield batch
        if failure is not None:
            raise failure

    def _require_rows(self, frame: Frame, text: bytes) -> None:
        """Refuse a frame without a checksum that does not hold what it should: it proves nothing, and may be torn.

        Raises:
            FrameDefectError: It is to be judged as one that fails its checksum.
        """
        seq = self.seq
        reason = None
        for line in io.BytesIO(text[: text.rfind(b"\n") + 1]):
            try:
                found = unpack(line[:-1])
            except RowDefectError as defect:
                reason = f"unparsable row: {defect}"
                break
            if not _seq_is(next(found), seq):
                reason = "seq gap"
                break
            seq += 1 + sum(1 for _ in found)
        if reason is None and not text.endswith(b"\n") and text and not self._followed(frame.end):
            reason = "unfinished row"
        if reason is not None:
            text_of = f"frame without checksum: {reason}"
            raise FrameDefectError("invalid", frame.offset, text_of, end=frame.end)

    def _followed(self, offset: int) -> bool:
        return self._source.pread(len(MAGIC), offset) == MAGIC and offset < self._limit

    def _judge(self, defect: FrameDefectError, pending: bytes) -> None:
        """Tell a torn tail from corruption: only a tail lies above the bound and has nothing good behind it."""
        if defect.offset < self._bound:
            raise self._lost(defect.offset, defect.reason)
        end = defect.end
        if defect.kind == "refused" and (end is None or end == self._limit or self._followed(end)):
            raise self._corrupt(defect.offset, defect.reason)
        if pending:
            reason = f"a row begins in the frame before, and then: {defect.reason}"
            raise self._corrupt(self.offset, reason)
        later = good_frame_after(self._source, defect.offset + 1, self._limit, self._proves)
        if later is not None:
            reason = f"{defect.reason}, and a good frame follows at byte {later}"
            raise self._corrupt(defect.offset, reason)
        self.torn = Torn(defect.offset, self._limit - defect.offset, defect.reason)

    def _proves(self, frame: Frame, text: bytes) -> bool:
        """Whether a frame behind a defect was written by a program and is not what chance left there."""
        if frame.checksummed:
            return True
        try:
            first = next(unpack(text[: text.find(b"\n")])) if b"\n" in text else None
        except RowDefectError:
            return False
        seq = first.get("seq") if is_object(first) else None
        return isinstance(seq, int) and seq >= self.seq

    # ------------------------------------------------------------------ raw

    def _lines(self) -> Iterator[list[Event]]:
        at, pending = self.offset, b""
        while at < self._limit:
            if pending == _HOLLOW:
                at = min(self._source.next_data(at) or self._limit, self._limit)
            size = min(max(_PIECE, len(pending)), self._limit - at)
            piece = self._source.pread(size, at)
            if not piece:
                break
            at += len(piece)
            *lines, pending = (pending + piece).split(b"\n")
            if lines and self._issue is None:
                self._index.add(self.offset, self.seq)
            yield from self._tolerant(lines)
            if len(pending) > MAX_PLAIN or b"\0" in pending:
                self._note("a row longer than 64 MiB, or with a NUL")
                pending = _HOLLOW  # whatever follows belongs to a row that cannot be read
        if self.offset < self._limit:
            self._note("unfinished row")
            reason = "unfinished row" if self._issue is None else self._issue.reason
            self.torn = Torn(self.offset, self._limit - self.offset, reason)

    def _note(self, reason: str) -> None:
        """Remember the first defect. Raises LogCorruptError where it lies below the bound."""
        if self.offset < self._bound:
            raise self._lost(self.offset, reason)
        self._issue = self._issue or _Issue(self.offset, reason, self.seq)

    def _tolerant(self, lines: Iterable[bytes]) -> Iterator[list[Event]]:
        """Yield the events of lines until the first defect; behind it, look only for a later end of a turn.

        A turn that ended behind a defect proves that the defect was acknowledged: then it is corruption. So is a row
        that is whole and only beyond what is taken in here.
        """
        batch: list[Event] = []
        failure: LogCorruptError | None = None
        for line in lines:
            try:
                found = self._line(line)
                if found is not None:
                    batch.append(next(found))
                    self.seq += 1
                    for event in found:  # the members behind the first follow it
                        batch.append(event)
                        self.seq += 1
                        if len(batch) >= _BATCH:
                            yield batch
                            batch = []
                if self._issue is None:
                    if self.crc is not None:
                        self.crc = crc32(b"\n", crc32(line, self.crc))
                    self._reach(self.offset + len(line) + 1)
            except LogCorruptError as error:
                failure = error
                break
        yield batch
        if failure is not None:
            raise failure

    def _line(self, line: bytes) -> Iterator[Event] | None:
        """Return the events of a good line, None for a tolerated one. Raises LogCorruptError."""
        try:
            found = unpack(line)
        except RowDefectError as defect:
            if defect.whole and self._issue is None:
                raise self._corrupt(self.offset, f"unreadable row: {defect}") from None
            self._note(f"unparsable row: {defect}")
            return None
        first = next(found)
        if self._issue is None and _seq_is(first, self.seq):
            return chain((first,), found)
        self._note("seq gap")
        if _ends_turn(first) and self._issue is not None:
            at, reason, expected = self._issue
            text = f"{reason}, and a turn ends behind it"
            raise corrupt(self._source.path, at, text, expected=expected)
        return None
