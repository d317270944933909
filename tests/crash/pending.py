"""One file of a disk whose power may be cut: what of it is durable, and what it may hold.

The rule that holds here: see `crash.model`, of which this is the part for a file's bytes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from support.memory_tree import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SECTOR = 512
PAGE = 4096


class Grain(NamedTuple):
    """How finely states are told apart.

    Attributes:
        cuts: The most places at which one write is torn; every byte of a write that is not longer.
        names: The most sets of unsynced names at one moment.
        mixtures: Random states of each moment, on top.
    """

    cuts: int
    names: int = 64
    mixtures: int = 0


COARSE = Grain(cuts=6, names=24)


@dataclass(eq=False)
class Change:
    """A change of a file that is not durable: bytes written at an offset, or with None a cut to that length."""

    offset: int
    data: bytes | None
    time_ns: int
    doubtful: bool = False
    durable: bool = False


@dataclass(eq=False)
class Pending:
    """What is durable of a file, and what is not yet, in order."""

    data: bytes
    time_ns: int
    queue: list[Change] = field(default_factory=list[Change])

    def sync(self) -> None:
        """Take over what a successful sync promises."""
        for at, change in enumerate(self.queue):
            lost = [one for one in self.queue[:at] if one.doubtful]
            if change.doubtful or any(_overlap(change, one) for one in lost):
                change.doubtful = True
            else:
                change.durable = True
        self._settle()

    def fail(self) -> None:
        """Mark as clean, and lost, what a failed sync was to write. A cut is no page: it can be synced later."""
        for change in self.queue:
            change.doubtful |= change.data is not None and not change.durable

    def _settle(self) -> None:
        """Fold in what is certain; a durable cut ends every doubt about what lay behind it."""
        cuts = [at for at, one in enumerate(self.queue) if one.data is None and one.durable]
        for at in reversed(cuts):
            length = self.queue[at].offset
            before = [o for o in self.queue[:at] if not (o.doubtful and o.offset >= length)]
            self.queue[:at] = before
        while self.queue and self.queue[0].durable:
            first = self.queue.pop(0)
            self.data, self.time_ns = applied(self.data, [first]), first.time_ns

    def resolve(self, truth: Callable[[bytes], bytes]) -> bytes:
        """Return what the disk gives once the cache is dropped, and hold it for durable; its length was synced."""
        known = [one for one in self.queue if one.doubtful and one.data is not None]
        for change in known:
            change.data = truth(change.data or b"")
        self.data = applied(self.data, self.queue)
        self.queue.clear()
        return self.data

    def states(self, grain: Grain) -> Iterator[Stored]:
        """Yield what may be there, from what is durable to all of it, the most odd in between."""
        yield from _states(self, grain)

    def mixed(self, rng: random.Random) -> Stored:
        """Return a state by chance: a prefix, and of its last write each sector as it likes."""
        certain = sum(change.durable for change in self.queue)
        some = self.queue[: rng.randint(certain, len(self.queue))]
        if not some or some[-1].data is None:
            return Stored(applied(self.data, some), self.time_ns)
        before, last = applied(self.data, some[:-1]), some[-1].data
        cut = rng.randint(0, len(last)) if rng.random() < 0.5 else len(last)
        found = bytearray(last[:cut])
        for start in range(0, len(found), rng.choice((1, 64, SECTOR, PAGE))):
            if rng.random() < 0.3:
                part = slice(start, min(start + SECTOR, len(found)))
                size = part.stop - part.start
                found[part] = bytes(size) if rng.random() < 0.5 else rng.randbytes(size)
        offset = some[-1].offset
        return Stored(before[:offset].ljust(offset, b"\0") + found, some[-1].time_ns)


def _overlap(one: Change, other: Change) -> bool:
    if one.data is None or other.data is None:
        return False
    ends = one.offset + len(one.data), other.offset + len(other.data)
    return one.offset < ends[1] and other.offset < ends[0]


def applied(data: bytes, changes: Iterable[Change]) -> bytes:
    """Return a file's bytes after some changes."""
    found = bytearray(data)
    for change in changes:
        if change.data is None:
            del found[change.offset :]
        if len(found) < change.offset:
            found += bytes(change.offset - len(found))
        if change.data is not None:
            found[change.offset : change.offset + len(change.data)] = change.data
    return bytes(found)


def _states(pending: Pending, grain: Grain) -> Iterator[Stored]:
    queue = pending.queue
    doubtful = [one for one in queue if one.doubtful]
    for fates in product(*(_fates(one) for one in doubtful)):
        fate = dict(zip(map(id, doubtful), fates, strict=True))
        kept = [fate.get(id(one), one) for one in queue]
        yield from _prefixes(pending, [one for one in kept if one is not None], grain)


def _fates(change: Change) -> list[Change | None]:
    """Return what may become of a write whose sync failed."""
    data = change.data or b""
    half = len(data) // 2
    parts = (bytes(len(data)), data[:half] + bytes(len(data) - half), data)
    return [None, *(Change(change.offset, part, change.time_ns, durable=True) for part in parts)]


def _prefixes(pending: Pending, queue: Sequence[Change], grain: Grain) -> Iterator[Stored]:
    certain = max((at for at, one in enumerate(queue, 1) if one.durable), default=0)
    for count in range(certain, len(queue) + 1):
        before = applied(pending.data, queue[:count])
        time_ns = queue[count - 1].time_ns if count else pending.time_ns
        yield Stored(before, time_ns)
        if count == len(queue):
            return
        change = queue[count]
        if change.data is None:
            continue
        start = before[: change.offset].ljust(change.offset, b"\0")
        for torn in _torn(start, change.data, grain.cuts):
            yield Stored(torn, change.time_ns)
        later = [one for one in queue[count + 1 :] if one.data is not None]
        if later:  # a later write without this one
            whole = applied(pending.data, [*queue[:count], *later])
            yield Stored(whole, later[-1].time_ns)


def _torn(before: bytes, data: bytes, cuts: int) -> Iterator[bytes]:
    """Yield what may be there of one write behind `before`."""
    start, size = len(before), len(data)
    noise = random.Random(start).randbytes(max(size, PAGE))  # noqa: S311  # the same noise every time
    for cut in _cuts(start, size, cuts):
        rest = size - cut
        yield before + data[:cut]
        yield before + data[:cut] + bytes(rest)
        yield before + data[:cut] + noise[:rest]
        yield before + bytes(cut) + data[cut:]
        yield before + noise[:cut] + data[cut:]
    yield before + bytes(size)
    yield before + noise[:size]
    yield before + bytes(PAGE)
    for unit in (SECTOR, PAGE):
        for at in range(start // unit * unit, start + size, unit):
            first, last = max(at - start, 0), min(at + unit - start, size)
            yield before + data[:first] + bytes(last - first) + data[last:]
            yield before + data[:first] + noise[first:last] + data[last:]


def _cuts(start: int, size: int, most: int) -> list[int]:
    """Return where a write is torn: at every byte, or at the ends, at every sector and page, and evenly between."""
    if size - 1 <= most:
        return list(range(1, size))
    found = {1, size // 2, size - 1}
    found |= {at - start for at in range(start // SECTOR * SECTOR, start + size, SECTOR)}
    found |= {size * part // most for part in range(1, most)}
    return sorted(cut for cut in found if 0 < cut < size)
