"""A disk in memory: the calls of the disk door over dictionaries, for proofs that need thousands of disks a second.

The rule that holds here: it behaves as the real disk does, errors included, and every call that changes or syncs
something passes through one hook in front of it and one behind it. What survives a power cut is not known here; that
is `crash.model`'s.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from dshd.storage.files import APPEND, CREATE, DIRECTORY, LOCK

START_NS = 1_700_000_000_000_000_000
"""When the first disk begins: long enough ago that what writers left behind is swept."""
STEP_NS = 1_000
_FIRST_FD = 1_000_000
"""No number of a real descriptor, so that a call that went past the door fails."""


@dataclass(eq=False)
class File:
    """A regular file."""

    ino: int
    time_ns: int
    data: bytearray = field(default_factory=bytearray)
    locked_by: int | None = None


@dataclass(eq=False)
class Folder:
    """A directory."""

    ino: int
    time_ns: int
    entries: dict[str, Node] = field(default_factory=dict[str, "Node"])


Node = File | Folder


class Stored(NamedTuple):
    """What a tree says of a file."""

    data: bytes
    time_ns: int
    ino: int = 0


Tree = dict[str, Stored | None]
"""Paths from `/`, without it: a file, or None for a directory. Directories stand before what is in them."""

Names = list[tuple[Folder, str, Node | None]]
"""Changes of names: (directory, name, what it names from now on)."""


class MemoryDisk:
    """A whole file system with one user; see the module.

    Attributes:
        top: The directory `/`.
        now_ns: The file system's clock; it moves with every change, and whenever a test moves it.
    """

    def __init__(self, tree: Tree | None = None, *, now_ns: int = START_NS) -> None:
        self.now_ns = now_ns
        self._inos = 1
        self.top = Folder(self._ino(), now_ns)
        self._open: dict[int, tuple[Node, int]] = {}
        self._next_fd = _FIRST_FD
        self._uid = os.geteuid()
        for path, stored in (tree or {}).items():
            self._lay_out(path, stored)

    def _lay_out(self, path: str, stored: Stored | None) -> None:
        above, _, name = path.rpartition("/")
        folder = self._walk(f"/{above}" if above else "/", None)
        assert isinstance(folder, Folder)
        if stored is None:
            folder.entries[name] = Folder(self._ino(), self.now_ns)
        else:
            ino = stored.ino or self._ino()
            folder.entries[name] = File(ino, stored.time_ns, bytearray(stored.data))

    # ------------------------------------------------------------------ hooks

    def before(self, call: str, node: Node | None) -> None:
        """Look at a call that is about to change or sync something; raising keeps it from happening."""

    def wrote(self, file: File, offset: int, data: bytes) -> None:
        """Learn of bytes that were written."""

    def cut(self, file: File, length: int) -> None:
        """Learn of a file that was cut, or lengthened with a hole."""

    def named(self, changes: Names) -> None:
        """Learn of names that changed together."""

    def synced(self, node: Node) -> None:
        """Learn of a sync."""

    # ------------------------------------------------------------------ inside

    def _ino(self) -> int:
        self._inos += 1
        return self._inos

    def _walk(self, path: str, at: int | None) -> Node:
        node: Node = self.top if at is None else self._node(at)
        for part in path.split("/"):
            if not part:
                continue
            if not isinstance(node, Folder):
                _fail(errno.ENOTDIR, path)
            found = node.entries.get(part)
            if found is None:
                _fail(errno.ENOENT, path)
            node = found
        return node

    def _above(self, path: str, at: int | None) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        folder = self._walk(above, at)
        if not isinstance(folder, Folder):
            _fail(errno.ENOTDIR, path)
        return folder, name

    def _node(self, fd: int) -> Node:
        try:
            return self._open[fd][0]
        except KeyError:
            _fail(errno.EBADF, str(fd))

    def _file(self, fd: int) -> File:
        node = self._node(fd)
        if not isinstance(node, File):
            _fail(errno.EISDIR, str(fd))
        return node

    def _opened(self, node: Node, flags: int) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = node, flags
        return self._next_fd

    def _change(self, changes: Names) -> None:
        self.now_ns += STEP_NS
        for folder, name, node in changes:
            folder.time_ns = self.now_ns
            if node is None:
                del folder.entries[name]
            else:
                folder.entries[name] = node
        self.named(changes)

    # ------------------------------------------------------------------ the door

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        folder, name = self._above(path, at)
        if name not in folder.entries and flags in {CREATE, LOCK}:
            self.before("create", folder)
        node = folder.entries.get(name)
        if node is not None and flags == CREATE:
            _fail(errno.EEXIST, path)
        if node is None:
            if flags not in {CREATE, LOCK}:
                _fail(errno.ENOENT, path)
            node = File(self._ino(), self.now_ns)
            self._change([(folder, name, node)])
        if flags == DIRECTORY and isinstance(node, File):
            _fail(errno.ENOTDIR, path)
        if flags in {APPEND, LOCK} and isinstance(node, Folder):
            _fail(errno.EISDIR, path)
        return self._opened(node, flags)

    def open_root(self, path: str) -> int:
        node = self._walk(path, None)
        if isinstance(node, File):
            _fail(errno.ENOTDIR, path)
        return self._opened(node, DIRECTORY)

    def close(self, fd: int) -> None:
        node = self._node(fd)
        if isinstance(node, File) and node.locked_by == fd:
            node.locked_by = None
        del self._open[fd]

    def mkdir(self, path: str, *, at: int | None = None) -> None:
        folder, name = self._above(path, at)
        self.before("mkdir", folder)
        if name in folder.entries:
            _fail(errno.EEXIST, path)
        self._change([(folder, name, Folder(self._ino(), self.now_ns))])

    def fstat(self, fd: int) -> os.stat_result:
        return self._stat(self._node(fd))

    def lstat(self, path: str, *, at: int | None = None) -> os.stat_result:
        return self._stat(self._walk(path, at))

    def _stat(self, node: Node) -> os.stat_result:
        mode, size, seconds = stat.S_IFDIR | 0o700, 4096, node.time_ns // 10**9
        if isinstance(node, File):
            mode, size = stat.S_IFREG | 0o600, len(node.data)
        plain = (mode, node.ino, 1, 1, self._uid, 0, size, seconds, seconds, seconds)
        exact = node.time_ns / 10**9
        times = {"st_mtime_ns": node.time_ns, "st_ctime_ns": node.time_ns, "st_mtime": exact}
        return os.stat_result(plain, times)

    def listdir(self, fd: int) -> list[str]:
        node = self._node(fd)
        if not isinstance(node, Folder):
            _fail(errno.ENOTDIR, str(fd))
        return list(node.entries)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self._file(fd).data[offset : offset + size])

    def next_data(self, fd: int, offset: int) -> int | None:
        return offset if offset < len(self._file(fd).data) else None

    def write(self, fd: int, data: bytes | memoryview) -> int:
        file = self._file(fd)
        self.before("write", file)
        return self._append(file, bytes(data))

    def _append(self, file: File, data: bytes) -> int:
        offset = len(file.data)
        file.data += data
        self.now_ns += STEP_NS
        file.time_ns = self.now_ns
        self.wrote(file, offset, data)
        return len(data)

    def write_half(self, fd: int, data: bytes | memoryview) -> None:
        """Write half of what a call was given, for a test that stops it half-way."""
        self._append(self._file(fd), bytes(data[: len(data) // 2]))

    def copy(self, source: int, offset: int, fd: int, size: int) -> int:
        file = self._file(fd)
        self.before("copy", file)
        return self._append(file, self.pread(source, size, offset))

    def shares(self, source: int, directory: int) -> bool:
        return False

    def truncate(self, fd: int, length: int) -> None:
        file = self._file(fd)
        self.before("truncate", file)
        del file.data[length:]
        file.data += bytes(length - len(file.data))
        self.now_ns += STEP_NS
        file.time_ns = self.now_ns
        self.cut(file, length)

    def fdatasync(self, fd: int) -> None:
        node = self._node(fd)
        self.before("fdatasync", node)
        self.synced(node)

    def fsync(self, fd: int) -> None:
        node = self._node(fd)
        self.before("fsync", node)
        self.synced(node)

    def drop_cache(self, fd: int) -> None:
        self._node(fd)

    def link(self, path: str, new: str, *, at: int) -> None:
        folder, name = self._above(new, at)
        node = self._walk(path, at)
        self.before("link", folder)
        if name in folder.entries:
            _fail(errno.EEXIST, new)
        node.time_ns = self.now_ns + STEP_NS  # its change of status
        self._change([(folder, name, node)])

    def rename(self, path: str, new: str, *, at: int) -> None:
        (source, old), (target, name) = self._above(path, at), self._above(new, at)
        node = self._walk(path, at)
        self.before("rename", target)
        self._change([(target, name, node), (source, old, None)])

    def unlink(self, path: str, *, at: int) -> None:
        folder, name = self._above(path, at)
        self.before("unlink", folder)
        if isinstance(self._walk(path, at), Folder):
            _fail(errno.EISDIR, path)
        self._change([(folder, name, None)])

    def rmdir(self, path: str, *, at: int) -> None:
        folder, name = self._above(path, at)
        self.before("rmdir", folder)
        node = self._walk(path, at)
        if isinstance(node, File):
            _fail(errno.ENOTDIR, path)
        if node.entries:
            _fail(errno.ENOTEMPTY, path)
        self._change([(folder, name, None)])

    def lock(self, fd: int) -> None:
        file = self._file(fd)
        if file.locked_by not in {None, fd}:
            _fail(errno.EWOULDBLOCK, "lock")
        file.locked_by = fd

    # ------------------------------------------------------------------ for tests

    def let_go(self) -> None:
        """Do what the end of the process does: close everything, release every lock."""
        for fd in list(self._open):
            self.close(fd)

    def tree(self) -> Tree:
        """Return all that is there, as a reader sees it."""
        return dict(_listed(self.top, ""))


def _listed(folder: Folder, prefix: str) -> list[tuple[str, Stored | None]]:
    found: list[tuple[str, Stored | None]] = []
    for name, node in folder.entries.items():
        path = f"{prefix}{name}"
        if isinstance(node, File):
            found.append((path, Stored(bytes(node.data), node.time_ns, node.ino)))
        else:
            found.append((path, None))
            found += _listed(node, f"{path}/")
    return found


def _fail(number: int, what: str) -> NoReturn:
    raise OSError(number, os.strerror(number), what)
