"""A disk in memory: the store's calls on dictionaries, a thousand logs a second, and a process that dies at any call.

The rule that holds here: it says what the kernel would say to the calls that the store makes, and its clock is a count
of its changes, so that a run repeats to the nanosecond. What is written stays written: this is a process that ends,
not a power that fails.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

Tree = dict[str, bytes | None]
"""Paths below the root: a file's bytes, None for a directory."""

_FILE = stat.S_IFREG | 0o600
_FOLDER = stat.S_IFDIR | 0o700
_BEGAN_NS = 1_000_000_000
TICK_NS = 30_000_000
"""What one change takes: longer than what the store holds for a step of the clock."""


class KilledError(BaseException):
    """The process is gone. No `Exception`: nothing that the store catches may hold it up."""


@dataclass(eq=False, slots=True)
class File:
    """A file."""

    number: int
    changed_ns: int
    content: bytes = b""
    locked_by: int | None = None


@dataclass(eq=False, slots=True)
class Folder:
    """A directory."""

    number: int
    changed_ns: int
    entries: dict[str, File | Folder] = field(default_factory=dict[str, "File | Folder"])


class MemoryDisk:
    """Everything below one root.

    Attributes:
        calls: How many calls were made that change something, or make it durable.
        die_at: The number of the call, from 1, at which the process ends; every later call finds it gone.
        moment: Whether it ends "before" that call, "after" it, or "half"-way in a write.
    """

    def __init__(self, root: str = "/memory", *, moment: str = "before") -> None:
        self.calls = 0
        self.die_at = 0
        self.moment = moment
        self._root = root
        self._numbers = 0
        self._now = _BEGAN_NS
        self._top: Folder | None = None
        self._open: dict[int, File | Folder] = {}
        self._last_fd = 1000
        self._uid = os.geteuid()

    # ------------------------------------------------------------------ what tests do with it

    def tree(self) -> Tree:
        """Return all that is there."""
        found: Tree = {}
        if self._top is not None:
            _collect(self._top, "", found)
        return found

    def lay_out(self, tree: Tree) -> None:
        """Make everything anew, with nothing open and nothing locked."""
        self._open.clear()
        self._top = self._folder()
        for path, content in tree.items():
            above, _, name = path.rpartition("/")
            folder = self._walk(above, self._top) if above else self._top
            assert isinstance(folder, Folder)
            folder.entries[name] = self._folder() if content is None else self._file(content)

    def put(self, path: str, content: bytes | None) -> None:
        """Replace a file's bytes from outside, or take the file away."""
        above, _, name = path.rpartition("/")
        assert self._top is not None
        folder = self._walk(above, self._top)
        assert isinstance(folder, Folder)
        found = folder.entries.get(name)
        if content is None:
            folder.entries.pop(name, None)
        elif isinstance(found, File):
            found.content, found.changed_ns = content, self._tick()
        else:
            folder.entries[name] = self._file(content)

    def rot(self, path: str, content: bytes) -> None:
        """Change a file's bytes as a bad disk does: nobody is told, and no time is noted."""
        found = self._walk(path, self._top)
        assert isinstance(found, File)
        found.content = content

    def rest(self) -> None:
        """Let some time go by."""
        self._tick()

    def end_process(self) -> None:
        """Close everything, as the kernel does for a process that is gone; another one may begin."""
        for node in self._open.values():
            if isinstance(node, File):
                node.locked_by = None
        self._open.clear()
        self.die_at = self.calls = 0

    @property
    def open_count(self) -> int:
        """How many descriptors are open."""
        return len(self._open)

    # ------------------------------------------------------------------ inside

    def _tick(self) -> int:
        self._now += TICK_NS
        return self._now

    def _file(self, content: bytes = b"") -> File:
        self._numbers += 1
        return File(self._numbers, self._tick(), content)

    def _folder(self) -> Folder:
        self._numbers += 1
        return Folder(self._numbers, self._tick())

    def _dying(self, whole: Callable[[], object], half: Callable[[], object] | None = None) -> None:
        """Make one change, or end before, in or after it."""
        self._require_alive()
        self.calls += 1
        if self.calls != self.die_at:
            whole()
            return
        if self.moment == "after":
            whole()
        elif self.moment == "half" and half is not None:
            half()
        raise KilledError

    def _require_alive(self) -> None:
        if self.die_at and self.calls >= self.die_at:
            raise KilledError

    def _walk(self, path: str, node: File | Folder | None) -> File | Folder:
        """Return what a path names, from an open directory or the root."""
        if path.startswith("/"):
            if path != self._root and not path.startswith(self._root + "/"):
                return Folder(0, 0)  # above the root everything is there and nothing else matters
            path, node = path[len(self._root) + 1 :], self._top
        for name in path.split("/") if path else ():
            if isinstance(node, File):
                raise _error(errno.ENOTDIR)
            node = None if node is None else node.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT)
        return node

    def _folder_at(self, at: int | None) -> Folder:
        node = self._open[at] if at is not None else self._top
        assert isinstance(node, Folder)
        return node

    def _opened(self, node: File | Folder) -> int:
        self._last_fd += 1
        self._open[self._last_fd] = node
        return self._last_fd

    def _file_of(self, fd: int) -> File:
        node = self._open[fd]
        assert isinstance(node, File)
        return node

    def _status(self, node: File | Folder) -> os.stat_result:
        mode, size = (_FILE, len(node.content)) if isinstance(node, File) else (_FOLDER, 4096)
        when = node.changed_ns
        whole = when // 10**9
        fields = (mode, node.number, 1, 1, self._uid, self._uid, size, whole, whole, whole)
        return os.stat_result(
            fields, {"st_mtime": when / 1e9, "st_mtime_ns": when, "st_ctime_ns": when}
        )

    # ------------------------------------------------------------------ the calls

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        self._require_alive()
        folder = self._folder_at(at)
        node = folder.entries.get(path)
        if node is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT)
            made = self._file()
            self._dying(lambda: folder.entries.update({path: made}))
            return self._opened(made)
        if flags & os.O_EXCL:
            raise _error(errno.EEXIST)
        if flags & os.O_DIRECTORY and isinstance(node, File):
            raise _error(errno.ENOTDIR)
        return self._opened(node)

    def open_root(self, path: str) -> int:
        self._require_alive()
        node = self._walk(path, None)
        if isinstance(node, File):
            raise _error(errno.ENOTDIR)
        return self._opened(node)

    def close(self, fd: int) -> None:
        self._require_alive()
        node = self._open.pop(fd)
        if isinstance(node, File) and node.locked_by == fd:
            node.locked_by = None

    def mkdir(self, path: str, *, at: int | None = None) -> None:
        self._require_alive()
        made = self._folder()
        if at is None:
            if self._top is not None or path != self._root:
                raise _error(errno.EEXIST)
            self._dying(lambda: setattr(self, "_top", made))
            return
        folder = self._folder_at(at)
        if path in folder.entries:
            raise _error(errno.EEXIST)
        self._dying(lambda: folder.entries.update({path: made}))

    def fstat(self, fd: int) -> os.stat_result:
        self._require_alive()
        return self._status(self._open[fd])

    def lstat(self, path: str, *, at: int | None = None) -> os.stat_result:
        self._require_alive()
        return self._status(self._walk(path, None if at is None else self._open[at]))

    def listdir(self, fd: int) -> list[str]:
        self._require_alive()
        return list(self._folder_at(fd).entries)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._require_alive()
        if size < 0 or offset < 0:
            raise _error(errno.EINVAL)
        return self._file_of(fd).content[offset : offset + size]

    def next_data(self, fd: int, offset: int) -> int | None:
        self._require_alive()
        return offset if offset < len(self._file_of(fd).content) else None

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._require_alive()
        file, written = self._file_of(fd), bytes(data)

        def add(part: bytes) -> None:
            file.content += part
            file.changed_ns = self._tick()

        self._dying(lambda: add(written), lambda: add(written[: len(written) // 2]))
        return len(written)

    def copy(self, source: int, offset: int, fd: int, size: int) -> int:
        return self.write(fd, self.pread(source, size, offset))

    def shares(self, source: int, directory: int) -> bool:
        return False

    def truncate(self, fd: int, length: int) -> None:
        self._require_alive()
        file = self._file_of(fd)

        def cut() -> None:
            file.content = file.content[:length].ljust(length, b"\0")
            file.changed_ns = self._tick()

        self._dying(cut)

    def fdatasync(self, fd: int) -> None:
        self._dying(lambda: None)

    def fsync(self, fd: int) -> None:
        self._dying(lambda: None)

    def drop_cache(self, fd: int) -> None:
        self._require_alive()

    def link(self, path: str, new: str, *, at: int) -> None:
        self._require_alive()
        folder = self._folder_at(at)
        if new in folder.entries:
            raise _error(errno.EEXIST)
        node = self._walk(path, folder)
        self._dying(lambda: folder.entries.update({new: node}))

    def rename(self, path: str, new: str, *, at: int) -> None:
        self._require_alive()
        folder = self._folder_at(at)
        node = self._walk(path, folder)

        def move() -> None:
            del folder.entries[path]
            folder.entries[new] = node

        self._dying(move)

    def unlink(self, path: str, *, at: int) -> None:
        self._require_alive()
        folder = self._folder_at(at)
        self._walk(path, folder)
        self._dying(lambda: folder.entries.pop(path, None))

    def rmdir(self, path: str, *, at: int) -> None:
        self._require_alive()
        folder = self._folder_at(at)
        inner = self._walk(path, folder)
        if isinstance(inner, File):
            raise _error(errno.ENOTDIR)
        if inner.entries:
            raise _error(errno.ENOTEMPTY)
        self._dying(lambda: folder.entries.pop(path, None))

    def lock(self, fd: int) -> None:
        self._require_alive()
        file = self._file_of(fd)
        if file.locked_by is not None and file.locked_by != fd:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        file.locked_by = fd


def _collect(folder: Folder, prefix: str, found: Tree) -> None:
    for name, node in sorted(folder.entries.items()):
        if isinstance(node, File):
            found[prefix + name] = node.content
        else:
            found[prefix + name] = None
            _collect(node, f"{prefix}{name}/", found)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
