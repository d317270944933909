"""The Zstandard container: one frame a batch, written as the format has it and read as hostile input.

The rule that holds here: nothing of a frame reaches libzstd before the frame's structure, its window and the most
that it can decode to have been bounded from its headers. The decompressor itself obeys whatever content size a header
states, and passes over truncation and trailing bytes in silence; so frames are cut out by us and given to it singly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

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
_OWN_WINDOW = 2 * 1024 * 1024
_MAX_BLOCK = 128 * 1024
_READ_AHEAD = 256 * 1024
_HOP = 4096
_MAX_FRAME = MAX_PLAIN + 1024 * 1024
_MAX_BLOCKS = 1 << 20
_MAX_EMPTY = 1024
_MAX_CANDIDATES = 256
_DICTIONARY_BYTES = (0, 1, 2, 4)
_MOST_IDLE = 4
_CHUNK = 16 * 1024
_idle: list[zstandard.ZstdDecompressor] = []
"""Decompressors that nobody uses: to make one takes five times as long as to decode a small frame. From any thread."""

DefectKind = Literal["incomplete", "garbage", "invalid", "refused"]


class FrameDefectError(ValueError):
    """What stands at an offset is not a good frame.

    Attributes:
        kind: `incomplete` the file ends inside it; `garbage` it is no frame; `invalid` it does not decode, or not to
            what its checksum says; `refused` it is a frame of a sort that no writer of this format makes.
        offset: Where it begins.
        reason: In words.
        end: Where it ends, where its structure is whole.
    """

    def __init__(
        self, kind: DefectKind, offset: int, reason: str, *, end: int | None = None
    ) -> None:
        super().__init__(f"{reason} at byte {offset}")
        self.kind: DefectKind = kind
        self.offset = offset
        self.reason = reason
        self.end = end


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
        # its buffer is a small one: a large one would be asked of the kernel, and given back, for every frame
        stream: Any = compressor.chunker(chunk_size=_CHUNK)  # untyped in zstandard
        frame = b"".join([*stream.compress(plain), *stream.finish()])
        self._idle.append(compressor)
        return frame


def _header_bytes(descriptor: int) -> int:
    """Return the length of the part between the descriptor and the first block."""
    single = bool(descriptor & 0x20)
    flag = descriptor >> 6
    content_size = (1 if single else 0) if flag == 0 else 1 << flag
    return (0 if single else 1) + _DICTIONARY_BYTES[descriptor & 0x03] + content_size


def _check_block(offset: int, kind: int, size: int) -> None:
    if kind == 3:  # noqa: PLR2004  # the reserved block type of RFC 8878
        raise FrameDefectError("garbage", offset, "reserved block type")
    if size > _MAX_BLOCK:
        raise FrameDefectError("garbage", offset, "block longer than 128 KiB")


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
        _check_block(offset, kind, size)
        position += 3 + (1 if kind == 1 else size)
        blocks += 1
    if descriptor & 0x04:
        position += 4
    return (position, blocks) if position <= len(buffer) else None


def frames(pread: Pread, offset: int, limit: int, *, ahead: int = _READ_AHEAD) -> Iterator[Frame]:
    """Yield the frames between two offsets of a file, without decoding them; reads `ahead` bytes at a time.

    A frame longer than that is measured before it is read, so that only what has an end takes memory.

    Raises:
        FrameDefectError: `garbage`; or `incomplete` where the last reaches past `limit`; or `refused` for its length.
    """
    buffer, start = b"", 0
    while offset < limit:
        found = frame_end(buffer, start, offset)
        held = len(buffer) - start
        wanted = min(ahead, limit - offset) - held
        if found is not None:
            end, blocks = found
            frame = Frame(offset, buffer[start:end], blocks)
            start = end
        elif wanted > 0:
            more = pread(wanted, offset + held)
            if not more:
                raise FrameDefectError("incomplete", offset, "unfinished frame")
            buffer, start = buffer[start:] + more, 0
            continue
        else:
            frame = _long_frame(pread, offset, limit)
            buffer, start = b"", 0
        offset = frame.end
        yield frame


def _long_frame(pread: Pread, offset: int, limit: int) -> Frame:
    """Measure a frame block by block, then read it."""
    end, blocks = _far_end(pread, offset, limit)
    if end - offset > _MAX_FRAME:
        reason = "frame longer than 65 MiB"
        raise FrameDefectError("refused", offset, reason, end=end)
    content = b""
    while len(content) < end - offset:
        more = pread(end - offset - len(content), offset + len(content))
        if not more:
            raise FrameDefectError("incomplete", offset, "unfinished frame")
        content += more
    return Frame(offset, content, blocks)


def _far_end(pread: Pread, offset: int, limit: int) -> tuple[int, int]:
    """Return the offset behind a frame and its number of blocks, from the blocks' headers alone."""
    window, base = pread(min(_HOP, limit - offset), offset), offset
    if len(window) < len(MAGIC) + 1:
        raise FrameDefectError("incomplete", offset, "unfinished frame")
    descriptor = window[4]
    position = offset + 5 + _header_bytes(descriptor)
    blocks, empty, last = 0, 0, False
    while not last:
        if position + 3 > base + len(window):
            window, base = pread(max(0, min(_HOP, limit - position)), position), position
            if len(window) < 3:  # noqa: PLR2004  # a block header's length
                raise FrameDefectError("incomplete", offset, "unfinished frame")
        block = int.from_bytes(window[position - base : position - base + 3], "little")
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        _check_block(offset, kind, size)
        empty = 0 if size else empty + 1
        if empty > _MAX_EMPTY:
            raise FrameDefectError("garbage", offset, "a run of empty blocks")
        if blocks > _MAX_BLOCKS:
            raise FrameDefectError("refused", offset, "frame of more than a million blocks")
        position += 3 + (1 if kind == 1 else size)
        blocks += 1
    position += 4 if descriptor & 0x04 else 0
    if position > limit:
        raise FrameDefectError("incomplete", offset, "unfinished frame")
    return position, blocks


def decode_frame(frame: Frame) -> bytes:
    """Return a frame's content; its checksum, where it has one, has been verified.

    Raises:
        FrameDefectError: `refused` or `invalid`.
    """

    def defect(kind: DefectKind, reason: str) -> FrameDefectError:
        return FrameDefectError(kind, frame.offset, reason, end=frame.end)

    try:
        stated = zstandard.get_frame_parameters(frame.content)
    except zstandard.ZstdError as error:
        raise defect("invalid", f"frame header: {error}") from error
    sized = stated.content_size != zstandard.CONTENTSIZE_UNKNOWN
    if stated.dict_id:
        raise defect("refused", "frame needs a dictionary")
    if stated.window_size > (MAX_PLAIN if sized else MAX_WINDOW):
        raise defect("refused", "frame window over 8 MiB")
    if sized and stated.content_size > MAX_PLAIN:
        raise defect("refused", "frame states more than 64 MiB of content")
    bound = frame.blocks * _MAX_BLOCK
    if sized and stated.content_size > bound:
        raise defect("invalid", "frame states more than its blocks hold")
    try:
        return _decompressed(frame.content, min(bound, MAX_PLAIN), stated.window_size)
    except zstandard.ZstdError as error:
        if bound > MAX_PLAIN:
            raise defect("refused", "frame does not decode within 64 MiB") from error
        raise defect("invalid", "frame failed validation") from error


def _decompressed(content: bytes, most: int, window: int) -> bytes:
    """Decompress with one that is idle; one that has met a bad frame, or a large window, is not kept."""
    try:
        decompressor = _idle.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    plain = decompressor.decompress(content, max_output_size=most, allow_extra_data=False)
    if len(_idle) < _MOST_IDLE and window <= _OWN_WINDOW:
        _idle.append(decompressor)
    return plain


class Readable(Protocol):
    """What frames are looked for in."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read at an offset."""
        ...

    def next_data(self, offset: int) -> int | None:
        """Return where, at or after `offset`, bytes are stored; None where there are no more."""
        ...


def good_frame_after(
    source: Readable, offset: int, limit: int, proves: Callable[[Frame, bytes], bool]
) -> int | None:
    """Return where, at or after `offset`, a frame stands that `proves` takes with its content; None where none does.

    A batch is written only when the one before it is durable: a good frame behind a bad place proves that the bad place
    was acknowledged once. Text that looks like a frame cannot be meant: the magic's last byte is in no UTF-8 text.
    """
    candidates = 0
    for at in _magics(source, offset, limit):
        candidates += 1
        if candidates > _MAX_CANDIDATES:
            return at  # too odd to be a torn write: nothing is cut on a guess
        try:
            frame = next(frames(source.pread, at, limit))
            if proves(frame, decode_frame(frame)):
                return at
        except FrameDefectError:
            continue
    return None


def _magics(source: Readable, offset: int, limit: int) -> Iterator[int]:
    carried = b""
    while offset < limit:
        stored = source.next_data(offset)
        if stored is None:
            return
        if stored > offset:  # no magic holds a zero: none begins before a hole and ends behind it
            carried, offset = b"", stored
            continue
        piece = source.pread(min(_READ_AHEAD, limit - offset), offset)
        if not piece:
            return
        window, base = carried + piece, offset - len(carried)
        at = window.find(MAGIC)
        while at >= 0:
            yield base + at
            at = window.find(MAGIC, at + 1)
        carried = window[-3:]
        offset += len(piece)
