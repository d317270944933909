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
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from crash.pending import COARSE, Change, Grain, Pending, applied
from support.memory_disk import MemoryDisk
from support.memory_tree import File, Folder, Stored

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator

    from support.memory_tree import Names, Node, Tree

_SYNCS = frozenset({"fsync", "fdatasync"})


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
        return key_of(self.digests.items())


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

    def before(self, call: str, node: Node, about: object) -> None:
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

    def synced(self, call: str, node: Node) -> None:
        if f"{call} {'file' if isinstance(node, File) else 'folder'}" in self.lies:
            return
        if isinstance(node, File):
            self._of(node).sync()
            return
        due = [one for one in self._names if any(folder is node for folder, _, _ in one)]
        self._names = [one for one in self._names if one not in due]
        for changes in due:
            _rename(self._entries, changes)

    def drop_cache(self, fd: int) -> None:
        super().drop_cache(fd)
        file = self.node_of(fd)
        assert isinstance(file, File)
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


def key_of(digests: Iterable[tuple[str, bytes]]) -> bytes:
    """Return what equal files under equal paths share, in whatever order."""
    return _digest(b"".join(sorted(path.encode() + b"\0" + one for path, one in digests)))


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
