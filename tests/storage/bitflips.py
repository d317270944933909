"""Flips the bits of a log of 64 KiB, one at a time, and looks what is made of it.

Usage: `PYTHONPATH=tests python tests/storage/bitflips.py zstd|none [STEP]`: every STEP-th bit, by default every one.
The derived file knows of three quarters of the log: what is flipped there must be refused for writing, with the bytes
untouched; behind it a flip may cost the last batch and no other. What is read is always what was written, or refused:
but for a raw log, which has no checksum of its own, behind the bound.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dsh_protocol.errors import FormatUnsupportedError, LogCorruptError
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from storage.failing import HastyDisk
from storage.samples import HEADER, event

if TYPE_CHECKING:
    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.jsonl.store import JsonlStore

Event = dict[str, Any]

SIZE = 64 * 1024
REFUSED = (LogCorruptError, FormatUnsupportedError)


class Log(NamedTuple):
    """A log to flip bits of."""

    path: Path
    store: JsonlStore
    events: list[Event]
    header: int
    bound: int
    last: int
    content: bytes

    @property
    def raw(self) -> bool:
        """Whether it has no checksums of its own."""
        return self.path.name == "session.jsonl"


def made(root: Path, compression: Compression) -> Log:
    """Make a log of at least 64 KiB whose derived file lags behind."""
    store = open_store(root, compression=compression, disk=HastyDisk())
    sent: list[Event] = []
    bound = last = 0
    with closing(store.create(HEADER)) as handle:
        handle.flush()
        header = handle.size_bytes
        while handle.size_bytes < SIZE:
            last = handle.size_bytes
            seqs = range(len(sent), len(sent) + 8)
            texts = (hashlib.sha512(str(seq).encode()).hexdigest() for seq in seqs)
            one = [event(seq, text=text * 2) for seq, text in zip(seqs, texts, strict=True)]
            handle.append(one)
            sent += one
            if not bound and handle.size_bytes > SIZE * 3 // 4:
                assert handle.keep(Snapshot(len(sent), b"state", b"{}"))
                bound = handle.size_bytes
    path = next(root.rglob("session.jsonl*"))
    return Log(path, store, sent, header, bound, last, path.read_bytes())


def read(log: Log) -> tuple[list[Event], bool]:
    """Read as far as it goes. Returns the events, and whether it was refused there."""
    events: list[Event] = []
    try:
        with closing(log.store.open("s1", "read")) as handle:
            events += handle.read()
    except REFUSED:
        return events, True
    return events, False


class WrongError(Exception):
    """Something was made of a flipped bit that must not be."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise WrongError(what)


def flip(log: Log, bit: int) -> None:
    """Flip one bit, look, and put it back. Raises WrongError."""
    at = bit // 8
    fd = os.open(log.path, os.O_RDWR)
    try:
        os.pwrite(fd, bytes([log.content[at] ^ 1 << bit % 8]), at)
        _judge_reading(log, at)
        _judge_writing(log, at)
    finally:
        os.ftruncate(fd, 0)
        os.pwrite(fd, log.content, 0)
        os.close(fd)
        for copy in log.path.parent.glob("torn-*.bin"):
            copy.unlink()


def _judge_reading(log: Log, at: int) -> None:
    events, refused = read(log)
    same = events == log.events[: len(events)]
    below = log.header <= at < log.bound
    if log.raw:
        require(same or refused or not below, "wrong data was read")
    else:
        require(same, "wrong data was read")
    require(refused or not below, "reading below the bound told nothing")


def _judge_writing(log: Log, at: int) -> None:
    before = log.path.read_bytes()
    try:
        with closing(log.store.open("s1", "write")) as handle:
            require(at >= log.bound, "it was opened for writing, with a flip below the bound")
            found = list(handle.read())
    except REFUSED:
        require(log.path.read_bytes() == before, "a refusal has changed the log")
        return
    if not log.raw:
        require(found == log.events[: len(found)], "wrong data was taken over")
        whole = len(found) == len(log.events)
        require(whole or at >= log.last, "a batch that was not the last was dropped")


def sweep(root: Path, compression: Compression, step: int) -> tuple[int, list[str]]:
    """Flip every `step`-th bit. Returns how many, and what was wrong."""
    log = made(root, compression)
    bits = range(0, len(log.content) * 8, step)
    wrong: list[str] = []
    for bit in bits:
        try:
            flip(log, bit)
        except WrongError as error:
            wrong.append(f"bit {bit}: {error}")
    return len(bits), wrong


def main(compression: Compression, step: int) -> int:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        count, wrong = sweep(Path(folder, "root"), compression, step)
    sys.stdout.write(f"{compression}: {count} bits flipped, {len(wrong)} wrong\n")
    sys.stdout.writelines(f"{line}\n" for line in wrong[:20])
    return 1 if wrong else 0


if __name__ == "__main__":
    every = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    sys.exit(main(cast("Compression", sys.argv[1]), every))
