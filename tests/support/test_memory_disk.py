"""The disk in memory beside the real one: every call with every kind of thing it can be given, and what it leaves.

The rule that holds here: both are asked the same, and nothing is written down of what the kernel says.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import pytest

from dshd.storage.files import APPEND, CREATE, DIRECTORY, LOCK, READ, RealDisk
from support.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dshd.storage.files import Disk
    from support.memory_tree import Names, Node

FDS = ("root", "reading", "appending", "other", "folder", "removed", "closed")
KINDS = (READ, APPEND, CREATE, LOCK, DIRECTORY)
PATHS = ("f", "twin", "empty", "full", "full/x", "full/new", "new", "new/x", "f/x")
CLOSED = 999_999
"""A number that is open nowhere."""


class Rooted(RealDisk):
    """The real disk, below a directory."""

    def __init__(self, top: Path) -> None:
        self._top = top

    def _below(self, path: str) -> str:
        return f"{self._top}{path}" if path.startswith("/") else path

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        return super().open(self._below(path), flags, at=at)

    def open_root(self, path: str) -> int:
        return super().open_root(self._below(path))

    def mkdir(self, path: str, *, at: int | None = None) -> None:
        super().mkdir(self._below(path), at=at)

    def lstat(self, path: str, *, at: int | None = None) -> os.stat_result:
        return super().lstat(self._below(path), at=at)


class Scene:
    """Some files and directories, opened in several ways; the same on either disk."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        disk.mkdir(root)
        top = disk.open_root(root)
        for name in ("empty", "full", "removed"):
            disk.mkdir(name, at=top)
        for name in ("f", "full/x", "other"):
            fd = disk.open(name, CREATE, at=top)
            disk.write(fd, f"what {name} holds".encode())
            disk.close(fd)
        disk.link("f", "twin", at=top)
        self.fds = {
            "root": top,
            "reading": disk.open("f", READ, at=top),
            "appending": disk.open("f", APPEND, at=top),
            "other": disk.open("other", APPEND, at=top),
            "folder": disk.open("full", DIRECTORY, at=top),
            "removed": disk.open("removed", DIRECTORY, at=top),
            "closed": CLOSED,
        }
        disk.rmdir("removed", at=top)

    def seen(self) -> dict[str, object]:
        """Return all that is there: what a name leads to, and which names lead to the same."""
        found: dict[str, object] = {}
        first: dict[int, str] = {}
        todo = [self.root]
        while todo:
            folder = todo.pop()
            fd = self.disk.open_root(folder)
            for name in sorted(self.disk.listdir(fd)):
                path, status = f"{folder}/{name}", self.disk.lstat(name, at=fd)
                same = first.setdefault(status.st_ino, path)
                found[path.removeprefix(self.root)] = self.told(status), same[len(self.root) :]
                if stat.S_ISDIR(status.st_mode):
                    todo.append(path)
            self.disk.close(fd)
        return found

    def told(self, answer: object) -> object:
        """Return what is the same of an answer on every disk."""
        if isinstance(answer, list):
            return sorted(cast("list[str]", answer))
        if not isinstance(answer, os.stat_result):
            return answer
        size = answer.st_size if stat.S_ISREG(answer.st_mode) else None
        return answer.st_mode, answer.st_uid, size

    def outcome(self, call: Callable[[Scene], object]) -> object:
        """Make a call. Returns its answer or its error."""
        try:
            return self.told(call(self))
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def end(self) -> None:
        """Close everything."""
        for fd in self.fds.values():
            with suppress(OSError):
                self.disk.close(fd)


def made(name: str, args: tuple[object, ...], scene: Scene) -> object:
    """Make a call; the last argument of one that takes names is the directory they are in."""
    call: Any = getattr(scene.disk, name)
    if name in {"open", "mkdir", "lstat", "link", "rename", "unlink", "rmdir"}:
        *names, at = args
        answer = call(*names, at=scene.fds[str(at)])
    elif name == "open_root":
        answer = call(f"{scene.root}/{args[0]}")
    else:
        answer = call(*(scene.fds[one] if isinstance(one, str) else one for one in args))
    if name not in {"open", "open_root"}:
        return answer
    status = scene.disk.fstat(answer)
    scene.disk.close(answer)
    return status


def calls() -> Iterator[tuple[object, ...]]:
    """Yield the calls: name and arguments."""
    ats = ("root", "reading", "removed", "closed")
    yield from product(["open"], PATHS, KINDS, ats)
    yield from product(["open_root"], PATHS)
    yield from product(["mkdir", "lstat", "unlink", "rmdir"], PATHS, ats)
    yield from product(["link", "rename"], PATHS, PATHS, ["root"])
    yield from product(["link", "rename"], ["f", "new"], ["new", "empty"], ats)
    yield from (("rename", "full", "full/x/y", "root"), ("rename", "full", "full/new/y", "root"))
    yield from product(["close", "fstat", "listdir", "drop_cache", "lock"], FDS)
    yield from product(["fsync", "fdatasync"], FDS)
    yield from product(["pread"], FDS, [-1, 0, 3, 1000], [-1, 0, 4, 1000])
    yield from product(["next_data"], ["reading", "appending"], [0, 4, 12, 1000])
    yield from product(["write"], FDS, [b"", b"more"])
    yield from product(["copy"], FDS, [0, 4, 1000], FDS, [0, 3])
    yield from product(["truncate"], FDS, [-1, 0, 3, 1000])


def test_every_call_says_and_leaves_what_it_does_on_the_real_disk(tmp_path: Path) -> None:
    real, in_memory = Rooted(tmp_path), MemoryDisk()
    unlike: list[str] = []
    scenes: list[Scene] = []
    before: dict[str, object] = {}
    for number, (name, *args) in enumerate(calls()):
        if not scenes:
            scenes = [Scene(disk, f"/{number}") for disk in (real, in_memory)]
            before = scenes[0].seen()
        call = partial(made, str(name), tuple(args))
        said = [scene.outcome(call) for scene in scenes]
        left = [scene.seen() for scene in scenes]
        if said[0] != said[1] or left[0] != left[1]:
            unlike.append(f"{name}{tuple(args)}: {said[0]} there, {said[1]} in memory")
        if left != [before, before] or name in {"close", "lock"} or unlike:
            while scenes:
                scenes.pop().end()
    while scenes:
        scenes.pop().end()
    assert not unlike, "\n".join(unlike)


def locked_by_another(scene: Scene) -> None:
    scene.disk.lock(scene.fds["reading"])
    scene.disk.lock(scene.fds["reading"])
    scene.disk.lock(scene.fds["appending"])


def locked_after_another(scene: Scene) -> None:
    scene.disk.lock(scene.fds["reading"])
    scene.disk.close(scene.fds["reading"])
    scene.disk.lock(scene.fds["appending"])


def written_through_a_name_that_is_gone(scene: Scene) -> object:
    scene.disk.unlink("other", at=scene.fds["root"])
    scene.disk.write(scene.fds["other"], b" and more")
    return scene.disk.pread(scene.fds["other"], 1000, 0)


def written_through_another_name(scene: Scene) -> object:
    scene.disk.write(scene.fds["appending"], b" and more")
    scene.disk.rename("twin", "full/x", at=scene.fds["root"])
    return scene.disk.pread(scene.fds["reading"], 1000, 0)


def made_in_a_directory_that_was_replaced(scene: Scene) -> None:
    disk, top = scene.disk, scene.fds["root"]
    fd = disk.open("empty", DIRECTORY, at=top)
    disk.mkdir("another", at=top)
    disk.rename("another", "empty", at=top)
    try:
        disk.mkdir("inner", at=fd)
    finally:
        disk.close(fd)


@pytest.mark.parametrize(
    "story",
    [
        locked_by_another,
        locked_after_another,
        written_through_a_name_that_is_gone,
        written_through_another_name,
        made_in_a_directory_that_was_replaced,
    ],
    ids=lambda story: story.__name__,
)
def test_calls_behind_one_another_go_as_on_the_real_disk(
    tmp_path: Path, story: Callable[[Scene], object]
) -> None:
    scenes = [Scene(disk, "/one") for disk in (Rooted(tmp_path), MemoryDisk())]
    said = [scene.outcome(story) for scene in scenes]
    left = [scene.seen() for scene in scenes]
    for scene in scenes:
        scene.end()
    assert said[0] == said[1]
    assert left[0] == left[1]


class Watched(MemoryDisk):
    """Writes down what passes its hooks; refuses one call."""

    def __init__(self, refused: str = "") -> None:
        super().__init__()
        self.told: list[str] = []
        self._refused = refused

    def before(self, call: str, node: Node, about: object) -> None:
        if call == self._refused:
            raise KeyboardInterrupt
        self.told.append(f"{call} {about}")

    def named(self, changes: Names) -> None:
        self.told.append(", ".join(name for _, name, _ in changes))


def test_a_hook_sees_what_is_about_to_be_done_and_not_what_is_refused() -> None:
    disk = Watched()
    disk.mkdir("/a")
    with pytest.raises(FileExistsError):
        disk.mkdir("/a")
    with pytest.raises(FileNotFoundError):
        disk.unlink("b", at=disk.open_root("/"))
    disk.rename("a", "b", at=disk.open_root("/"))
    assert disk.told == ["mkdir /a", "a", "rename b", "b, a"]


def test_what_a_hook_refuses_is_not_done() -> None:
    disk = Watched("write")
    fd = disk.open("/a", CREATE)
    with pytest.raises(KeyboardInterrupt):
        disk.write(fd, b"x")
    stored = disk.stored()["a"]
    assert stored is not None
    assert stored.data == b""
