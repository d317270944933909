"""Promise 10: every bit of a log of 64 KiB is flipped, one at a time, and what is made of it is looked at.

`python -m crash.bitflips [STEP]` flips every STEP-th bit of a Zstandard and of a raw log on all processors. The
derived file knows of three quarters of the log: a flip there is refused, the bytes untouched; behind it a flip may cost
the last batch and no other, and what is cut stands beside the log. What is read is what was written, or is refused; but
for a raw log behind the bound, which has no checksum of its own.

The rule that holds here: every flip is judged by the store itself, opened twice, over a disk in memory. Only what does
not depend on the flip is not computed again: what a frame or a row that was not hit holds, where it stood.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from crash.proof import Result, Size
from dsh_protocol.errors import FormatUnsupportedError, LogCorruptError
from dshd.storage.jsonl import frames, rows, scan, vocabulary
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from properties.mortal_disk import MortalDisk
from storage.samples import HEADER, event
from support import events as make

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import ModuleType

    from dshd.storage.jsonl.frames import Frame
    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.jsonl.store import JsonlStore
    from properties.mortal_disk import Tree

Event = dict[str, Any]

SIZE = 64 * 1024
REFUSED = (LogCorruptError, FormatUnsupportedError)
ENCODINGS: tuple[Compression, ...] = ("zstd", "none")
_COMPUTED = frames.decode_frame, rows.unpack, vocabulary.stored_defect
_ROOT = Path("/memory")  # of the disk in memory
_STEPS: dict[Size, dict[Compression, int]] = {
    Size.QUICK: {"zstd": 64, "none": 64},
    Size.FULL: {"zstd": 1, "none": 64},
    Size.RELEASE: {"zstd": 1, "none": 1},
}


class Shelf(Protocol):
    """Where the log's folder lies, seen from outside."""

    def tree(self) -> Tree: ...

    def lay_out(self, tree: Tree) -> None: ...


class Log(NamedTuple):
    """A log to flip bits of.

    Attributes:
        tree: All files as they were left.
        path: The log's, in `tree`.
        bound: What the derived file knows of.
        last: Where the last batch begins.
    """

    store: JsonlStore
    shelf: Shelf
    tree: Tree
    path: str
    events: list[Event]
    bound: int
    last: int

    @property
    def content(self) -> bytes:
        """The log's bytes."""
        return self.tree[self.path] or b""

    @property
    def raw(self) -> bool:
        """Whether it has no checksums of its own."""
        return self.path.endswith(".jsonl")


def written(store: JsonlStore, shelf: Shelf) -> Log:
    """Write a log of at least 64 KiB whose derived file lags behind: rows of all sorts, batches of all sizes."""
    chosen = random.Random(64)  # noqa: S311  # the same log every time
    sent: list[Event] = []
    bound = last = 0
    with closing(store.create(HEADER)) as handle:
        while handle.size_bytes < SIZE:
            last = handle.size_bytes
            batch = list(_batch(chosen, len(sent)))
            handle.append(batch)
            sent += batch
            if not bound and handle.size_bytes > SIZE * 3 // 4:
                assert handle.keep(Snapshot(len(sent), b"state", b"{}"))
                bound = handle.size_bytes
    tree = shelf.tree()
    (path,) = (path for path in tree if "/session.jsonl" in path)
    return Log(store, shelf, tree, path, sent, bound, last)


def _batch(chosen: random.Random, first: int) -> Iterator[Event]:
    behind = first + chosen.randrange(1, 4)
    for seq in range(first, behind):
        yield event(seq, text=chosen.randbytes(chosen.choice((8, 300, 3000, 6000))).hex())
    if chosen.random() < 0.3:
        pieces = [make.chunk(chosen.randbytes(5).hex()) for _ in range(chosen.randrange(2, 9))]
        yield from make.stored(pieces, behind)


def memory_log(compression: Compression) -> Log:
    """Write the log on a disk in memory."""
    disk = MortalDisk()
    return written(open_store(_ROOT, compression=compression, disk=disk), disk)


# ---------------------------------------------------------------------- one flip


class WrongError(Exception):
    """Something was made of a flipped bit that must not be."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise WrongError(what)


def flip(log: Log, bit: int) -> str:
    """Flip one bit and judge what is made of it: "refused", "whole" or "cut". Raises WrongError."""
    at = bit // 8
    content = log.content
    hit = b"".join([content[:at], bytes([content[at] ^ 1 << bit % 8]), content[at + 1 :]])
    log.shelf.lay_out({**log.tree, log.path: hit})
    _judge_reading(log, at)
    return _judge_writing(log, at, hit)


def _judge_reading(log: Log, at: int) -> None:
    events: list[Event] = []
    refused = False
    try:
        with closing(log.store.open("s1", "read")) as handle:
            events += handle.read()
    except REFUSED:
        refused = True
    below = at < log.bound
    same = events == log.events[: len(events)]
    require(same or (log.raw and (refused or not below)), "wrong data was read")
    require(refused or not below, "reading below the bound told nothing")


def _judge_writing(log: Log, at: int, hit: bytes) -> str:
    try:
        with closing(log.store.open("s1", "write")) as handle:
            require(at >= log.bound, "it was opened for writing, with a flip below the bound")
            found = list(handle.read())
    except REFUSED:
        require(log.shelf.tree() == {**log.tree, log.path: hit}, "a refusal has changed something")
        return "refused"
    left = log.shelf.tree()
    aside = [content or b"" for path, content in left.items() if "/torn-" in path]
    require(b"".join([left[log.path] or b"", *aside]) == hit, "bytes were lost")
    whole = len(found) == len(log.events)
    if not log.raw:
        require(found == log.events[: len(found)], "wrong data was taken over")
        require(whole or at >= log.last, "a batch that was not the last was dropped")
    return "whole" if whole else "cut"


# ---------------------------------------------------------------------- many


class _Memory:
    """What the frames and rows of an unhurt log hold, learnt in one pass over it; anything else is computed as ever."""

    def __init__(self) -> None:
        self._frame_of, self._row_of, self._defect_of = _COMPUTED
        self._batches_of = scan.Walk.__dict__["_rows"]
        self._texts: dict[bytes, bytes] = {}
        self._values: dict[bytes, list[Any]] = {}
        self._batches: dict[tuple[bytes, int], list[list[Event]]] = {}
        self._sound: set[int] = set()

    def learn_frame(self, frame: Frame) -> bytes:
        return self._texts.setdefault(frame.content, self._frame_of(frame))

    def frame(self, frame: Frame) -> bytes:
        known = self._texts.get(frame.content)
        return self._frame_of(frame) if known is None else known

    def learn_row(self, line: bytes) -> Iterator[Any]:
        found = self._values.setdefault(line, list(self._row_of(line)))
        self._sound |= {id(one) for one in found if self._defect_of(one) is None}
        return iter(found)

    def row(self, line: bytes) -> Iterator[Any]:
        known = self._values.get(line)
        return self._row_of(line) if known is None else iter(known)

    def learn_batches(self, walk: scan.Walk, text: bytes, offset: int) -> Iterator[list[Event]]:
        found = self._batches.setdefault((text, walk.seq), [])
        for batch in self._batches_of(walk, text, offset):
            found.append(batch)
            yield batch

    def batches(self, walk: scan.Walk, text: bytes, offset: int) -> Iterator[list[Event]]:
        known = self._batches.get((text, walk.seq))
        if known is None:
            yield from self._batches_of(walk, text, offset)
            return
        for batch in known:
            walk.seq += len(batch)
            yield batch

    def defect(self, event: Event) -> tuple[str, bool] | None:
        return None if id(event) in self._sound else self._defect_of(event)


@contextmanager
def decoded_once(log: Log) -> Generator[None]:
    """Let the store take from memory what the unhurt frames and rows of a log hold, each where it stood."""
    memory = _Memory()

    def learn(walk: scan.Walk, text: bytes, offset: int) -> Iterator[list[Event]]:
        return memory.learn_batches(walk, text, offset)

    def batches(walk: scan.Walk, text: bytes, offset: int) -> Iterator[list[Event]]:
        return memory.batches(walk, text, offset)

    log.shelf.lay_out(log.tree)
    with (
        _instead(scan, decode_frame=memory.learn_frame, unpack=memory.learn_row),
        _instead(scan.Walk, _rows=learn),
        closing(log.store.open("s1", "read")) as handle,
    ):
        require(list(handle.read()) == log.events, "the log is not what was written")
    with (
        _instead(scan, decode_frame=memory.frame, unpack=memory.row),
        _instead(scan.Walk, _rows=batches),
        _instead(vocabulary, stored_defect=memory.defect),
    ):
        yield


@contextmanager
def _instead(holder: ModuleType | type, **functions: Any) -> Generator[None]:
    """Let a module or a class have other functions by these names for a while."""
    before = {name: vars(holder)[name] for name in functions}
    for name, function in functions.items():
        setattr(holder, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(holder, name, function)


class Swept(NamedTuple):
    """What many flips came to."""

    outcomes: dict[str, int]
    wrong: list[str]

    @property
    def flips(self) -> int:
        """How many bits were flipped."""
        return sum(self.outcomes.values())


def sweep(log: Log, bits: range, judge: Callable[[Log, int], str] = flip) -> Swept:
    """Flip bits of a log."""
    outcomes: dict[str, int] = {}
    wrong: list[str] = []
    for bit in bits:
        try:
            outcome = judge(log, bit)
        except WrongError as error:
            outcome = "wrong"
            wrong.append(f"{log.path}: bit {bit}: {error}")
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return Swept(outcomes, wrong)


def swept(compression: Compression, step: int, part: int = 0, parts: int = 1) -> Swept:
    """Flip every `step`-th bit of a log, or one part of them."""
    log = memory_log(compression)
    with decoded_once(log):
        return sweep(log, range(part * step, len(log.content) * 8, step * parts))


def prove(size: Size, _scratch: Path) -> Iterator[Result]:
    """Prove promise 10 for both encodings."""
    for compression in ENCODINGS:
        step = _STEPS[size][compression]
        found = swept(compression, step)
        what = f"bits of a 64 KiB {'raw' if compression == 'none' else 'zstd'} log, flipped singly"
        yield Result(
            10,
            what,
            f"{found.flips} flipped, {len(found.wrong)} wrong",
            f"{SIZE * 8 // step} flipped, 0 wrong",
            held=found.flips >= SIZE * 8 // step and not found.wrong,
            why=tuple(found.wrong),
        )


def _part(wish: tuple[Compression, int, int, int]) -> Swept:
    return swept(*wish)


def main(step: int) -> int:
    """Flip on every processor; return the exit code."""
    parts = len(os.sched_getaffinity(0))
    failed = False
    with multiprocessing.get_context("fork").Pool(parts) as pool:
        for compression in ENCODINGS:
            began = time.monotonic()
            found = pool.map(_part, [(compression, step, part, parts) for part in range(parts)])
            outcomes = [one.outcomes for one in found]
            kinds = sorted({kind for one in outcomes for kind in one})
            told = ", ".join(f"{sum(one.get(k, 0) for one in outcomes)} {k}" for k in kinds)
            count, took = sum(one.flips for one in found), time.monotonic() - began
            sys.stdout.write(f"{compression}: {count} bits flipped in {took:.0f} s: {told}\n")
            wrong = [line for one in found for line in one.wrong]
            sys.stdout.writelines(f"{line}\n" for line in wrong[:20])
            sys.stdout.flush()
            failed = failed or bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
