"""A disk in memory: the calls of the disk door over dictionaries, for proofs that need thousands of disks a second.

The rule that holds here: a call does what the kernel would do with it, errors included, and is refused for what it was
given before anything else. Every call begins with `using`; one that changes, syncs or locks something passes `before`
when nothing can refuse it any more, and a hook that tells what was done as the last thing of all. A hook that raises
ends the call there, and from its first look at the disk to its last a call is one: no hook but `using` may wait.
Dying processes, power cuts and failing disks are made of these hooks, beside the proofs they are for.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NoReturn

from dshd.storage.files import CREATE, DIRECTORY, LOCK, READ
from support.memory_tree import File, Folder, collect, holds, status_of

if TYPE_CHECKING:
    from support.memory_tree import Names, Node, Stored, Tree

START_NS = 1_700_000_000_000_000_000
"""When a disk begins: long enough ago that what writers left behind is swept."""
STEP_NS = 1_000
_FIRST_FD = 1_000_000
"""No number of a real descriptor, so that a call that went past the door fails."""
_MAKING = frozenset({CREATE, LOCK})
_READING = frozenset({READ, DIRECTORY})


class MemoryDisk:
    """A whole file system with one user; see the module.

    Attributes:
        top: The directory `/`.
        now_ns: The file system's clock; it moves with every change, and whenever a test moves it.
    """

    def __init__(
        self, tree: Tree | None = None, *, now_ns: int = START_NS, step_ns: int = STEP_NS
    ) -> None:
        self.now_ns = now_ns
        self._step_ns = step_ns
        self._inos = 0
        self._open: dict[int, tuple[Node, int]] = {}
        self._locks: dict[Node, int] = {}
        self._removed: set[Folder] = set()
        self._next_fd = _FIRST_FD
        self.top = self.folder()
        for path, stored in (tree or {}).items():
            self.place(path, self.folder() if stored is None else self._restored(stored))

    # ------------------------------------------------------------------ hooks

    def using(self, call: str) -> None:
        """Learn that a call is made, before anything is looked at: here another thread may run.

        Args:
            call: Its name, or `create` for an `open` that may make a file.
        """

    def before(self, call: str, node: Node, about: object) -> None:
        """Look at a call that is about to change or sync something.

        Args:
            call: As `using` has it.
            node: The file, or the directory whose names are to change.
            about: The name or the size that it was given; of a sync, the inode.
        """

    def locking(self, node: Node) -> None:
        """Look at a lock that is about to be taken."""

    def wrote(self, file: File, offset: int, data: bytes) -> None:
        """Learn of bytes that were written."""

    def cut(self, file: File, length: int) -> None:
        """Learn of a file that was cut, or lengthened with a hole."""

    def named(self, changes: Names) -> None:
        """Learn of names that changed together."""

    def synced(self, call: str, node: Node) -> None:
        """Learn of a sync."""

    def tick(self) -> int:
        """Let the time go by that a change takes. Returns when it is over."""
        self.now_ns += self._step_ns
        return self.now_ns

    # ------------------------------------------------------------------ for tests and subclasses

    def folder(self) -> Folder:
        """Make a directory that has no name yet."""
        self._inos += 1
        return Folder(self._inos, self.now_ns)

    def file(self, data: bytes = b"") -> File:
        """Make a file that has no name yet."""
        self._inos += 1
        return File(self._inos, self.now_ns, bytearray(data))

    def place(self, path: str, node: Node) -> None:
        """Let a path from `/` name something, without a hook and without a change of time."""
        folder, name = self._above(path, None)
        folder.entries[name] = node

    def append(self, file: File, data: bytes) -> int:
        """Write to the end of a file, whatever is open."""
        offset = len(file.data)
        file.data += data
        file.time_ns = self.tick()
        self.wrote(file, offset, data)
        return len(data)

    def node_of(self, fd: int) -> Node:
        """Return what is open."""
        try:
            return self._open[fd][0]
        except KeyError:
            _fail(errno.EBADF, str(fd))

    def writable(self, fd: int, number: int = errno.EBADF) -> File:
        """Return the file that is open for writing; raises this error where it is not."""
        node = self.node_of(fd)
        if self._open[fd][1] in _READING or isinstance(node, Folder):
            _fail(number, str(fd))
        return node

    def let_go(self) -> None:
        """Do what the end of the process does: close everything, release every lock."""
        self._open.clear()
        self._locks.clear()
        self._removed.clear()

    @property
    def open_count(self) -> int:
        """How many descriptors are open."""
        return len(self._open)

    def stored(self) -> Tree:
        """Return all that is there, as a reader sees it."""
        found: Tree = {}
        collect(self.top, "", found)
        return found

    # ------------------------------------------------------------------ inside

    def _restored(self, stored: Stored) -> File:
        made = self.file(stored.data)
        made.ino, made.time_ns = stored.ino or made.ino, stored.time_ns
        return made

    def _walk(self, path: str, at: int | None) -> Node:
        node = self.top if at is None else self.node_of(at)
        if not isinstance(node, Folder):
            _fail(errno.ENOTDIR, path)
        found = node.entries.get(path)
        if found is not None:  # one name, as nearly all are
            return found
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
        folder = self._walk(above, at) if above or at is None else self.node_of(at)
        if not isinstance(folder, Folder):
            _fail(errno.ENOTDIR, path)
        return folder, name

    def _require_vacant(self, folder: Folder, name: str, path: str) -> None:
        if not name or name in folder.entries:
            _fail(errno.EEXIST, path)
        if folder in self._removed:
            _fail(errno.ENOENT, path)

    def _new_fd(self, node: Node, flags: int) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = node, flags
        return self._next_fd

    def _naming(self, call: str, folder: Folder, about: str) -> None:
        self.before(call, folder, about)
        self.tick()

    def _change(self, changes: Names) -> None:
        for folder, name, node in changes:
            folder.time_ns = self.now_ns
            if node is None:
                del folder.entries[name]
            else:
                folder.entries[name] = node
        self.named(changes)

    # ------------------------------------------------------------------ the door

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        self.using("create" if flags in _MAKING else "open")
        folder, name = self._above(path, at)
        node = folder.entries.get(name)
        if node is None:
            if flags not in _MAKING:
                _fail(errno.ENOENT, path)
            self._require_vacant(folder, name, path)
            self._naming("create", folder, name)
            node = self.file()
            self._change([(folder, name, node)])
        elif flags == CREATE:
            _fail(errno.EEXIST, path)
        elif isinstance(node, Folder):
            if flags not in _READING:
                _fail(errno.EISDIR, path)
        elif flags == DIRECTORY:
            _fail(errno.ENOTDIR, path)
        return self._new_fd(node, flags)

    def open_root(self, path: str) -> int:
        self.using("open_root")
        node = self._walk(path, None)
        if isinstance(node, File):
            _fail(errno.ENOTDIR, path)
        return self._new_fd(node, DIRECTORY)

    def close(self, fd: int) -> None:
        self.using("close")
        node = self.node_of(fd)
        if self._locks.get(node) == fd:
            del self._locks[node]
        del self._open[fd]

    def mkdir(self, path: str, *, at: int | None = None) -> None:
        self.using("mkdir")
        folder, name = self._above(path, at)
        self._require_vacant(folder, name, path)
        self._naming("mkdir", folder, path)
        self._change([(folder, name, self.folder())])

    def fstat(self, fd: int) -> os.stat_result:
        self.using("fstat")
        return status_of(self.node_of(fd))

    def lstat(self, path: str, *, at: int | None = None) -> os.stat_result:
        self.using("lstat")
        return status_of(self._walk(path, at))

    def listdir(self, fd: int) -> list[str]:
        self.using("listdir")
        node = self.node_of(fd)
        if not isinstance(node, Folder):
            _fail(errno.ENOTDIR, str(fd))
        return list(node.entries)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.using("pread")
        if size < 0 or offset < 0:
            _fail(errno.EINVAL, str(fd))
        node = self.node_of(fd)
        if isinstance(node, Folder):
            _fail(errno.EISDIR, str(fd))
        return bytes(memoryview(node.data)[offset : offset + size])

    def next_data(self, fd: int, offset: int) -> int | None:
        self.using("next_data")
        node = self.node_of(fd)
        return offset if isinstance(node, Folder) or offset < len(node.data) else None

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.using("write")
        file = self.writable(fd)
        self.before("write", file, len(data))
        return self.append(file, bytes(data))

    def copy(self, source: int, offset: int, fd: int, size: int) -> int:
        self.using("copy")
        nodes = self.node_of(source), self.node_of(fd)
        if any(isinstance(node, Folder) for node in nodes):
            _fail(errno.EISDIR, str(fd))
        self.writable(fd)
        return self.write(fd, self.pread(source, size, offset))

    def shares(self, source: int, directory: int) -> bool:
        self.using("shares")
        return False

    def truncate(self, fd: int, length: int) -> None:
        self.using("truncate")
        if length < 0:
            _fail(errno.EINVAL, str(fd))
        file = self.writable(fd, errno.EINVAL)
        self.before("truncate", file, length)
        del file.data[length:]
        file.data += bytes(length - len(file.data))
        file.time_ns = self.tick()
        self.cut(file, length)

    def fdatasync(self, fd: int) -> None:
        self.using("fdatasync")
        node = self.node_of(fd)
        self.before("fdatasync", node, node.ino)
        self.synced("fdatasync", node)

    def fsync(self, fd: int) -> None:
        self.using("fsync")
        node = self.node_of(fd)
        self.before("fsync", node, node.ino)
        self.synced("fsync", node)

    def drop_cache(self, fd: int) -> None:
        self.using("drop_cache")
        self.node_of(fd)

    def link(self, path: str, new: str, *, at: int) -> None:
        self.using("link")
        node = self._walk(path, at)
        folder, name = self._above(new, at)
        self._require_vacant(folder, name, new)
        if isinstance(node, Folder):
            _fail(errno.EPERM, path)
        self._naming("link", folder, new)
        node.time_ns = self.now_ns  # its change of status
        self._change([(folder, name, node)])

    def rename(self, path: str, new: str, *, at: int) -> None:
        self.using("rename")
        (source, old), (target, name) = self._above(path, at), self._above(new, at)
        node = self._walk(path, at)
        taken = target.entries.get(name)
        if isinstance(node, Folder) and holds(node, target):
            _fail(errno.EINVAL, new)
        if taken is None:
            self._require_vacant(target, name, new)
        elif taken is node:
            return  # two names of one file: the kernel leaves both
        elif isinstance(taken, Folder):
            if isinstance(node, File) and not holds(taken, source):
                _fail(errno.EISDIR, new)
            if taken.entries:
                _fail(errno.ENOTEMPTY, new)
        elif isinstance(node, Folder):
            _fail(errno.ENOTDIR, new)
        self._naming("rename", target, new)
        if isinstance(taken, Folder):
            self._removed.add(taken)
        self._change([(target, name, node), (source, old, None)])

    def unlink(self, path: str, *, at: int) -> None:
        self.using("unlink")
        folder, name = self._above(path, at)
        if isinstance(self._walk(path, at), Folder):
            _fail(errno.EISDIR, path)
        self._naming("unlink", folder, path)
        self._change([(folder, name, None)])

    def rmdir(self, path: str, *, at: int) -> None:
        self.using("rmdir")
        folder, name = self._above(path, at)
        node = self._walk(path, at)
        if isinstance(node, File):
            _fail(errno.ENOTDIR, path)
        if node.entries:
            _fail(errno.ENOTEMPTY, path)
        self._naming("rmdir", folder, path)
        self._removed.add(node)
        self._change([(folder, name, None)])

    def lock(self, fd: int) -> None:
        self.using("lock")
        node = self.node_of(fd)
        if self._locks.get(node, fd) != fd:
            _fail(errno.EWOULDBLOCK, str(fd))
        self.locking(node)
        self._locks[node] = fd


def _fail(number: int, what: str) -> NoReturn:
    raise OSError(number, os.strerror(number), what)
