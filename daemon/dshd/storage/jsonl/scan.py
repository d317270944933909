"""Reading a log: header, rows, events in order, and where what is good ends.

The rule that holds here: torn is a value, corrupt raises. A tail that can be an unfinished last write is reported and
left alone; a defect in front of anything that proves it was acknowledged is `LOG_CORRUPT`. Nothing here writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dshd.storage.jsonl.faults import corrupt
from dshd.storage.jsonl.frames import (
    MAX_PLAIN,
    FrameDefectError,
    decode_frame,
    frames,
    good_frame_after,
)
from dshd.storage.jsonl.rows import RowDefectError, expand, is_object
from dshd.storage.jsonl.vocabulary import parse_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_protocol.errors import LogCorruptError
    from dsh_protocol.events import Event, Header
    from dshd.storage.files import Disk
    from dshd.storage.jsonl.index import Position, SeqIndex

_PIECE = 128 * 1024
_HEADER_PIECE = 8 * 1024
_MAX_HEADER = 1024 * 1024


class Source(NamedTuple):
    """An open log. Reads are at offsets, so several may run at once."""

    disk: Disk
    fd: int
    path: str
    zstd: bool

    def pread(self, size: int, offset: int) -> bytes:
        """Read; fewer bytes than asked for only at the end."""
        return self.disk.pread(self.fd, size, offset)


class Torn(NamedTuple):
    """What follows the last good row or frame and was never acknowledged."""

    offset: int
    size: int
    reason: str


class _Issue(NamedTuple):
    offset: int
    reason: str
    expected: int


def read_header(source: Source, size: int) -> tuple[Header, int]:
    """Return the header and the offset behind it.

    Raises:
        LogCorruptError: There is no whole header, or it is not one.
        FormatUnsupportedError: It is another version's.
    """
    line, end = _framed_header(source, size) if source.zstd else _raw_header(source, size)
    return parse_header(line, source.path), end


def _raw_header(source: Source, size: int) -> tuple[bytes, int]:
    text = b""
    while b"\n" not in text:
        piece = source.pread(min(_HEADER_PIECE, size - len(text)), len(text))
        if not piece or len(text) > _MAX_HEADER:
            raise corrupt(source.path, 0, "empty or header-less session log")
        text += piece
    line = text[: text.index(b"\n")]
    return line, len(line) + 1


def _framed_header(source: Source, size: int) -> tuple[bytes, int]:
    try:
        frame = next(frames(source.pread, 0, size, ahead=_HEADER_PIECE), None)
        if frame is None:
            raise corrupt(source.path, 0, "empty or header-less session log")
        text = decode_frame(frame)
    except FrameDefectError as defect:
        raise corrupt(source.path, 0, f"header frame: {defect.reason}") from defect
    if text.find(b"\n") != len(text) - 1:
        raise corrupt(source.path, 0, "first frame is not exactly one header line")
    return text[:-1], frame.end


def _seq_is(event: Any, expected: int) -> bool:
    if not is_object(event):
        return False
    seq = event.get("seq")
    return type(seq) in {int, float} and seq == expected


def _ends_turn(events: list[Any]) -> bool:
    return any(is_object(event) and event.get("type") == "turn/end" for event in events)


class Walk:
    """One pass over a log from a known position to `limit`.

    Attributes:
        offset: The end of what is good, so far; of the whole log when `batches` is exhausted.
        seq: The number of events up to there.
        torn: The tail behind it, known when `batches` is exhausted.
        frames: How many were read; `unchecked_frames` of them carry no checksum.
    """

    def __init__(self, source: Source, index: SeqIndex, start: Position, limit: int) -> None:
        self.offset, self.seq = start
        self.torn: Torn | None = None
        self.frames = 0
        self.unchecked_frames = 0
        self._source = source
        self._index = index
        self._limit = limit

    def batches(self) -> Iterator[list[Event]]:
        """Yield events in order, grouped as reading happened to find them.

        Raises:
            LogCorruptError: After the last events in front of the defect.
        """
        return self._frames() if self._source.zstd else self._lines()

    def _frames(self) -> Iterator[list[Event]]:
        pending, reader = b"", frames(self._source.pread, self.offset, self._limit)
        while True:
            try:
                frame = next(reader, None)
                text = b"" if frame is None else decode_frame(frame)
            except FrameDefectError as defect:
                self._judge(defect, pending)
                return
            if frame is None:
                break
            self.frames += 1
            self.unchecked_frames += not frame.checksummed
            if not pending:
                self._index.add(frame.offset, self.seq)
            *lines, pending = (pending + text).split(b"\n")
            if len(pending) > MAX_PLAIN:
                raise corrupt(self._source.path, frame.offset, "a row is longer than 64 MiB")
            events, failure = self._rows(lines, frame.offset)
            if not pending and failure is None:
                self.offset = frame.end
            yield events
            if failure is not None:
                raise failure
        if pending:
            reason = "complete frames end in an unfinished row"
            raise corrupt(self._source.path, self.offset, reason, expected=self.seq)

    def _rows(self, lines: list[bytes], offset: int) -> tuple[list[Event], LogCorruptError | None]:
        """Return the events of a frame's rows up to a defect, and the defect: in a whole frame nothing is tolerated."""
        events: list[Event] = []
        for line in lines:
            try:
                found = expand(line)
            except RowDefectError as defect:
                reason = f"unparsable row: {defect}"
                return events, corrupt(self._source.path, offset, reason, expected=self.seq)
            for event in found:
                if not _seq_is(event, self.seq):
                    reason = "seq gap in a frame"
                    return events, corrupt(self._source.path, offset, reason, expected=self.seq)
                events.append(event)
                self.seq += 1
        return events, None

    def _judge(self, defect: FrameDefectError, pending: bytes) -> None:
        """Tell a torn tail from corruption: only a tail has nothing good behind it."""
        path = self._source.path
        if defect.kind == "refused":
            raise corrupt(path, defect.offset, defect.reason, expected=self.seq)
        if pending:
            reason = f"a row begins in the frame before, and then: {defect.reason}"
            raise corrupt(path, self.offset, reason, expected=self.seq)
        later = good_frame_after(self._source.pread, defect.offset + 1, self._limit)
        if later is not None:
            reason = f"{defect.reason}, and a good frame follows at byte {later}"
            raise corrupt(path, defect.offset, reason, expected=self.seq)
        self.torn = Torn(defect.offset, self._limit - defect.offset, defect.reason)

    def _lines(self) -> Iterator[list[Event]]:
        at, pending, issue = self.offset, b"", None
        while at < self._limit:
            size = min(max(_PIECE, len(pending)), self._limit - at)
            piece = self._source.pread(size, at)
            if not piece:
                break
            at += len(piece)
            *lines, pending = (pending + piece).split(b"\n")
            if lines and issue is None:
                self._index.add(self.offset, self.seq)
            events, issue, failure = self._tolerant(lines, issue)
            if len(pending) > MAX_PLAIN:
                issue = issue or _Issue(self.offset, "a row is longer than 64 MiB", self.seq)
                pending = b"\0"  # whatever follows belongs to a row that cannot be read
            yield events
            if failure is not None:
                raise failure
        if self.offset < self._limit:
            reason = issue.reason if issue else "unfinished row"
            self.torn = Torn(self.offset, self._limit - self.offset, reason)

    def _tolerant(
        self, lines: list[bytes], issue: _Issue | None
    ) -> tuple[list[Event], _Issue | None, LogCorruptError | None]:
        """Take lines until the first defect; behind it, look only for a later end of a turn.

        A turn that ended behind a defect proves that the defect was acknowledged: then it is corruption. So is a row
        that is whole and only beyond what is taken in here.
        """
        events: list[Event] = []
        for line in lines:
            try:
                found = expand(line)
            except RowDefectError as defect:
                if defect.whole and issue is None:
                    reason = f"unreadable row: {defect}"
                    failure = corrupt(self._source.path, self.offset, reason, expected=self.seq)
                    return events, None, failure
                issue = issue or _Issue(self.offset, f"unparsable row: {defect}", self.seq)
                continue
            if issue is None and all(_seq_is(e, self.seq + k) for k, e in enumerate(found)):
                events += found
                self.seq += len(found)
                self.offset += len(line) + 1
                continue
            issue = issue or _Issue(self.offset, "seq gap", self.seq)
            if _ends_turn(found):
                reason = f"{issue.reason}, and a turn ends behind it"
                at, expected = issue.offset, issue.expected
                return events, issue, corrupt(self._source.path, at, reason, expected=expected)
        return events, issue, None
