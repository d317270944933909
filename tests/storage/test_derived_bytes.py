"""The derived file to the byte: how it is laid out, how much it may hold, and which log it is believed to be of."""

from __future__ import annotations

import os
import struct
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

import msgspec
import pytest

from dshd.storage.files import RealDisk
from dshd.storage.jsonl import derived as under_test
from dshd.storage.jsonl.derived import (
    DERIVED,
    Derived,
    Head,
    Lineage,
    derive,
    digest_of,
    lineage_of,
    parts_of,
    read_derived,
    revision_of,
    sealed,
    tail_of,
)
from dshd.storage.jsonl.frames import FrameEncoder
from dshd.storage.jsonl.index import Position
from dshd.storage.jsonl.scan import Known
from dshd.storage.jsonl.source import Source
from dshd.storage.store import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = Head("00", 10, 20, 3, 4, "11", (1, 2, 3, 4, 5))
FIRST = 100
"""Where the header of the logs here ends."""


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def laid_out(*parts: bytes, magic: bytes = b"dshd\0drv", version: int = 1) -> bytes:
    front = (
        magic + struct.pack("<II4Q", version, 0, *map(len, parts)) + b"".join(map(digest, parts))
    )
    return front + digest(front) + b"".join(parts)


PARTS = [msgspec.json.encode(HEAD), b"summary", struct.pack("<4Q", 10, 0, 15, 2), b"state"]


class Folder:
    """A session's directory, whose descriptors are counted."""

    def __init__(self, path: Path) -> None:
        self.path = path / DERIVED
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def read(self, content: bytes, *, whole: bool = True) -> Derived | None:
        self.path.write_bytes(content)
        return self.reread(whole=whole)

    def reread(self, *, whole: bool = True) -> Derived | None:
        before = [*Path("/proc/self/fd").iterdir()]
        found = read_derived(RealDisk(), self.fd, whole=whole)
        assert [*Path("/proc/self/fd").iterdir()] == before
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    os.close(made.fd)


def test_the_file_is_laid_out_as_it_always_was(folder: Folder) -> None:
    made = Derived(HEAD, b"summary", (Position(10, 0), Position(15, 2)), b"state")
    assert parts_of(made) == PARTS
    assert sealed(PARTS) == laid_out(*PARTS)
    found = folder.read(laid_out(*PARTS))
    assert found is not None
    assert found._replace(written_ns=0) == made
    assert found.written_ns == folder.path.stat().st_mtime_ns
    assert found.known == Known(20, 3, 4)


def test_of_another_version_or_with_a_byte_too_many_or_few_it_says_nothing(folder: Folder) -> None:
    whole = laid_out(*PARTS)
    wrong = [
        *(laid_out(*PARTS, version=version) for version in (0, 2)),
        laid_out(*PARTS, magic=b"dshd\0drw"),
        *(whole + b"\0", whole[:-1], whole[:60], b""),
        *(laid_out(*PARTS[:2], bytes(length), PARTS[3]) for length in (1, 8, 15, 17)),
        laid_out(b'{"a":' * 9000, *PARTS[1:]),
        *(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, 144, 5)),
    ]
    for content in wrong:
        assert folder.read(content) is None
        assert folder.read(content, whole=False) is None
    assert folder.read(whole) is not None


def test_only_what_is_asked_for_has_to_be_whole(folder: Folder) -> None:
    for at in (1, 2, 3):
        rotten = [*PARTS]
        rotten[at] = bytes(len(PARTS[at]))
        content = laid_out(*PARTS)[: -sum(map(len, PARTS))] + b"".join(rotten)
        assert folder.read(content) is None
        assert (folder.read(content, whole=False) is None) == (at == 1)


def test_each_part_may_have_its_length_and_no_byte_more(folder: Folder) -> None:
    assert vars(under_test)["_MOST_BYTES"] == (2**16, 2**22, 2**16, 2**28)
    padded = PARTS[0] + b" " * (2**16 - len(PARTS[0]))
    places = b"".join(struct.pack("<2Q", at + 1, at) for at in range(4096))
    taken = folder.read(laid_out(padded, bytes(2**22), places, b""))
    assert taken is not None
    assert (taken.head, len(taken.summary), len(taken.positions)) == (HEAD, 2**22, 4096)
    for wrong in (
        [padded + b" ", b"", b"", b""],
        [PARTS[0], bytes(2**22 + 1), b"", b""],
        [PARTS[0], b"", places + bytes(16), b""],
    ):
        assert folder.read(laid_out(*wrong)) is None


def test_what_is_no_plain_file_says_nothing(folder: Folder) -> None:
    for make in (os.mkdir, os.mkfifo):
        make(folder.path)
        assert folder.reread() is None
        (os.rmdir if make is os.mkdir else os.unlink)(folder.path)
    folder.path.symlink_to("/etc/passwd")
    assert folder.reread() is None


def test_a_state_is_given_only_as_one_whole_frame() -> None:
    frame = FrameEncoder().encode(b"the state")
    made = Derived(HEAD, b"summary", (), frame)
    assert made.snapshot is not None
    assert made.snapshot == Snapshot(3, b"the state", b"summary")
    for state in (b"", b"x", frame[:-1], frame + frame, frame + b"\0", frame[:-1] + b"\0"):
        assert made._replace(state=state).snapshot is None


def status(**more: int) -> os.stat_result:
    usual = {"st_dev": 1, "st_ino": 2, "st_size": 3, "st_mtime_ns": 4, "st_ctime_ns": 5}
    return cast("os.stat_result", SimpleNamespace(**{**usual, **more}))


def test_a_log_is_level_when_nothing_has_changed_for_20_ms_before_the_file_was_written() -> None:
    assert revision_of(status()) == (1, 2, 3, 4, 5)
    level = Derived(HEAD, b"", (), b"", written_ns=20_000_006)
    assert level.is_level(status())
    assert not level._replace(written_ns=20_000_005).is_level(status())
    assert not Derived(HEAD, b"", (), b"").is_level(status())
    for name in ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"):
        assert level.is_level(status(**{name: 0})) is False
    late = Derived(HEAD, b"", (), b"", written_ns=20_000_006)
    newer = late._replace(head=msgspec.structs.replace(HEAD, revision=(1, 2, 3, 6, 5)))
    assert not newer.is_level(status(st_mtime_ns=6))
    assert newer._replace(written_ns=20_000_007).is_level(status(st_mtime_ns=6))


# ---------------------------------------------------------------------- which log it is of


class Log:
    """A log of bytes, and the derived file that was made of it."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path / "log"
        self.content = bytes(at * 7 % 251 for at in range(size))
        self.path.write_bytes(self.content)
        self.fd = os.open(self.path, os.O_RDWR)
        self.source = Source(RealDisk(), self.fd, "log", zstd=False)
        self.known = Known(size, 9, crc32(self.content[FIRST:]))
        self.head = derive(self.source, FIRST, self.known)
        self.derived = Derived(self.head, b"", (Position(FIRST, 0),), b"")

    def lineage(self, content: bytes, first: int = FIRST) -> Lineage:
        self.path.write_bytes(content)
        return lineage_of(self.derived, self.source, first, len(content))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path, 6000)
    yield made
    os.close(made.fd)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def told(lineage: Lineage) -> Any:
    """What is told of a loss: where, and its first words."""
    assert lineage.loss is not None
    assert lineage.positions == ()
    assert lineage.head is None
    assert str(lineage.loss.facts["reason"]).endswith(f" (by {DERIVED} beside it)")
    return lineage.loss.facts["offset"], str(lineage.loss.facts["reason"])


def test_the_head_holds_the_ends_of_the_log_that_it_was_made_of(log: Log) -> None:
    assert log.head == Head(
        header=digest(log.content[:FIRST]).hex(),
        first=FIRST,
        size=6000,
        events=9,
        crc=log.known.crc,
        tail=digest(log.content[6000 - 4096 :]).hex(),
        revision=revision_of(log.path.stat()),
    )
    for size in (FIRST, FIRST + 1, FIRST + 4095, FIRST + 4096, FIRST + 4097):
        tail = log.content[max(FIRST, size - 4096) : size]
        assert tail_of(log.source, FIRST, size) == digest_of(tail) == digest(tail).hex()


def test_a_log_that_is_what_it_was_or_longer_is_known(log: Log) -> None:
    known = Lineage(log.known, (Position(FIRST, 0), Position(6000, 9)), log.head)
    for content in (log.content, log.content + b"more", flipped(log.content, 1000)):
        assert log.lineage(content) == known
    assert known.distrusted() == Lineage(log.known)
    assert lineage_of(None, log.source, FIRST, 6000) == Lineage()


def test_a_log_of_which_acknowledged_bytes_are_gone_or_others_is_lost(log: Log) -> None:
    for size in (5999, FIRST + 1, FIRST):
        lineage = log.lineage(log.content[:size])
        assert lineage.known == log.known
        at, reason = told(lineage)
        assert at == size
        assert reason.startswith(f"the log is shorter than acknowledged ({size} of 6000 bytes)")
    for content in (flipped(log.content, 5999), flipped(log.content, 6000 - 4096) + b"more"):
        at, reason = told(log.lineage(content))
        assert (at, reason[:45]) == (6000, "the bytes before are not the ones that were a")
        assert "(9 events)" in reason
    for content, first in ((flipped(log.content, 0), FIRST), (log.content, FIRST - 1)):
        at, reason = told(log.lineage(content, first))
        assert (at, reason[:40]) == (0, "its header is not the one that it was wr")


def test_a_log_with_another_header_and_other_bytes_is_another_log(log: Log, tmp_path: Path) -> None:
    other = flipped(flipped(log.content, 0), 5999)
    assert log.lineage(other) == Lineage()
    assert log.lineage(flipped(log.content, 0)[:5999]) == Lineage()
    empty = Log(tmp_path, FIRST)
    assert empty.lineage(empty.content).known == Known(FIRST, 9, 0)
    assert empty.lineage(flipped(empty.content, 0)) == Lineage(), "of nothing nothing is lost"
    os.close(empty.fd)
