"""A disk in memory that a test lays out, and whose process dies at any call.

The rule that holds here: its clock is a count of its changes, so that a run repeats to the nanosecond, and what is
written stays written: this is a process that ends, not a power that fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.memory_disk import MemoryDisk
from support.memory_tree import File, Folder

if TYPE_CHECKING:
    from support.memory_tree import Names, Node

Tree = dict[str, bytes | None]
"""Paths below the root: a file's bytes, None for a directory."""

ROOT = "memory"
_BEGAN_NS = 1_000_000_000
TICK_NS = 30_000_000
"""What one change takes: longer than what the store holds for a step of the clock."""


class KilledError(BaseException):
    """The process is gone. No `Exception`: nothing that the store catches may hold it up."""


class MortalDisk(MemoryDisk):
    """What is below the root `/memory`, which is not there until somebody makes it.

    Attributes:
        calls: How many calls were made that change something, or make it durable.
        die_at: The number of the call, from 1, at which the process ends; every later call finds it gone.
        moment: Whether it ends "before" that call, "after" it, or "half"-way in a write.
    """

    def __init__(self, *, moment: str = "before") -> None:
        super().__init__(now_ns=_BEGAN_NS, step_ns=TICK_NS)
        self.calls = 0
        self.die_at = 0
        self.moment = moment

    # ------------------------------------------------------------------ what tests do with it

    def tree(self) -> Tree:
        """Return all that is there."""
        below = f"{ROOT}/"
        return {
            path.removeprefix(below): stored and stored.data
            for path, stored in sorted(self.stored().items())
            if path.startswith(below)
        }

    def lay_out(self, tree: Tree) -> None:
        """Make everything anew, with nothing open and nothing locked."""
        self.let_go()
        self.place(ROOT, self.folder())
        for path, content in tree.items():
            self.tick()
            made = self.folder() if content is None else self.file(content)
            self.place(f"{ROOT}/{path}", made)

    def put(self, path: str, content: bytes | None) -> None:
        """Replace a file's bytes from outside, or take the file away."""
        folder, name = self._folder_of(path)
        found = folder.entries.get(name)
        self.tick()
        if content is None:
            folder.entries.pop(name, None)
        elif isinstance(found, File):
            found.data[:], found.time_ns = content, self.now_ns
        else:
            folder.entries[name] = self.file(content)

    def rot(self, path: str, content: bytes) -> None:
        """Change a file's bytes as a bad disk does: nobody is told, and no time is noted."""
        folder, name = self._folder_of(path)
        found = folder.entries[name]
        assert isinstance(found, File)
        found.data[:] = content

    def _folder_of(self, path: str) -> tuple[Folder, str]:
        folder: Node = self.top
        *above, name = f"{ROOT}/{path}".split("/")
        for part in above:
            assert isinstance(folder, Folder)
            folder = folder.entries[part]
        assert isinstance(folder, Folder)
        return folder, name

    def rest(self) -> None:
        """Let some time go by."""
        self.tick()

    def end_process(self) -> None:
        """Close everything, as the kernel does for a process that is gone; another one may begin."""
        self.let_go()
        self.die_at = self.calls = 0

    # ------------------------------------------------------------------ death

    def using(self, call: str) -> None:
        # as `_require_alive`, here: no method is called as often
        if self.die_at and self.calls >= self.die_at:
            raise KilledError

    def _require_alive(self) -> None:
        if self.die_at and self.calls >= self.die_at:
            raise KilledError

    def before(self, call: str, node: Node, about: object) -> None:
        self.calls += 1
        if self.moment != "after":
            self._require_alive()

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if self.moment == "half" and self.calls + 1 == self.die_at:
            self.append(self.writable(fd), bytes(data[: len(data) // 2]))
        return super().write(fd, data)

    def wrote(self, file: File, offset: int, data: bytes) -> None:
        self._require_alive()

    def cut(self, file: File, length: int) -> None:
        self._require_alive()

    def named(self, changes: Names) -> None:
        self._require_alive()

    def synced(self, call: str, node: Node) -> None:
        self._require_alive()
