"""The Zstandard container: one frame a batch, written as the format has it and read as hostile input.

The rule that holds here: nothing of a frame reaches libzstd before the frame's structure, its window and the most
that it can decode to have been bounded from its headers. The decompressor itself obeys whatever content size a header
states, and passes over truncation and trailing bytes in silence; so frames are cut out by us and given to it singly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Pread = Callable[[int, int], bytes]
    """Reads (size, offset)."""

MAGIC = b"\x28\xb5\x2f\xfd"
LEVEL = 3
MAX_PLAIN = 64 * 1024 * 1024
"""What one frame may decode to. Also what one batch may hold, so that what is written can be read."""
MAX_WINDOW = 8 * 1024 * 1024
_MAX_BLOCK = 128 * 1024
_READ_AHEAD = 256 * 1024
_MAX_CANDIDATES = 256
_DICTIONARY_BYTES = (0, 1, 2, 4)

DefectKind = Literal["incomplete", "garbage", "invalid", "refused"]


class FrameDefectError(ValueError):
    """What stands at an offset is not a good frame.

    Attributes:
        kind: `incomplete` the file ends inside it; `garbage` it is no frame; `invalid` it does not decode, or not to
            what its checksum says; `refused` it is a frame of a sort that no writer of this format makes.
        offset: Where it begins.
        reason: In words.
    """

    def __init__(self, kind: DefectKind, offset: int, reason: str) -> None:
        super().__init__(f"{reason} at byte {offset}")
        self.kind: DefectKind = kind
        self.offset = offset
        self.reason = reason


class Frame(NamedTuple):
    """One frame, cut out of the file."""

    offset: int
    content: bytes
    blocks: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + len(self.content)

    @property
    def checksummed(self) -> bool:
        """Whether it carries a checksum of its content; ours always do."""
        return bool(self.content[4] & 0x04)


class FrameEncoder:
    """Makes frames. Usable from any thread; keeps as many compressors as were ever busy at once."""

    def __init__(self) -> None:
        self._idle: list[zstandard.ZstdCompressor] = []

    def encode(self, plain: bytes) -> bytes:
        """Return one frame: level 3, checksum, no content size, streamed (the bytes depend on that)."""
        try:
            compressor = self._idle.pop()
        except IndexError:
            compressor = zstandard.ZstdCompressor(
                level=LEVEL, write_checksum=True, write_content_size=False
            )
        stream = compressor.compressobj()
        frame = stream.compress(plain) + stream.flush()
        self._idle.append(compressor)
        return frame


def _header_bytes(descriptor: int) -> int:
    """Return the length of the part between the descriptor and the first block."""
    single = bool(descriptor & 0x20)
    flag = descriptor >> 6
    content_size = (1 if single else 0) if flag == 0 else 1 << flag
    return (0 if single else 1) + _DICTIONARY_BYTES[descriptor & 0x03] + content_size


def frame_end(buffer: bytes, start: int, offset: int) -> tuple[int, int] | None:
    """Walk one frame's structure from `buffer[start]`, which stands at `offset` of the file.

    Returns:
        The position behind it and its number of blocks; None where the buffer ends first.

    Raises:
        FrameDefectError: It is `garbage`, whatever follows.
    """
    if len(buffer) - start < len(MAGIC):
        return None
    if buffer[start : start + 4] != MAGIC:
        raise FrameDefectError("garbage", offset, "invalid frame magic")
    if len(buffer) - start < len(MAGIC) + 1:
        return None
    descriptor = buffer[start + 4]
    if descriptor & 0x18:
        raise FrameDefectError("garbage", offset, "reserved frame-header bit")
    position = start + 5 + _header_bytes(descriptor)
    blocks, last = 0, False
    while not last:
        if len(buffer) < position + 3:
            return None
        block = int.from_bytes(buffer[position : position + 3], "little")
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == 3:  # noqa: PLR2004  # the reserved block type of RFC 8878
            raise FrameDefectError("garbage", offset, "reserved block type")
        if size > _MAX_BLOCK:
            raise FrameDefectError("garbage", offset, "block longer than 128 KiB")
        position += 3 + (1 if kind == 1 else size)
        blocks += 1
    if descriptor & 0x04:
        position += 4
    return (position, blocks) if position <= len(buffer) else None


def frames(pread: Pread, offset: int, limit: int, *, ahead: int = _READ_AHEAD) -> Iterator[Frame]:
    """Yield the frames between two offsets of a file, without decoding them; reads `ahead` bytes at a time.

    Raises:
        FrameDefectError: `garbage`, or `incomplete` where the last one reaches past `limit`.
    """
    buffer, start = b"", 0
    while offset < limit:
        found = frame_end(buffer, start, offset)
        if found is None:
            held = len(buffer) - start
            size = min(max(ahead, 2 * held), limit - offset) - held
            more = pread(size, offset + held) if size > 0 else b""
            if not more:
                raise FrameDefectError("incomplete", offset, "unfinished frame")
            buffer, start = buffer[start:] + more, 0
            continue
        end, blocks = found
        frame = Frame(offset, buffer[start:end], blocks)
        start, offset = end, offset + len(frame.content)
        yield frame


def decode_frame(frame: Frame) -> bytes:
    """Return a frame's content; its checksum, where it has one, has been verified.

    Raises:
        FrameDefectError: `refused` or `invalid`.
    """
    try:
        stated = zstandard.get_frame_parameters(frame.content)
    except zstandard.ZstdError as error:
        raise FrameDefectError("invalid", frame.offset, f"frame header: {error}") from error
    sized = stated.content_size != zstandard.CONTENTSIZE_UNKNOWN
    if stated.dict_id:
        raise FrameDefectError("refused", frame.offset, "frame needs a dictionary")
    if stated.window_size > (MAX_PLAIN if sized else MAX_WINDOW):
        raise FrameDefectError("refused", frame.offset, "frame window over 8 MiB")
    if sized and stated.content_size > MAX_PLAIN:
        raise FrameDefectError("refused", frame.offset, "frame states more than 64 MiB of content")
    bound = frame.blocks * _MAX_BLOCK
    if sized and stated.content_size > bound:
        raise FrameDefectError("invalid", frame.offset, "frame states more than its blocks hold")
    try:
        plain = zstandard.ZstdDecompressor().decompress(
            frame.content, max_output_size=min(bound, MAX_PLAIN), allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        if bound > MAX_PLAIN:
            reason = "frame does not decode within 64 MiB"
            raise FrameDefectError("refused", frame.offset, reason) from error
        raise FrameDefectError("invalid", frame.offset, "frame failed validation") from error
    return plain


def good_frame_after(pread: Pread, offset: int, limit: int) -> int | None:
    """Return where, at or after `offset`, a frame that decodes stands; None where none does.

    A batch is written only when the one before it is durable: a good frame behind a bad place proves that the bad place
    was acknowledged once. Text that looks like a frame cannot be meant: the magic's last byte is in no UTF-8 text.
    """
    candidates = 0
    for at in _magics(pread, offset, limit):
        candidates += 1
        if candidates > _MAX_CANDIDATES:
            return at  # too odd to be a torn write: nothing is cut on a guess
        try:
            decode_frame(next(frames(pread, at, limit)))
        except FrameDefectError:
            continue
        return at
    return None


def _magics(pread: Pread, offset: int, limit: int) -> Iterator[int]:
    carried = b""
    while offset < limit:
        piece = pread(min(_READ_AHEAD, limit - offset), offset)
        if not piece:
            return
        window, base = carried + piece, offset - len(carried)
        at = window.find(MAGIC)
        while at >= 0:
            yield base + at
            at = window.find(MAGIC, at + 1)
        carried = window[-3:]
        offset += len(piece)
