"""What a disk may hold after a power cut at any moment of a run: recorded call by call, then worked out.

What was synced is there. Of what was not, any prefix of the writes may be, the last of them torn at any place, with a
sector missing, as a longer file of zeros, or as garbage; and any of the names that were made, changed or removed in a
directory that was not synced since.
"""

from __future__ import annotations

import os
import random
import stat
from dataclasses import dataclass, field
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from dshd.storage.files import CREATE, LOCK, RealDisk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SECTOR = 512
PAGE = 4096
_MOST_NAMES = 6  # unsynced changes of names of which every subset is tried


@dataclass(eq=False)
class File:
    """A file: what is durable of it, and the changes since, in order: (offset, bytes), or a cut (length, None)."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list[tuple[int, bytes | None]])

    def content(self, count: int | None = None) -> bytes:
        """Return the content with the first `count` pending changes; all by default."""
        found = bytearray(self.durable)
        for offset, data in self.pending[:count]:
            if data is None:
                del found[offset:]
            else:
                found[offset : offset + len(data)] = data
        return bytes(found)

    def after_a_cut(self) -> Iterator[bytes]:
        """Yield what a disk may hold of it."""
        for count in range(len(self.pending) + 1):
            before = self.content(count)
            yield before
            if count < len(self.pending):
                offset, data = self.pending[count]
                if data is not None:
                    yield from _torn(before[:offset].ljust(offset, b"\0"), data)


def _torn(before: bytes, data: bytes) -> Iterator[bytes]:
    """Yield what may be there of one write behind `before`."""
    end = len(before) + len(data)
    cuts = {1, len(data) // 2, len(data) - 1}
    cuts |= {at - len(before) for at in range(len(before), end) if at % SECTOR == 0}
    noise = random.Random(len(before)).randbytes(len(data))  # noqa: S311  # the same noise every time
    for cut in sorted(cut for cut in cuts if 0 < cut < len(data)):
        rest = len(data) - cut
        yield before + data[:cut]
        yield before + data[:cut] + bytes(rest)
        yield before + data[:cut] + noise[:rest]
    yield before + bytes(len(data))
    yield before + noise
    yield before + bytes(PAGE)
    yield before + noise[: len(data) // 2] + bytes(len(data) - len(data) // 2)
    start = len(before) // SECTOR * SECTOR
    for sector in range(start, end, SECTOR):
        first, last = max(sector - len(before), 0), min(sector + SECTOR - len(before), len(data))
        yield before + data[:first] + bytes(last - first) + data[last:]


@dataclass(eq=False)
class Folder:
    """A directory: its durable entries, and the changes since: (name, node), or a removal (name, None)."""

    durable: dict[str, Node] = field(default_factory=dict[str, "Node"])
    pending: list[tuple[str, Node | None]] = field(default_factory=list[tuple[str, "Node | None"]])

    def entries(self, kept: Iterable[bool] | None = None) -> dict[str, Node]:
        """Return the entries with those of the pending changes that are `kept`; all by default."""
        found = dict(self.durable)
        flags = [True] * len(self.pending) if kept is None else list(kept)
        for (name, node), keep in zip(self.pending, flags, strict=True):
            if keep and node is None:
                found.pop(name, None)
            elif keep and node is not None:
                found[name] = node
        return found

    def choices(self) -> list[dict[str, Node]]:
        """Return every set of entries that may be durable."""
        count = len(self.pending)
        if count <= _MOST_NAMES:
            return [self.entries(kept) for kept in product((False, True), repeat=count)]
        prefixes = [[at < some for at in range(count)] for some in range(count + 1)]
        without = [[at != one for at in range(count)] for one in range(count)]
        return [self.entries(kept) for kept in chain(prefixes, without)]


Node = File | Folder
Tree = dict[str, bytes | None]
"""Paths below the root: a file's bytes, None for a directory."""


class RecordingDisk(RealDisk):
    """The real disk, without waiting for its syncs, and a model of what of it is durable.

    `before_sync` is called whenever something that was possible is about to be possible no longer.
    """

    def __init__(self, root: Path) -> None:
        self.top = Folder()
        self._root = str(root)
        self._open: dict[int, Node] = {}
        self._known: dict[tuple[int, int], Node] = {}

    def before_sync(self) -> None:
        """See the class."""

    def _node(self, fd: int, made: Node) -> Node:
        found = os.fstat(fd)
        node = self._known.setdefault((found.st_dev, found.st_ino), made)
        self._open[fd] = node
        return node

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        creates = flags in {CREATE, LOCK}
        try:
            os.stat(path, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            new = creates
        else:
            new = False
        fd = super().open(path, flags, at=at)
        if new:  # an inode's number may have been another file's
            found = os.fstat(fd)
            self._known.pop((found.st_dev, found.st_ino), None)
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        node = self._node(fd, File() if is_file else Folder())
        if new and at is not None:
            self._change(at, path, node)
        return fd

    def open_root(self, path: str) -> int:
        fd = super().open_root(path)
        self._node(fd, self.top if path == self._root else Folder())
        return fd

    def mkdir(self, path: str, *, at: int | None = None) -> None:
        super().mkdir(path, at=at)
        if at is None:
            return
        found = os.stat(path, dir_fd=at)
        self._known[found.st_dev, found.st_ino] = folder = Folder()
        self._change(at, path, folder)

    def _change(self, at: int, name: str, node: Node | None) -> None:
        folder = self._open[at]
        assert isinstance(folder, Folder)
        folder.pending.append((name, node))

    def _file(self, fd: int) -> File:
        node = self._open[fd]
        assert isinstance(node, File)
        return node

    def write(self, fd: int, data: bytes | memoryview) -> int:
        at = os.fstat(fd).st_size
        count = super().write(fd, data)
        self._file(fd).pending.append((at, bytes(data[:count])))
        return count

    def copy(self, source: int, offset: int, fd: int, size: int) -> int:
        data = os.pread(source, size, offset)
        return self.write(fd, data)

    def truncate(self, fd: int, length: int) -> None:
        super().truncate(fd, length)
        self._file(fd).pending.append((length, None))

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fsync(self, fd: int) -> None:
        self.before_sync()
        node = self._open[fd]
        if isinstance(node, File):
            node.durable = node.content()
            node.pending.clear()
        else:
            node.durable = node.entries()
            node.pending.clear()

    def _named(self, path: str, at: int) -> Node:
        found = os.stat(path, dir_fd=at, follow_symlinks=False)
        return self._known[found.st_dev, found.st_ino]

    def link(self, path: str, new: str, *, at: int) -> None:
        super().link(path, new, at=at)
        self._change(at, new, self._named(new, at))

    def rename(self, path: str, new: str, *, at: int) -> None:
        super().rename(path, new, at=at)
        folder = self._open[at]
        assert isinstance(folder, Folder)
        folder.pending.append((new, self._named(new, at)))
        folder.pending.append((path, None))

    def unlink(self, path: str, *, at: int) -> None:
        super().unlink(path, at=at)
        self._change(at, path, None)


def trees(folder: Folder, prefix: str = "") -> Iterator[Tree]:
    """Yield every state that a disk may hold of a directory.

    One part is in doubt at a time: the others stand as they are at either end, durable alone or complete.
    """
    for entries in folder.choices():
        yield from _trees(entries, prefix)


def _trees(entries: dict[str, Node], prefix: str) -> Iterator[Tree]:
    names = list(entries)
    options: list[list[Tree]] = []
    for name in names:
        node, path = entries[name], f"{prefix}{name}"
        if isinstance(node, File):
            options.append([{path: content} for content in dict.fromkeys(node.after_a_cut())])
        else:
            inside = [{path: None, **tree} for tree in trees(node, f"{path}/")]
            options.append(inside)
    for chosen in _one_in_doubt(options):
        whole: Tree = {}
        for part in chosen:
            whole |= part
        yield whole


def _one_in_doubt(options: list[list[Tree]]) -> Iterator[list[Tree]]:
    if not options:
        yield []
        return
    for at, option in enumerate(options):
        for choice in option if at == 0 or len(option) > 1 else ():
            for end in (0, -1):
                yield [choice if at == k else other[end] for k, other in enumerate(options)]


def lay_out(tree: Tree, root: Path) -> None:
    """Make a state."""
    root.mkdir(mode=0o700)
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir(mode=0o700)
        else:
            (root / path).write_bytes(content)


def key_of(tree: Tree) -> Any:
    """Return what two equal states share."""
    return tuple(sorted((path, content or b"", content is None) for path, content in tree.items()))
