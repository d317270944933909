"""A log that begins with another's events: which of its bytes are taken over as they are, and what is written anew.

The rule that holds here: history is copied, not read. Frames and lines up to the cut are taken over byte for byte; only
the one frame, or the one packed row, that the cut goes through is decoded and written again. Nothing is verified on
the way: what was damaged in the source is damaged in the copy, and is found where it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from dshd.storage.files import BLOCK
from dshd.storage.jsonl.faults import corrupt
from dshd.storage.jsonl.frames import MAX_PLAIN, Frame, FrameDefectError, decode_frame, frames
from dshd.storage.jsonl.index import SeqIndex
from dshd.storage.jsonl.log import Taken
from dshd.storage.jsonl.rows import RowDefectError, is_object, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_protocol.vocabulary import Event
    from dshd.storage.jsonl.scan import Known
    from dshd.storage.jsonl.source import Source

_PIECE = 256 * 1024
_CRC_PIECE = 1024 * 1024
SHARED_FROM = 1024 * 1024
"""Of a smaller log blocks are not worth sharing."""
_PLAIN_FRAME = 0x04  # descriptor: a checksum, no content size, a window
_MOST_SIZED = 12
_LONGEST = 8000  # what every reader takes in at once


@dataclass(frozen=True, slots=True)
class Lent:
    """An open log, for as long as it is being copied.

    Attributes:
        source: Where its bytes are.
        index: Where in it reading can begin.
        first: Where its header ends.
        limit: Where what may be copied ends.
        known: A place at which the CRC-32 of everything since `first` is known.
    """

    source: Source
    index: SeqIndex
    first: int
    limit: int
    known: Known | None


class Cut(NamedTuple):
    """Where a copy ends.

    Attributes:
        offset: The bytes from behind the header up to here are taken over.
        seq: How many events they hold.
        rows: What is written again behind them: rows with their newlines.
    """

    offset: int
    seq: int
    rows: bytes


def find_cut(lent: Lent, end: int) -> Cut:
    """Return where the first `end` events of a log end.

    Raises:
        LogCorruptError: They cannot be reached from the last place in front of them at which reading can begin.
    """
    offset, seq = lent.index.locate(end)
    cut = Cut(max(offset, lent.first), seq, b"")
    path = lent.source.path
    try:
        pieces = _pieces(lent, cut.offset)
        while cut.seq < end:
            behind, text = next(pieces, (cut.offset, b""))
            if not text and behind == cut.offset:
                break
            rows, seq = _below(text, cut.seq, end)
            if rows != text:
                return Cut(cut.offset, cut.seq, rows)
            cut = Cut(behind, seq, b"")
    except (FrameDefectError, RowDefectError) as defect:
        raise corrupt(path, cut.offset, str(defect), expected=cut.seq) from defect
    if cut.seq != end:
        reason = f"its first {end} events are not there to be copied"
        raise corrupt(path, cut.offset, reason, expected=cut.seq)
    return cut


def _pieces(lent: Lent, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield whole rows, and the offset behind them, where no row goes on."""
    return _framed(lent, offset) if lent.source.zstd else _lines(lent, offset)


def _framed(lent: Lent, offset: int) -> Iterator[tuple[int, bytes]]:
    text = b""
    for frame in frames(lent.source.pread, offset, lent.limit):
        text += decode_frame(frame)
        if not text or text.endswith(b"\n"):
            yield frame.end, text
            text = b""
        elif len(text) > MAX_PLAIN:
            raise FrameDefectError("refused", frame.offset, "a row is longer than 64 MiB")


def _lines(lent: Lent, offset: int) -> Iterator[tuple[int, bytes]]:
    at, pending = offset, b""
    while at < lent.limit:
        piece = lent.source.pread(min(max(_PIECE, len(pending)), lent.limit - at), at)
        if not piece:
            return
        at += len(piece)
        text = pending + piece
        whole = text.rfind(b"\n") + 1
        pending = text[whole:]
        if whole:
            yield at - len(pending), text[:whole]
        if len(pending) > MAX_PLAIN:
            raise RowDefectError("a row is longer than 64 MiB")


def _below(text: bytes, seq: int, end: int) -> tuple[bytes, int]:
    """Return the rows of `text`, which begins at `seq`, up to seq `end`, and the seq behind them.

    Raises:
        RowDefectError: A row is not what stands there in a good log.
    """
    at = 0
    while at < len(text) and seq < end:
        behind = text.index(b"\n", at) + 1
        found = unpack(text[at : behind - 1])
        first = next(found)
        if not is_object(first) or first.get("seq") != seq:
            raise RowDefectError(f"a row that does not begin with seq {seq}")
        wanted = list(islice(chain((first,), found), end - seq))
        seq += len(wanted)
        if next(found, None) is not None:
            return text[:at] + rows_of(wanted), seq
        at = behind
    return text[:at], seq


def rows_of(events: list[Event]) -> bytes:
    """Return events as rows, each with its newline."""
    return b"".join(row + b"\n" for row in pack(events))


def taken(lent: Lent, cut: Cut) -> Taken:
    """Return what of a log is taken over as it is.

    Raises:
        OSError: It had to be read for its checksum, and could not be.
    """
    size = cut.offset - lent.first
    known = lent.known
    if known is not None and known.size == cut.offset:
        return Taken(lent.source.fd, lent.first, size, known.crc)
    at, crc = lent.first, 0
    while at < cut.offset:
        piece = lent.source.pread(min(_CRC_PIECE, cut.offset - at), at)
        if not piece:
            raise corrupt(lent.source.path, at, "it ends there")
        crc = crc32(piece, crc)
        at += len(piece)
    return Taken(lent.source.fd, lent.first, size, crc)


def moved(lent: Lent, cut: Cut, first: int) -> SeqIndex:
    """Return what is known of the copied part's positions, in a log whose header ends at `first`."""
    index = SeqIndex([(first, 0)])
    for offset, seq in lent.index.before(cut.offset):
        index.add(offset - lent.first + first, seq)
    if cut.offset > lent.first:
        index.add(cut.offset - lent.first + first, cut.seq)
    return index


def padded(header: bytes, wanted: int, *, zstd: bool) -> bytes:
    """Return a header that means the same and ends `wanted` bytes behind a multiple of a block, as its source's does.

    Behind a header that ends elsewhere no file system could share a block. A line gets spaces in front of its end, a
    frame gets blocks without content, and the room for a stated content size where three bytes a block do not fit.
    """
    missing = (wanted - len(header)) % BLOCK
    if not zstd:
        return header[:-1] + b" " * missing + b"\n"
    if 0 < missing < _MOST_SIZED:
        missing += BLOCK
    size_bytes = {0: 0, 1: 4, 2: 8}[missing % 3]
    empty = (missing - size_bytes) // 3
    if header[4] != _PLAIN_FRAME or not empty or len(header) + missing > _LONGEST:
        return header
    return _with_empty_blocks(header, size_bytes, empty)


def _with_empty_blocks(frame: bytes, size_bytes: int, empty: int) -> bytes:
    """Put a stated content size and blocks without content into a frame of one block."""
    block = int.from_bytes(frame[6:9], "little")
    kind, size = block >> 1 & 3, block >> 3
    behind = 9 + (1 if kind == 1 else size)
    if not block & 1 or len(frame) != behind + 4:
        return frame
    content = decode_frame(Frame(0, frame, 1))
    flag = {0: 0, 4: 0x80, 8: 0xC0}[size_bytes]
    head = frame[:4] + bytes([_PLAIN_FRAME | flag]) + frame[5:6]
    head += len(content).to_bytes(8, "little")[:size_bytes]
    first = (block & ~1).to_bytes(3, "little") + frame[9:behind]
    return head + first + b"\0\0\0" * (empty - 1) + b"\1\0\0" + frame[behind:]
