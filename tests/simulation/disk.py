"""A disk in memory that knows what was synced and forgets the rest when the power goes.

The rule that holds here: what is read comes from the page cache, what survives a cut is what was synced, and of what
was not, any part may survive: a prefix of the writes, the last of them torn; any of the names that were changed. A
failed sync loses what it should have written for good, while the cache goes on showing it, as Linux does. Once the
power is off every call fails, also those of a `finally`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.memory_disk import MemoryDisk
from support.memory_tree import File, Folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from support.memory_tree import Names, Node

SECTOR = 512
_SYNCS = frozenset({"fsync", "fdatasync"})


class PowerCutError(BaseException):
    """The machine is off. No handler of errors may take this for one of its own."""


@dataclass(eq=False, slots=True)
class _Bytes:
    """What a file has besides what is read.

    Attributes:
        durable: What a cut leaves in any case.
        pending: The changes since, in order: (offset, bytes), or a cut (length, None).
        stale: The cache shows what the disk never got.
    """

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list[tuple[int, bytes | None]])
    stale: bool = False

    def settle(self, data: bytearray) -> None:
        """Make everything pending durable."""
        if self.stale:
            self.durable = _applied(self.durable, self.pending)
        elif self.pending:
            self.durable = bytes(data)
        self.pending.clear()

    def fail(self) -> None:
        """Forget everything pending: it is clean now, and nowhere."""
        self.stale = self.stale or bool(self.pending)
        self.pending.clear()

    def survive(self, chance: Random) -> None:
        """Become what a power cut leaves."""
        if self.pending:
            count = chance.randint(0, len(self.pending))
            found = _applied(self.durable, self.pending[:count])
            if count < len(self.pending):
                found = _torn(found, *self.pending[count], chance)
            self.durable = found
        self.pending.clear()
        self.stale = False


@dataclass(eq=False, slots=True)
class _Names:
    """What a directory has besides what is seen: the durable names, and the changes since, (name, node or None)."""

    durable: dict[str, Node] = field(default_factory=dict[str, "Node"])
    pending: list[tuple[str, Node | None]] = field(default_factory=list[tuple[str, "Node | None"]])

    def settle(self, entries: dict[str, Node]) -> None:
        """Make every name durable."""
        self.durable = dict(entries)
        self.pending.clear()

    def survive(self, chance: Random) -> None:
        """Become what a power cut leaves: every unsynced change of a name is there or not."""
        for name, node in self.pending:
            if chance.random() < 0.5:
                _set(self.durable, name, node)
        self.pending.clear()


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


class VirtualDisk(MemoryDisk):
    """The disk of one machine; see the module.

    Args:
        clock: The file system's.
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
        self, clock: Callable[[], int], note: Callable[[str], None] = lambda _: None
    ) -> None:
        self.off = False
        super().__init__(now_ns=clock())
        self.changes = 0
        self.cut_at = 0
        self.faults: tuple[Fault, ...] = ()
        self.short = False
        self.lies_of_files = False
        self.lies_of_folders = False
        self.died: Callable[[], None] = lambda: None
        self._clock = clock
        self._note = note
        self._bytes: dict[File, _Bytes] = {}
        self._names: dict[Folder, _Names] = {}

    # ------------------------------------------------------------------ the power

    def stop(self, chance: Random, *, power: bool) -> None:
        """Let the process end, with the power of the machine or alone; then the disk can be used again."""
        self.let_go()
        self.off = False
        self.cut_at = 0
        todo: list[Folder] = [self.top] if power else []
        while todo:
            folder = todo.pop()
            names = self._names_of(folder)
            names.survive(chance)
            folder.entries = dict(names.durable)
            for node in folder.entries.values():
                if isinstance(node, Folder):
                    todo.append(node)
                else:
                    content = self._bytes_of(node)
                    content.survive(chance)
                    node.data = bytearray(content.durable)

    def _bytes_of(self, file: File) -> _Bytes:
        return self._bytes.setdefault(file, _Bytes())

    def _names_of(self, folder: Folder) -> _Names:
        return self._names.setdefault(folder, _Names())

    # ------------------------------------------------------------------ what befalls a call

    def tick(self) -> int:
        self.now_ns = self._clock()
        return self.now_ns

    def using(self, call: str) -> None:
        if self.off:
            raise PowerCutError

    def before(self, call: str, node: Node, about: object) -> None:
        """Count a call that changes something, and let it fail where it is to."""
        self.changes += 1
        self._note(f"{self.changes} {call} {about}")
        if self.changes == self.cut_at:
            self.off = True
            self.died()
            raise PowerCutError
        fault = self._fault(self.changes)
        if fault is None or (call in _SYNCS and self._lies_of(node)):
            return
        if call in _SYNCS and isinstance(node, File):
            self._bytes_of(node).fail()
        raise OSError(fault.number, os.strerror(fault.number))

    def locking(self, node: Node) -> None:
        self.before("lock", node, node.ino)

    def _fault(self, number: int) -> Fault | None:
        return next((one for one in self.faults if one.first <= number <= one.last), None)

    def _lies_of(self, node: Node) -> bool:
        return self.lies_of_files if isinstance(node, File) else self.lies_of_folders

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.using("write")
        fault = self._fault(self.changes + 1)
        if fault is not None and fault.half and self.changes + 1 != self.cut_at:
            self.append(self.writable(fd), bytes(data[: len(data) // 2]))
        return super().write(fd, data[:-1] if self.short and len(data) > 1 else data)

    # ------------------------------------------------------------------ what is durable

    def wrote(self, file: File, offset: int, data: bytes) -> None:
        self._bytes_of(file).pending.append((offset, data))

    def cut(self, file: File, length: int) -> None:
        self._bytes_of(file).pending.append((length, None))

    def named(self, changes: Names) -> None:
        for folder, name, node in changes:
            self._names_of(folder).pending.append((name, node))

    def synced(self, call: str, node: Node) -> None:
        if self._lies_of(node):
            return
        if isinstance(node, File):
            self._bytes_of(node).settle(node.data)
        else:
            self._names_of(node).settle(node.entries)

    def drop_cache(self, fd: int) -> None:
        super().drop_cache(fd)
        file = self.node_of(fd)
        assert isinstance(file, File)
        content = self._bytes_of(file)
        if content.stale and not content.pending:
            size = len(file.data)
            file.data = bytearray(content.durable[:size].ljust(size, b"\0"))
