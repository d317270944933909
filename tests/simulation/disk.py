"""A disk in memory that knows what was synced and forgets the rest when the power goes.

The rule that holds here: what is read comes from the page cache, what survives a cut is what was synced, and of what
was not, any part may survive: a prefix of the writes, the last of them torn; any of the names that were changed. A
failed sync loses what it should have written for good, while the cache goes on showing it, as Linux does. Once the
power is off every call fails, also those of a `finally`.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dshd.storage.files import APPEND, CREATE, DIRECTORY, LOCK

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

SECTOR = 512
_FILE_MODE = stat.S_IFREG | 0o600
_FOLDER_MODE = stat.S_IFDIR | 0o700
_FIRST_FD = 1_000_000
"""No number that the process could have open: what passes by the door fails."""
_CREATING = frozenset({CREATE, LOCK})


class PowerCutError(BaseException):
    """The machine is off. No handler of errors may take this for one of its own."""


@dataclass(eq=False, slots=True)
class File:
    """A regular file.

    Attributes:
        data: What is read.
        durable: What a cut leaves in any case.
        pending: The changes since, in order: (offset, bytes), or a cut (length, None).
        stale: The cache shows what the disk never got.
        holder: The descriptor that has the flock.
    """

    ino: int
    time_ns: int
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list[tuple[int, bytes | None]])
    stale: bool = False
    holder: int | None = None

    def settle(self) -> None:
        """Make everything pending durable."""
        if self.stale:
            self.durable = _applied(self.durable, self.pending)
        elif self.pending:
            self.durable = bytes(self.data)
        self.pending.clear()

    def survive(self, chance: Random) -> None:
        """Become what a power cut leaves."""
        found = self.durable
        if self.pending:
            count = chance.randint(0, len(self.pending))
            found = _applied(found, self.pending[:count])
            if count < len(self.pending):
                found = _torn(found, *self.pending[count], chance)
        self.durable = found
        self.data = bytearray(found)
        self.pending.clear()
        self.stale = False


@dataclass(eq=False, slots=True)
class Folder:
    """A directory: the names that are seen, the durable ones, and the changes since: (name, node or None)."""

    ino: int
    time_ns: int
    entries: dict[str, Node] = field(default_factory=dict[str, "Node"])
    durable: dict[str, Node] = field(default_factory=dict[str, "Node"])
    pending: list[tuple[str, Node | None]] = field(default_factory=list[tuple[str, "Node | None"]])

    def settle(self) -> None:
        """Make every name durable."""
        self.durable = dict(self.entries)
        self.pending.clear()

    def survive(self, chance: Random) -> None:
        """Become what a power cut leaves: every unsynced change of a name is there or not."""
        for name, node in self.pending:
            if chance.random() < 0.5:
                _set(self.durable, name, node)
        self.pending.clear()
        self.entries = dict(self.durable)


Node = File | Folder


def _set(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _applied(content: bytes, changes: list[tuple[int, bytes | None]]) -> bytes:
    found = bytearray(content)
    for offset, data in changes:
        if data is None:
            del found[offset:]
        else:
            found += bytes(max(0, offset - len(found)))
            found[offset : offset + len(data)] = data
    return bytes(found)


def _torn(before: bytes, offset: int, data: bytes | None, chance: Random) -> bytes:
    """Return what may be there of one change that the cut interrupted."""
    if data is None or not data:
        return before
    before = before[:offset].ljust(offset, b"\0")
    kind, cut = chance.randrange(5), chance.randrange(len(data))
    if kind == 0:
        return before + data[:cut]
    if kind == 1:  # the length came first
        return before + data[:cut] + bytes(len(data) - cut)
    if kind == 2:
        return before + data[:cut] + chance.randbytes(len(data) - cut)
    start = max(0, (offset + cut) // SECTOR * SECTOR - offset)
    end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
    return before + data[:start] + bytes(end - start) + data[end:]


@dataclass(frozen=True, slots=True)
class Fault:
    """Calls that fail.

    Attributes:
        first: The number of the first changing call that does.
        last: Of the last one.
        number: The errno.
        half: A failing write takes half of what it was given.
    """

    first: int
    last: int
    number: int
    half: bool = False


class VirtualDisk:
    """The disk of one machine; see the module.

    Args:
        now_ns: The file system's clock.
        note: Told of every changing call: its number, its name, and what it was about.

    Attributes:
        changes: How many changing calls were made.
        cut_at: Before which of them the power goes; 0 for never.
        faults: Which of them fail.
        short: Writes take one byte less than they were given.
        lies_of_files, lies_of_folders: A sync of one says that it was done, and nothing was.
        died: Called when the power goes by `cut_at`.
    """

    def __init__(
        self,
        now_ns: Callable[[], int],
        note: Callable[[str], None] = lambda _: None,
        *,
        uid: int | None = None,
    ) -> None:
        self.changes = 0
        self.cut_at = 0
        self.off = False
        self.faults: tuple[Fault, ...] = ()
        self.short = False
        self.lies_of_files = False
        self.lies_of_folders = False
        self.died: Callable[[], None] = lambda: None
        self._now_ns = now_ns
        self._note = note
        self._uid = os.geteuid() if uid is None else uid
        self._open: dict[int, tuple[Node, int]] = {}
        self._next_fd = _FIRST_FD
        self._next_ino = 1
        self.top = Folder(0, now_ns())

    # ------------------------------------------------------------------ the power

    def stop(self, chance: Random, *, power: bool) -> None:
        """Let the process end, with the power of the machine or alone; then the disk can be used again."""
        self._open.clear()
        todo: list[Folder] = [self.top]
        while todo:
            folder = todo.pop()
            if power:
                folder.survive(chance)
            for node in folder.entries.values():
                if isinstance(node, Folder):
                    todo.append(node)
                else:
                    node.holder = None
                    if power:
                        node.survive(chance)
        self.off = False
        self.cut_at = 0

    def _changing(self, name: str, about: object) -> Fault | None:
        """Count a call that changes something; raise what it is to fail with."""
        if self.off:
            raise PowerCutError
        self.changes += 1
        self._note(f"{self.changes} {name} {about}")
        if self.changes == self.cut_at:
            self.off = True
            self.died()
            raise PowerCutError
        for fault in self.faults:
            if fault.first <= self.changes <= fault.last:
                if name in {"write", "sync"}:
                    return fault
                raise _failure(fault)
        return None

    # ------------------------------------------------------------------ names

    def _node(self, path: str, at: int | None) -> Node:
        if self.off:
            raise PowerCutError
        node: Node = self.top if at is None else self._folder(at)
        for part in path.split("/"):
            if part in {"", "."}:
                continue
            if not isinstance(node, Folder):
                raise _error(errno.ENOTDIR, path)
            found = node.entries.get(part)
            if found is None:
                raise _error(errno.ENOENT, path)
            node = found
        return node

    def _above(self, path: str, at: int | None) -> tuple[Folder, str]:
        above, _, name = path.rstrip("/").rpartition("/")
        folder = self._node(above, at)
        if not isinstance(folder, Folder):
            raise _error(errno.ENOTDIR, path)
        return folder, name

    def _folder(self, fd: int) -> Folder:
        node = self._found(fd)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, str(fd))
        return node

    def _file(self, fd: int) -> File:
        node = self._found(fd)
        if not isinstance(node, File):
            raise _error(errno.EISDIR, str(fd))
        return node

    def _found(self, fd: int) -> Node:
        if self.off:
            raise PowerCutError
        found = self._open.get(fd)
        if found is None:
            raise _error(errno.EBADF, str(fd))
        return found[0]

    def _enter(self, folder: Folder, name: str, node: Node | None) -> None:
        _set(folder.entries, name, node)
        folder.pending.append((name, node))
        folder.time_ns = self._now_ns()

    def _new_fd(self, node: Node, flags: int) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = (node, flags)
        return self._next_fd

    # ------------------------------------------------------------------ the calls of the door

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        folder, name = self._above(path, at)
        node = folder.entries.get(name)
        if node is None:
            if flags not in _CREATING:
                raise _error(errno.ENOENT, path)
            self._changing("create", name)
            self._next_ino += 1
            node = File(self._next_ino, self._now_ns())
            self._enter(folder, name, node)
        elif flags == CREATE:
            raise _error(errno.EEXIST, path)
        elif isinstance(node, Folder):
            if flags in {APPEND, LOCK}:
                raise _error(errno.EISDIR, path)
        elif flags == DIRECTORY:
            raise _error(errno.ENOTDIR, path)
        return self._new_fd(node, flags)

    def open_root(self, path: str) -> int:
        node = self._node(path, None)
        if isinstance(node, File):
            raise _error(errno.ENOTDIR, path)
        return self._new_fd(node, DIRECTORY)

    def close(self, fd: int) -> None:
        if self.off:
            raise PowerCutError
        node, _ = self._open.pop(fd, (None, 0))
        if node is None:
            raise _error(errno.EBADF, str(fd))
        if isinstance(node, File) and node.holder == fd:
            node.holder = None

    def mkdir(self, path: str, *, at: int | None = None) -> None:
        folder, name = self._above(path, at)
        if name in folder.entries:
            raise _error(errno.EEXIST, path)
        self._changing("name", f"mkdir {path}")
        self._next_ino += 1
        self._enter(folder, name, Folder(self._next_ino, self._now_ns()))

    def fstat(self, fd: int) -> os.stat_result:
        return self._stat(self._found(fd))

    def lstat(self, path: str, *, at: int | None = None) -> os.stat_result:
        return self._stat(self._node(path, at))

    def _stat(self, node: Node) -> os.stat_result:
        mode, size = _FOLDER_MODE, 0
        if isinstance(node, File):
            mode, size = _FILE_MODE, len(node.data)
        at, ns = node.time_ns // 1_000_000_000, node.time_ns
        times = {"st_mtime": ns / 1e9, "st_mtime_ns": ns, "st_ctime_ns": ns}
        return os.stat_result((mode, node.ino, 1, 1, self._uid, 0, size, at, at, at), times)

    def listdir(self, fd: int) -> list[str]:
        return list(self._folder(fd).entries)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self._file(fd).data[offset : offset + size])

    def next_data(self, fd: int, offset: int) -> int | None:
        return offset if offset < len(self._file(fd).data) else None

    def write(self, fd: int, data: bytes | memoryview) -> int:
        file = self._file(fd)
        taken = bytes(data)
        fault = self._changing("write", len(taken))
        if fault is not None:
            if not fault.half:
                raise _failure(fault)
            taken = taken[: len(taken) // 2]
            self._append(file, taken)
            raise _failure(fault)
        if self.short and len(taken) > 1:
            taken = taken[:-1]
        self._append(file, taken)
        return len(taken)

    def _append(self, file: File, data: bytes) -> None:
        file.pending.append((len(file.data), data))
        file.data += data
        file.time_ns = self._now_ns()

    def copy(self, source: int, offset: int, fd: int, size: int) -> int:
        return self.write(fd, self.pread(source, size, offset))

    def shares(self, source: int, directory: int) -> bool:
        self._found(source)
        self._found(directory)
        return False

    def truncate(self, fd: int, length: int) -> None:
        file = self._file(fd)
        fault = self._changing("truncate", length)
        assert fault is None
        if length > len(file.data):
            self._append(file, bytes(length - len(file.data)))
            return
        del file.data[length:]
        file.pending.append((length, None))
        file.time_ns = self._now_ns()

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fsync(self, fd: int) -> None:
        node = self._found(fd)
        fault = self._changing("sync", node.ino)
        if (self.lies_of_files and isinstance(node, File)) or (
            self.lies_of_folders and isinstance(node, Folder)
        ):
            return
        if fault is None:
            node.settle()
            return
        if isinstance(node, File):  # what was to be written is clean now, and nowhere
            node.stale = node.stale or bool(node.pending)
            node.pending.clear()
        raise _failure(fault)

    def drop_cache(self, fd: int) -> None:
        file = self._file(fd)
        if file.stale and not file.pending:
            size = len(file.data)
            file.data = bytearray(file.durable[:size].ljust(size, b"\0"))

    def link(self, path: str, new: str, *, at: int) -> None:
        node = self._node(path, at)
        folder, name = self._above(new, at)
        if name in folder.entries:
            raise _error(errno.EEXIST, new)
        self._changing("name", f"link {new}")
        self._enter(folder, name, node)

    def rename(self, path: str, new: str, *, at: int) -> None:
        node = self._node(path, at)
        folder, name = self._above(path, at)
        target, new_name = self._above(new, at)
        self._changing("name", f"rename {new}")
        self._enter(target, new_name, node)
        self._enter(folder, name, None)

    def unlink(self, path: str, *, at: int) -> None:
        if isinstance(self._node(path, at), Folder):
            raise _error(errno.EISDIR, path)
        self._changing("name", "unlink")
        self._enter(*self._above(path, at), None)

    def rmdir(self, path: str, *, at: int) -> None:
        node = self._node(path, at)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        if node.entries:
            raise _error(errno.ENOTEMPTY, path)
        self._changing("name", f"rmdir {path}")
        self._enter(*self._above(path, at), None)

    def lock(self, fd: int) -> None:
        file = self._file(fd)
        if file.holder not in {None, fd}:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        self._changing("lock", file.ino)
        file.holder = fd


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _failure(fault: Fault) -> OSError:
    return OSError(fault.number, os.strerror(fault.number))
