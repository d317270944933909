"""The derived file beside a log, `derived.bin`: what was acknowledged, where its frames begin, what they come to.

The rule that holds here: everything in it can be made again from the log, but for one thing: that the bytes below its
bound were acknowledged. So it is believed only where it is whole and its log proves to be the one it was made of, it
is replaced whole and durable, and a bound is written only for bytes that are durable already.
"""

from __future__ import annotations

import errno
import secrets
import stat
import struct
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from dshd.storage.files import CREATE, READ, write_all
from dshd.storage.jsonl.faults import corrupt
from dshd.storage.jsonl.frames import Frame, FrameDefectError, decode_frame, frame_end
from dshd.storage.jsonl.index import MOST, Position
from dshd.storage.jsonl.scan import Known
from dshd.storage.store import Snapshot

if TYPE_CHECKING:
    import os

    from dsh_protocol.errors import LogCorruptError
    from dshd.storage.files import Disk
    from dshd.storage.jsonl.source import Source

DERIVED = "derived.bin"
_MAGIC = b"dshd\0drv"
_VERSION = 1
_PREFIX = struct.Struct("<8sII4Q")  # magic, version, reserved, the lengths of the four parts
_PAIR = struct.Struct("<QQ")
_DIGEST = 16
_TABLE = _PREFIX.size + 5 * _DIGEST
_FRONT = 8 * 1024
_MOST_BYTES = (64 * 1024, 4 * 1024 * 1024, 16 * MOST, 256 * 1024 * 1024)
_TAIL = 4096
_RACY_NS = 20_000_000
_NOT_A_FILE = frozenset(
    {errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EACCES, errno.EPERM}
)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]


class Head(msgspec.Struct, frozen=True):
    """Of which log the file was made, and when.

    Attributes:
        header: Digest of the log's bytes up to `first`, where its header ends.
        first: See `header`.
        size: The bound: every byte of the log below it was durable when this was written.
        events: How many events stand below the bound.
        crc: CRC-32 of the bytes from `first` to the bound.
        tail: Digest of the last of them, 4 KiB at most.
        revision: Device, inode, size, mtime and ctime of the log, at that moment.
    """

    header: str
    first: Count
    size: Count
    events: Count
    crc: int
    tail: str
    revision: tuple[int, int, int, int, int]


class Derived(NamedTuple):
    """One derived file.

    Attributes:
        summary: Opaque to the store; empty where none was kept.
        positions: Places below the bound at which reading can begin.
        state: Opaque to the store, as one frame; empty where none was kept, or it was not asked for.
        written_ns: The file's own mtime.
    """

    head: Head
    summary: bytes
    positions: tuple[Position, ...]
    state: bytes
    written_ns: int = 0

    @property
    def known(self) -> Known:
        """The bound, as reading wants it."""
        return Known(self.head.size, self.head.events, self.head.crc)

    @property
    def snapshot(self) -> Snapshot | None:
        """What the sessions kept here; None where they kept nothing, or nothing that can be read."""
        try:
            found = frame_end(self.state, 0, 0)
            if found is None or found[0] != len(self.state):
                return None
            state = decode_frame(Frame(0, self.state, found[1]))
        except FrameDefectError:
            return None
        return Snapshot(self.head.events, state, self.summary)

    def is_level(self, found: os.stat_result) -> bool:
        """Whether the log has not been touched since: by its revision, and longer ago than its clock's step."""
        if revision_of(found) != self.head.revision:
            return False
        return max(found.st_mtime_ns, found.st_ctime_ns) < self.written_ns - _RACY_NS


def revision_of(found: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return what changes with every change of a file."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def digest_of(data: bytes) -> str:
    """Return the digest by which parts of a log are recognised."""
    return blake2b(data, digest_size=_DIGEST).hexdigest()


def tail_of(source: Source, first: int, size: int) -> str:
    """Return the digest of the last bytes below `size`, 4 KiB at most and none of the header's."""
    start = max(first, size - _TAIL)
    return digest_of(source.pread(size - start, start) if size > start else b"")


# ---------------------------------------------------------------------- reading


def read_derived(disk: Disk, directory: int, *, whole: bool) -> Derived | None:
    """Return the file in an open session directory; None where there is none that can be believed.

    Args:
        disk: Where it lies.
        directory: Open.
        whole: With index and state; without, only the head and the summary are read and proven.

    Raises:
        OSError: It is there and the disk fails to give it: what it says is then not known to be nothing.
    """
    try:
        fd = disk.open(DERIVED, READ, at=directory)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            return None
        raise
    try:
        found = disk.fstat(fd)
        return _parsed(disk, fd, found, whole=whole) if stat.S_ISREG(found.st_mode) else None
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None
    finally:
        disk.close(fd)


def _parsed(disk: Disk, fd: int, found: os.stat_result, *, whole: bool) -> Derived | None:
    front = disk.pread(fd, _FRONT, 0)
    parts = _table(front, found.st_size)
    if parts is None:
        return None
    contents: list[bytes] = []
    at = _TABLE
    for length, digest in parts if whole else parts[:2]:
        content = front[at : at + length]
        while len(content) < length:
            more = disk.pread(fd, length - len(content), at + len(content))
            content += more
            if not more:
                break
        if _digest(content) != digest:
            return None
        contents.append(content)
        at += length
    head = msgspec.json.decode(contents[0], type=Head)
    positions = _read_positions(contents[2]) if whole else ()
    state = contents[3] if whole else b""
    return Derived(head, contents[1], positions, state, found.st_mtime_ns)


def _table(front: bytes, size: int) -> list[tuple[int, bytes]] | None:
    """Return the lengths and digests of the four parts, where a file of that size may hold them."""
    if (
        len(front) < _TABLE
        or _digest(front[: _TABLE - _DIGEST]) != front[_TABLE - _DIGEST : _TABLE]
    ):
        return None
    magic, version, _, *lengths = _PREFIX.unpack(front[: _PREFIX.size])
    if (magic, version) != (_MAGIC, _VERSION) or size != _TABLE + sum(lengths):
        return None
    if any(length > most for length, most in zip(lengths, _MOST_BYTES, strict=True)):
        return None
    if lengths[2] % _PAIR.size:
        return None
    starts = range(_PREFIX.size, _TABLE - _DIGEST, _DIGEST)
    digests = [front[start : start + _DIGEST] for start in starts]
    return list(zip(lengths, digests, strict=True))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST).digest()


def _read_positions(part: bytes) -> tuple[Position, ...]:
    return tuple(Position(offset, seq) for offset, seq in _PAIR.iter_unpack(part))


class Lineage(NamedTuple):
    """What the derived file says of the log that it was found beside.

    Attributes:
        known: The bound, where the file is this log's.
        positions: Where reading can begin, the bound last; empty unless what was acknowledged seems to be there.
        head: Of the file, likewise.
        loss: Why it is not.
    """

    known: Known | None = None
    positions: tuple[Position, ...] = ()
    head: Head | None = None
    loss: LogCorruptError | None = None

    def distrusted(self) -> Lineage:
        """Return the bound alone: for a log that may have been touched and is soon read from its beginning."""
        return self._replace(positions=(), head=None)


def lineage_of(derived: Derived | None, source: Source, first: int, size: int) -> Lineage:
    """Find out whether a derived file is of an open log, and the log still what it was.

    A file of another session, or of another log, says nothing. Of the log only the ends of what was acknowledged are
    looked at here.
    """
    if derived is None:
        return Lineage()
    head = derived.head
    same_header = head.first == first and digest_of(source.pread(first, 0)) == head.header
    same_tail = size >= head.size and tail_of(source, head.first, head.size) == head.tail
    if same_header and same_tail:
        bound = Position(head.size, head.events)
        return Lineage(derived.known, (*derived.positions, bound), head)
    if not same_header:
        if not same_tail or head.size == head.first:
            return Lineage()
        loss = _lost(source, 0, "its header is not the one that it was written with")
    elif size < head.size:
        text = f"the log is shorter than acknowledged ({size} of {head.size} bytes)"
        loss = _lost(source, size, text)
    else:
        text = f"the bytes before are not the ones that were acknowledged ({head.events} events)"
        loss = _lost(source, head.size, text)
    return Lineage(derived.known, loss=loss)


def _lost(source: Source, offset: int, text: str) -> LogCorruptError:
    return corrupt(source.path, offset, f"{text} (by {DERIVED} beside it)")


# ---------------------------------------------------------------------- writing


def derive(source: Source, first: int, known: Known) -> Head:
    """Return the head of a derived file for an open log whose bytes below `known.size` are durable.

    Raises:
        OSError: The log could not be looked at.
    """
    return Head(
        header=digest_of(source.pread(first, 0)),
        first=first,
        size=known.size,
        events=known.events,
        crc=known.crc,
        tail=tail_of(source, first, known.size),
        revision=revision_of(source.disk.fstat(source.fd)),
    )


def parts_of(derived: Derived) -> list[bytes]:
    """Return the four parts that the file is made of."""
    index = b"".join(_PAIR.pack(*position) for position in derived.positions)
    return [msgspec.json.encode(derived.head), derived.summary, index, derived.state]


def sealed(parts: list[bytes]) -> bytes:
    """Return the file's bytes: its parts, behind their lengths and digests."""
    prefix = _PREFIX.pack(_MAGIC, _VERSION, 0, *map(len, parts)) + b"".join(map(_digest, parts))
    return b"".join([prefix, _digest(prefix), *parts])


def write_derived(disk: Disk, directory: int, derived: Derived) -> None:
    """Replace the file, durable on return. Raises OSError; then the old file or the new one stands."""
    leftover = f"{DERIVED}.{secrets.token_hex(6)}.tmp"
    fd = disk.open(leftover, CREATE, at=directory)
    try:
        try:
            write_all(disk, fd, sealed(parts_of(derived)))
            disk.fsync(fd)
        finally:
            disk.close(fd)
        disk.rename(leftover, DERIVED, at=directory)
    except BaseException:
        with suppress(OSError):
            disk.unlink(leftover, at=directory)
        raise
    disk.fsync(directory)
