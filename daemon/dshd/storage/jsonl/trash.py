"""The trash, `.trash` under the root: deleted sessions, each with everything that lay beside its log.

`.trash/<when>-<six hex digits>/<project>/<segment>/`: one entry a deletion, so that an id may be deleted again, and the
place to which a session goes back is in its path. The rule that holds here: a session is renamed and never read, so
that what a newer or another program wrote comes back as it was; of a crash at any point it is found in the one place or
the other, whole. What is removed for good gets a name that no one looks for, `.trash/gone-<hex>`, before a file of it
goes: half a session never comes back.
"""

from __future__ import annotations

import re
import secrets
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from dsh_protocol.errors import SessionExistsError
from dshd.storage.files import DIRECTORY
from dshd.storage.jsonl.layout import decode_segment, is_project

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dshd.storage.files import Disk
    from dshd.storage.jsonl.root import Root

TRASH = ".trash"
_ENTRY = re.compile(r"([0-9]{13,16})-[0-9a-f]{6}")
_GONE = re.compile(r"gone-[0-9a-f]{16}")


class Deleted(NamedTuple):
    """One session's directory in the trash; several of one entry belong to one deletion."""

    entry: str
    project: str
    segment: str

    @property
    def deleted_at(self) -> int:
        """When, in epoch milliseconds."""
        return int(self.entry.partition("-")[0])

    @property
    def folder(self) -> str:
        """Where the project's directory is, relative to the root."""
        return f"{TRASH}/{self.entry}/{self.project}"


class Trash:
    """The trash of one root. Every method raises OSError as the kernel gave it."""

    def __init__(self, root: Root, disk: Disk) -> None:
        self._root = root
        self._disk = disk

    def put(self, projects: Iterable[str], segment: str) -> None:
        """Move a session's directories here, durable on return."""
        root = self._root.make()
        try:
            entry = f"{time.time_ns() // 1_000_000:013}-{secrets.token_hex(3)}"
            trash = self._make(root, TRASH)
            try:
                inside = self._make(trash, entry)
                try:
                    for project in projects:
                        self._move(root, inside, Deleted(entry, project, segment))
                finally:
                    self._disk.close(inside)
            finally:
                self._disk.close(trash)
        finally:
            self._disk.close(root)

    def _move(self, root: int, inside: int, deleted: Deleted) -> None:
        folder = self._make(inside, deleted.project)
        try:
            place = f"{deleted.project}/{deleted.segment}"
            self._disk.rename(place, f"{deleted.folder}/{deleted.segment}", at=root)
            self._disk.fsync(folder)  # first where it is now: a name too many does no harm
        finally:
            self._disk.close(folder)
        self._sync(root, deleted.project)

    def find(self, segment: str) -> list[Deleted]:
        """Return what was deleted last under that directory name; several of one session that lay twice."""
        newest: list[Deleted] = []
        for one in self.each():
            if one.segment == segment:
                if newest and newest[0].entry != one.entry:
                    newest.clear()
                newest.append(one)
        return newest

    def each(self) -> Iterator[Deleted]:
        """Yield all that lies here, what was deleted first first."""
        try:
            root = self._disk.open_root(self._root.path)
        except FileNotFoundError:
            return
        try:
            for entry in sorted(filter(_ENTRY.fullmatch, self._names(root, TRASH))):
                for project in filter(is_project, self._names(root, f"{TRASH}/{entry}")):
                    for segment in self._names(root, f"{TRASH}/{entry}/{project}"):
                        if decode_segment(segment) is not None:
                            yield Deleted(entry, project, segment)
        finally:
            self._disk.close(root)

    def restore(self, found: Iterable[Deleted]) -> None:
        """Move directories back to where they were, durable on return.

        Raises:
            SessionExistsError: Something stands in that place.
        """
        root = self._root.make()
        try:
            for one in found:
                self._restore(root, one)
        finally:
            self._disk.close(root)

    def _restore(self, root: int, one: Deleted) -> None:
        project = self._make(root, one.project)
        try:
            place = f"{one.project}/{one.segment}"
            try:
                self._disk.rename(f"{one.folder}/{one.segment}", place, at=root)
            except FileExistsError as error:
                raise _taken(self._root.full(place)) from error
            except OSError as error:
                if self._stands(root, place):
                    raise _taken(self._root.full(place)) from error
                raise
            self._disk.fsync(project)
        finally:
            self._disk.close(project)
        self._sync(root, one.folder)
        self._tidy(root, one)

    def _tidy(self, root: int, one: Deleted) -> None:
        with suppress(OSError):  # empty ones are only untidy
            self._disk.rmdir(one.folder, at=root)
            self._disk.rmdir(f"{TRASH}/{one.entry}", at=root)

    def remove(self, segment: str, deleted_at: int) -> bool:
        """Remove for good what was deleted at that time; return whether there was any. Durable on return."""
        found = [
            one for one in self.each() if one.segment == segment and one.deleted_at == deleted_at
        ]
        if not found:
            return False
        root = self._disk.open_root(self._root.path)
        try:
            for one in found:
                gone = f"{TRASH}/gone-{secrets.token_hex(8)}"
                self._disk.rename(f"{one.folder}/{segment}", gone, at=root)
            self._sync(root, TRASH)  # first the new name: what is half removed must not come back
            for one in found:
                self._sync(root, one.folder)
                self._tidy(root, one)
            self._sweep(root)
        finally:
            self._disk.close(root)
        return True

    def _sweep(self, root: int) -> None:
        """Remove what is no session any more, also what a crash has left of it."""
        trash = self._disk.open(TRASH, DIRECTORY, at=root)
        try:
            for name in filter(_GONE.fullmatch, self._disk.listdir(trash)):
                self._empty(trash, name)
            self._disk.fsync(trash)
        finally:
            self._disk.close(trash)

    def _empty(self, at: int, name: str) -> None:
        """Remove a directory with all that is in it; links are removed, not followed. Two may do it at a time."""
        with suppress(FileNotFoundError):
            inside = self._disk.open(name, DIRECTORY, at=at)
            try:
                for inner in self._disk.listdir(inside):
                    with suppress(FileNotFoundError):
                        if stat.S_ISDIR(self._disk.lstat(inner, at=inside).st_mode):
                            self._empty(inside, inner)
                        else:
                            self._disk.unlink(inner, at=inside)
            finally:
                self._disk.close(inside)
            self._disk.rmdir(name, at=at)

    # ------------------------------------------------------------------ directories

    def _make(self, at: int, name: str) -> int:
        """Make a directory where it is missing, durable, and open it."""
        with suppress(FileExistsError):
            self._disk.mkdir(name, at=at)
        self._disk.fsync(at)
        return self._disk.open(name, DIRECTORY, at=at)

    def _sync(self, root: int, relative: str) -> None:
        fd = self._disk.open(relative, DIRECTORY, at=root)
        try:
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)

    def _names(self, root: int, relative: str) -> list[str]:
        """Return the names in a directory; none where there is none."""
        try:
            fd = self._disk.open(relative, DIRECTORY, at=root)
        except OSError:
            return []
        try:
            return sorted(self._disk.listdir(fd))
        finally:
            self._disk.close(fd)

    def _stands(self, root: int, relative: str) -> bool:
        """Whether something that is no empty directory stands there."""
        try:
            found = self._disk.lstat(relative, at=root)
        except OSError:
            return False
        return not stat.S_ISDIR(found.st_mode) or bool(self._names(root, relative))


def _taken(path: str) -> SessionExistsError:
    return SessionExistsError(
        f"{path!r} stands where the deleted session belongs; move it away, then undelete again",
        path=path,
    )
