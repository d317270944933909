"""An open log, and the header that it begins with.

The rule that holds here: a log that does not begin with one whole header is corrupt, and one of another version is told
apart from that. Nothing here writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dshd.storage.jsonl.faults import corrupt
from dshd.storage.jsonl.frames import FrameDefectError, decode_frame, frames
from dshd.storage.jsonl.vocabulary import parse_header

if TYPE_CHECKING:
    from dsh_protocol.events import Header
    from dshd.storage.files import Disk

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

    def next_data(self, offset: int) -> int | None:
        """Return where, at or after `offset`, bytes are stored; None where there are no more."""
        return self.disk.next_data(self.fd, offset)


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
