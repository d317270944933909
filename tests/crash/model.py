"""What a disk may hold after a power cut: the one model of it, kept call by call beside a disk in memory.

The rule that holds here: only a sync promises anything. Of what was not synced any prefix of a file's changes may be
there, the last write of them torn at any byte, with sectors or pages missing, as zeros or as garbage; one file's
changes say nothing of another's; and of the names any subset, each with the directory that it stands in: a name is
durable only when that very directory was synced, as POSIX has it. A cut of a file is a change like any other. What a
failed sync should have written is marked clean and lost: no later sync promises it, nor anything written over it,
until it is cut away or the cache is dropped; then the disk's truth is seen.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from crash.memory_disk import File, Folder, MemoryDisk, Names, Node, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from crash.memory_disk import Tree

SECTOR = 512
PAGE = 4096
_SYNCS = frozenset({"fsync", "fdatasync"})


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


class Moment(NamedTuple):
    """One state: what each path holds. Equal states have equal keys."""

    tree: Tree
    digests: dict[str, bytes]

    def but(self, paths: list[str], stored: Stored) -> Moment:
        """Return the same with another content of one file."""
        digest = _digest(stored.data)
        contents, digests = dict.fromkeys(paths, stored), dict.fromkeys(paths, digest)
        return Moment({**self.tree, **contents}, {**self.digests, **digests})

    @property
    def key(self) -> bytes:
        """What two equal states share."""
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(self.digests):
            digest.update(path.encode() + b"\0" + self.digests[path])
        return digest.digest()


class PowerDisk(MemoryDisk):
    """A disk in memory whose power may be cut: it knows what is durable, and what may be.

    Attributes:
        lies: Syncs that do nothing, by the name of the call and what they are of: `fsync file`, `fdatasync file`,
            `fsync folder`.
        fails: The numbers of the syncs, from 1, that fail with EIO.
        truth: What the disk holds of bytes whose sync failed.
        syncs: How many there were.
    """

    def __init__(self, tree: Tree | None = None) -> None:
        self._files: dict[File, Pending] = {}
        self._entries: dict[Folder, dict[str, Node]] = {}
        self._names: list[Names] = []
        super().__init__(tree)
        self._take(self.top)
        self.lies: frozenset[str] = frozenset()
        self.fails: frozenset[int] = frozenset()
        self.syncs = 0
        self.truth: Callable[[bytes], bytes] = bytes

    def _take(self, folder: Folder) -> None:
        self._entries[folder] = dict(folder.entries)
        for node in folder.entries.values():
            if isinstance(node, File):
                self._files[node] = Pending(bytes(node.data), node.time_ns)
            else:
                self._take(node)

    def about_to_sync(self) -> None:
        """Learn that something that is possible is about to be possible no longer."""

    def before(self, call: str, node: Node | None) -> None:
        if call not in _SYNCS:
            return
        self.about_to_sync()
        self.syncs += 1
        if self.syncs in self.fails:
            if isinstance(node, File):
                self._of(node).fail()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _of(self, file: File) -> Pending:
        return self._files.setdefault(file, Pending(b"", file.time_ns))

    def wrote(self, file: File, offset: int, data: bytes) -> None:
        self._of(file).queue.append(Change(offset, data, self.now_ns))

    def cut(self, file: File, length: int) -> None:
        self._of(file).queue.append(Change(length, None, self.now_ns))

    def named(self, changes: Names) -> None:
        self._names.append(changes)

    def _believes(self, call: str, node: Node) -> bool:
        return f"{call} {'file' if isinstance(node, File) else 'folder'}" not in self.lies

    def fdatasync(self, fd: int) -> None:
        self.before("fdatasync", self._node(fd))
        if self._believes("fdatasync", self._node(fd)):
            self.synced(self._node(fd))

    def fsync(self, fd: int) -> None:
        self.before("fsync", self._node(fd))
        if self._believes("fsync", self._node(fd)):
            self.synced(self._node(fd))

    def synced(self, node: Node) -> None:
        if isinstance(node, File):
            self._of(node).sync()
            return
        due = [one for one in self._names if any(folder is node for folder, _, _ in one)]
        self._names = [one for one in self._names if one not in due]
        for changes in due:
            _rename(self._entries, changes)

    def drop_cache(self, fd: int) -> None:
        file = self._file(fd)
        pending = self._of(file)
        if pending.queue and all(one.doubtful or one.durable for one in pending.queue):
            file.data[:] = pending.resolve(self.truth)

    # ------------------------------------------------------------------ states

    def is_settled(self) -> bool:
        """Whether only one state is possible."""
        return not self._names and not any(one.queue for one in self._files.values())

    def moments(self, grain: Grain, rng: random.Random) -> Iterator[Moment]:
        """Yield what the disk may hold when the power is cut now. Some come twice.

        One file is in doubt at a time, and the others stand at either end; with all names or with none every state
        of it is tried, with the names between a few.
        """
        choices = self._choices(grain.names, rng)
        for at, chosen in enumerate(choices):
            named = self._named(chosen)
            fine = grain if at < 2 else COARSE
            yield from self._one_in_doubt(named, fine)
        for _ in range(grain.mixtures):
            named = self._named([one for one in self._names if rng.random() < 0.7])
            mixed = {node: self._of(node).mixed(rng) for node in _files_of(named)}
            yield _moment(named, mixed)

    def _choices(self, most: int, rng: random.Random) -> list[list[Names]]:
        """Return sets of the unsynced changes of names: all, none, and others."""
        names = self._names
        if not names:
            return [[]]
        if 2 ** len(names) <= most:
            sets = product((True, False), repeat=len(names))
            every = [[n for n, keep in zip(names, kept, strict=True) if keep] for kept in sets]
            return [every[0], every[-1], *every[1:-1]]
        found = [names, []]
        found += [names[:count] for count in range(1, len(names))]
        found += [[other for other in names if other is not one] for one in names]
        found += [[one] for one in names]
        found += [[n for n in names if rng.random() < 0.5] for _ in range(most - len(found))]
        return found[:most]

    def _named(self, chosen: list[Names]) -> dict[str, Node]:
        touched = {folder for changes in chosen for folder, _, _ in changes}
        entries = {folder: dict(self._entries.get(folder, {})) for folder in touched}
        for changes in chosen:
            _rename(entries, changes)
        found: dict[str, Node] = {}
        self._descend(self.top, "", entries, found)
        return found

    def _descend(
        self,
        folder: Folder,
        prefix: str,
        entries: dict[Folder, dict[str, Node]],
        found: dict[str, Node],
    ) -> None:
        names = entries[folder] if folder in entries else self._entries.get(folder, {})
        for name, node in names.items():
            found[f"{prefix}{name}"] = node
            if isinstance(node, Folder):
                self._descend(node, f"{prefix}{name}/", entries, found)

    def _one_in_doubt(self, named: dict[str, Node], grain: Grain) -> Iterator[Moment]:
        files = _files_of(named)
        ends: dict[File, tuple[Stored, Stored]] = {}
        for file in files:
            pending = self._of(file)
            least = next(pending.states(grain))
            ends[file] = least, Stored(applied(pending.data, pending.queue), file.time_ns)
        for end in (0, 1):
            whole = _moment(named, {file: both[end] for file, both in ends.items()})
            yield whole
            for file in files:
                if self._of(file).queue:
                    paths = [path for path, node in named.items() if node is file]
                    for stored in self._of(file).states(grain):
                        yield whole.but(paths, stored._replace(ino=file.ino))


def _files_of(named: dict[str, Node]) -> list[File]:
    return list({node: None for node in named.values() if isinstance(node, File)})


def _rename(entries: dict[Folder, dict[str, Node]], changes: Names) -> None:
    for folder, name, node in changes:
        if node is None:
            entries.setdefault(folder, {}).pop(name, None)
        else:
            entries.setdefault(folder, {})[name] = node


def _moment(named: dict[str, Node], contents: dict[File, Stored]) -> Moment:
    tree: Tree = {}
    digests: dict[str, bytes] = {}
    for path, node in named.items():
        if isinstance(node, File):
            stored = contents[node]
            tree[path] = Stored(stored.data, stored.time_ns, node.ino)
            digests[path] = _digest(stored.data)
        else:
            tree[path] = None
            digests[path] = b""
    return Moment(tree, digests)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
