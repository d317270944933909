"""Fuzzes what reads a session from disk: `python -m fuzz.storage [--cases N] [--seed X]`; `make fuzz` for a long run.

The one rule: whatever the bytes, what comes is an answer or an error of ours, in bounded memory and time; a failure
names its seed, and `--cases 1 --seed X` replays it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import secrets
import sys
import time
import traceback
from collections import Counter
from contextlib import closing
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsh_protocol.errors import DshdError
from dsh_protocol.events import Header
from dshd.storage.files import READ
from dshd.storage.jsonl import pieces
from dshd.storage.jsonl.derived import DERIVED, lineage_of, parts_of, read_derived, sealed
from dshd.storage.jsonl.frames import FrameDefectError, FrameEncoder, decode_frame, frames
from dshd.storage.jsonl.holder import HOLDER, read_holder
from dshd.storage.jsonl.index import SeqIndex
from dshd.storage.jsonl.rows import RowDefectError, unpack
from dshd.storage.jsonl.source import Source, read_header
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import HolderRecord, Snapshot
from fuzz.mutate import odd_frame, odd_row, spoilt
from properties.mortal_disk import MortalDisk
from properties.streams import Stream
from support.logs import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from dshd.storage.jsonl.layout import Compression
    from properties.mortal_disk import Tree

MIB = 1024 * 1024
MOST_MEMORY = 2048 * MIB
"""Address space of a process that fuzzes. What is not bounded ends as a MemoryError."""
MOST_GROWN = 700 * MIB
"""What may be resident at most, beyond what was before the first case: 64 MiB of a frame, its rows, their values."""
MOST_CPU_S = 10.0
"""For one case: sixty times what the worst takes."""
_ROOT = Path("/memory")  # of the disk in memory
_FOLDER = "--w--/s1"
_HEADER = Header(id="s1", created_at=1, cwd="/w")
_HOLDER = HolderRecord("ab" * 32, 12, 34, "boot", "tests", 56, 0)
_AT_ONCE = 2000


class BrokenError(AssertionError):
    """What came of a case is neither an answer nor an error of ours."""


class Sample(NamedTuple):
    """A real session: its files, its log, and the log's rows."""

    tree: Tree
    path: str
    rows: list[bytes]

    @property
    def zstd(self) -> bool:
        """Whether the log is made of frames."""
        return self.path.endswith(".zstd")

    @property
    def log(self) -> bytes:
        """The log's bytes."""
        return self.tree[self.path] or b""


@cache
def samples() -> list[Sample]:
    """Return some sessions, of both encodings, with all that lies beside a log."""
    return [_sample(number) for number in range(24)]


def _sample(number: int) -> Sample:
    disk = MortalDisk()
    compression: Compression = "zstd" if number % 2 else "none"
    stream = Stream(random.Random(number))  # noqa: S311  # the same every time
    with closing(open_store(_ROOT, compression=compression, disk=disk).create(_HEADER)) as handle:
        for _ in range(number // 2 % 6 + 1):
            handle.append(stream.batch(), _HOLDER)
            handle.keep(Snapshot(len(stream.log), b"a state", b"{}"))
        if number % 3:
            handle.append(stream.batch())
    tree = disk.tree()
    (path,) = (path for path in tree if "/session.jsonl" in path)
    return Sample(tree, path, rows_of(tree[path] or b""))


# ---------------------------------------------------------------------- cases


def _bytes_of(chosen: Random) -> tuple[Sample, bytes]:
    """Return a session, and another log for it."""
    sample = chosen.choice(samples())
    kind = chosen.random()
    if kind < 0.6:
        return sample, spoilt(chosen, sample.log, [other.log for other in samples()])
    rows = list(sample.rows)
    at = chosen.randrange(len(rows))
    rows[at] = odd_row(chosen, rows[at])
    if kind < 0.7:
        rows[at : at + 1] = [rows[at]] * chosen.choice((0, 2, 40))
    cut = chosen.randrange(len(rows) + 1)
    return sample, _written(chosen, sample, rows[:1], rows[1:cut], rows[cut:])


def _written(chosen: Random, sample: Sample, *groups: list[bytes]) -> bytes:
    texts = [b"".join(row + b"\n" for row in rows) for rows in groups if rows]
    if not sample.zstd:
        return b"".join(texts)
    encode = FrameEncoder().encode
    return b"".join(
        odd_frame(chosen, text) if chosen.random() < 0.1 else encode(text) for text in texts
    )


def _frames(chosen: Random) -> None:
    _, data = _bytes_of(chosen)
    ahead = chosen.choice((16, 500, 256 * 1024))
    with _defects(FrameDefectError):
        for frame in frames(_reader(data), 0, len(data), ahead=ahead):
            with _defects(FrameDefectError):
                decode_frame(frame)


def _rows(chosen: Random) -> None:
    row = odd_row(chosen, chosen.choice(chosen.choice(samples()).rows))
    if chosen.random() < 0.2:
        row = spoilt(chosen, row, [row])
    with _defects(RowDefectError):
        for _ in islice(unpack(row), 100_000):
            pass


def _header(chosen: Random) -> None:
    sample, data = _bytes_of(chosen)
    if chosen.random() < 0.5:
        data = _written(chosen, sample, [odd_row(chosen, sample.rows[0])], sample.rows[1:3])
    disk, fd = _laid(sample, data)
    with _defects(DshdError):
        read_header(Source(disk, fd, sample.path, sample.zstd), len(data))


def _derived(chosen: Random) -> None:
    """The derived file alone: bytes that are damaged, and parts that are odd under digests that are right."""
    sample = chosen.choice(samples())
    path = f"{_FOLDER}/{DERIVED}"
    found = sample.tree[path] or b""
    if chosen.random() < 0.4:
        found = spoilt(chosen, found, [other.log for other in samples()])
    else:
        found = _sealed(chosen, sample)
    disk, fd = _laid(sample, sample.log)
    disk.put(path, found)
    directory = _directory(disk)
    source = Source(disk, fd, sample.path, sample.zstd)
    for whole in (True, False):
        derived = read_derived(disk, directory, whole=whole)
        if derived is not None:
            _ = derived.snapshot, derived.is_level(disk.fstat(fd))
            _, first = read_header(source, len(sample.log))
            lineage = lineage_of(derived, source, first, len(sample.log))
            index = SeqIndex([(first, 0), *lineage.positions])
            _ = index.locate(5), index.before(10**6), index.last()
    _open_all(disk)


def _sealed(chosen: Random, sample: Sample) -> bytes:
    disk, _ = _laid(sample, sample.log)
    derived = read_derived(disk, _directory(disk), whole=True)
    assert derived is not None
    parts = parts_of(derived)
    which = chosen.randrange(4)
    if which == 0:
        parts[0] = odd_row(chosen, parts[0])
    else:
        parts[which] = spoilt(chosen, parts[which], parts)
    return sealed(parts)


def _holder(chosen: Random) -> None:
    sample = chosen.choice(samples())
    path = f"{_FOLDER}/{HOLDER}"
    found = (sample.tree[path] or b"").rstrip()
    changed = odd_row(chosen, found) if chosen.random() < 0.6 else spoilt(chosen, found, [found])
    disk, _ = _laid(sample, sample.log)
    disk.put(path, changed)
    read_holder(disk, _directory(disk))


def _salvage(chosen: Random) -> None:
    sample, data = _bytes_of(chosen)
    disk, fd = _laid(sample, data)
    at = 0
    for piece in pieces.rows(Source(disk, fd, sample.path, sample.zstd), len(data)):
        _require(piece.start <= piece.end <= len(data), "a piece lies outside the file")
        at = max(at, piece.end)
        if isinstance(piece, pieces.Row):
            pieces.values_of(piece)
    _require(at == len(data), "a salvage has left bytes out")


def _session(chosen: Random) -> None:
    """The whole session, as the daemon meets it."""
    sample, data = _bytes_of(chosen)
    disk, _ = _laid(sample, data)
    if chosen.random() < 0.3:
        disk.put(f"{_FOLDER}/{DERIVED}", None)
    disk.end_process()
    _open_all(disk)


def _open_all(disk: MortalDisk) -> None:
    store = open_store(_ROOT, disk=disk)
    list(store.list())
    with _defects(DshdError), closing(store.open("s1", "read")) as handle:
        for _ in handle.read():
            pass
        _ = handle.next_seq, handle.snapshot(), handle.read_holder()
        list(handle.read(3, 2))
    before = disk.tree()
    try:
        handle = store.open("s1", "write")
    except DshdError:
        _require(disk.tree() == before, "a refusal has changed something")
        return
    with closing(handle):
        handle.snapshot()
        with _defects(DshdError):
            list(handle.read())
    once = disk.tree()
    with closing(store.open("s1", "write")):
        _require(disk.tree() == once, "a repaired session is repaired again")


TARGETS: tuple[Callable[[Random], None], ...] = (
    *(_frames, _frames, _rows, _rows, _rows, _header, _derived, _holder, _salvage, _session),
)


# ---------------------------------------------------------------------- what cases need


class _defects:  # noqa: N801  # read as `with suppress(…)` is
    """Takes errors of these kinds, and no other."""

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._kind)


def _require(holds: object, what: str) -> None:
    if not holds:
        raise BrokenError(what)


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda size, offset: data[offset : offset + size]


def _laid(sample: Sample, log: bytes) -> tuple[MortalDisk, int]:
    """Lay a session out with another log. Returns the disk and the open log."""
    disk = MortalDisk()
    disk.lay_out({**sample.tree, sample.path: log})
    directory = _directory(disk)
    return disk, disk.open(sample.path.rpartition("/")[2], READ, at=directory)


def _directory(disk: MortalDisk) -> int:
    return disk.open_root(f"{_ROOT}/{_FOLDER}")


# ---------------------------------------------------------------------- many


class Report(NamedTuple):
    """What many cases came to."""

    cases: Counter[str]
    wrong: list[str]
    grown: int
    slowest_s: float


def run(seeds: range) -> Report:
    """Try these cases; each is made from its seed alone."""
    samples()
    cases: Counter[str] = Counter()
    wrong: list[str] = []
    before, slowest = _peak(), 0.0
    for seed in seeds:
        chosen = random.Random(seed)  # noqa: S311  # to be replayed, not to be secret
        target = chosen.choice(TARGETS)
        began = time.process_time()
        try:
            target(chosen)
        except Exception:  # noqa: BLE001  # the very thing that is looked for
            wrong.append(f"seed {seed}: {target.__name__}: {traceback.format_exc(limit=-4)}")
        took = time.process_time() - began
        if took > MOST_CPU_S:
            wrong.append(f"seed {seed}: {target.__name__} took {took:.1f} s")
        slowest = max(slowest, took)
        cases[target.__name__.strip("_")] += 1
    grown = _peak() - before
    if grown > MOST_GROWN:
        wrong.append(f"seeds {seeds}: memory grew by {grown // MIB} MiB")
    return Report(cases, wrong, grown, slowest)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_memory() -> None:
    """Let this process have no more than `MOST_MEMORY`, for good."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


def reports(seed: int, cases: int) -> Iterator[Report]:
    """Try cases on all processors, each process with its own limit of memory."""
    samples()
    parts = [
        range(start, min(start + _AT_ONCE, seed + cases))
        for start in range(seed, seed + cases, _AT_ONCE)
    ]
    processors = len(os.sched_getaffinity(0))
    with multiprocessing.get_context("fork").Pool(processors, limit_memory) as pool:
        yield from pool.imap_unordered(run, parts)


def main() -> int:
    """Run for as long as asked, print the figures, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 40))
    flags = parser.parse_args()
    sys.stdout.write(f"seed {flags.seed}\n")
    began = time.monotonic()
    cases: Counter[str] = Counter()
    wrong: list[str] = []
    grown, slowest = 0, 0.0
    for report in reports(flags.seed, flags.cases):
        cases += report.cases
        wrong += report.wrong
        grown, slowest = max(grown, report.grown), max(slowest, report.slowest_s)
    told: list[Any] = [f"{count} {name}" for name, count in sorted(cases.items())]
    sys.stdout.write(
        f"{cases.total()} cases in {time.monotonic() - began:.0f} s ({', '.join(told)}): {len(wrong)} wrong; "
        f"memory grew by {grown / MIB:.0f} MiB at most, the slowest took {slowest:.2f} s\n"
    )
    sys.stdout.writelines(f"{line}\n" for line in wrong[:20])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
