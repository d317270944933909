"""The directories below a root: finding a session in them, opening one safely, making one durably.

The rule that holds here: every step down is taken from the directory above, open, without following a link, and what
is entered belongs to this user. A new directory counts only when the directory that names it has been synced.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dshd.storage.files import DIRECTORY, READ
from dshd.storage.jsonl.faults import read_error, unsafe
from dshd.storage.jsonl.layout import LOG_NAMES, Place, is_project

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from dsh_protocol.errors import DshdError
    from dshd.storage.files import Disk


class Stamp(NamedTuple):
    """What changes with every change of a session's directory or of the logs in it.

    Attributes:
        changed_ns: When the last of them changed, by the file system's clock.
        parts: Of the directory and of either log: their status, or the error in its place.
    """

    changed_ns: int
    parts: tuple[tuple[int, ...], ...]


class Root:
    """One root. Holds no descriptor open between calls; it may be absent until the first session is made."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = str(Path(path).absolute())
        self._disk = disk
        self._durable: set[str] = set()  # what is known to be synced into the directory above it
        self._uid = os.geteuid()

    def full(self, relative: str) -> str:
        """Return the whole path of a name below the root."""
        return f"{self.path}/{relative}"

    @contextmanager
    def _opened(self) -> Generator[int]:
        fd = self._disk.open_root(self.path)
        try:
            yield fd
        finally:
            self._disk.close(fd)

    def find(self, segment: str) -> list[Place]:
        """Return every log of the session with that directory name, in whatever project; none, mostly one.

        A project's directory that cannot be looked into hides nothing that stands in another.

        Raises:
            UnsafePathError: Something that is no directory of this user stands in its place; or it is nowhere to be
                seen, and a directory of this user's is closed to us.
            WriteFailedError: It is nowhere to be seen, and the disk did not give all of it.
        """
        found: list[Place] = []
        closed: DshdError | None = None
        try:
            with self._opened() as fd:
                for project in sorted(filter(is_project, self._disk.listdir(fd))):
                    try:
                        found += self._logs(fd, project, segment)
                    except OSError as error:
                        if self._is_ours(fd, project):
                            closed = closed or read_error(error, self.full(project))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise read_error(error, self.path) from error
        if closed is not None and not found:
            raise closed
        return found

    def _is_ours(self, fd: int, project: str) -> bool:
        try:
            return self._disk.lstat(project, at=fd).st_uid == self._uid
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def find_in(self, project: str, segment: str) -> list[Place]:
        """Return the logs of one session directory; `find` looks in every project."""
        try:
            with self._opened() as fd:
                return self._logs(fd, project, segment)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise read_error(error, self.full(f"{project}/{segment}")) from error

    def _logs(self, fd: int, project: str, segment: str) -> list[Place]:
        inside = f"{project}/{segment}"
        try:
            entry = self._disk.lstat(inside, at=fd)
            if not stat.S_ISDIR(self._disk.lstat(project, at=fd).st_mode):
                return []
        except (FileNotFoundError, NotADirectoryError):
            return []
        if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != self._uid:
            raise unsafe(self.full(inside), "no directory of this user")
        return [
            Place(project, segment, name)
            for name in LOG_NAMES
            if self._stands(f"{inside}/{name}", fd)
        ]

    def _stands(self, relative: str, fd: int) -> bool:
        try:
            self._disk.lstat(relative, at=fd)
        except FileNotFoundError:
            return False
        return True

    def is_stray_file(self, project: str, segment: str) -> bool:
        """Whether what stands among a project's sessions is a file that is no log: nobody's session."""
        try:
            with self._opened() as fd:
                found = self._disk.lstat(f"{project}/{segment}", at=fd)
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and not segment.endswith((".jsonl", ".jsonl.zstd"))

    def stamped(self) -> Iterator[tuple[str, list[tuple[str, Stamp]]]]:
        """Yield every project directory with the names in it, stamped; what cannot be entered is passed over."""
        try:
            with self._opened() as fd:
                for project in sorted(filter(is_project, self._disk.listdir(fd))):
                    with suppress(OSError):
                        inner = self._disk.open(project, DIRECTORY, at=fd)
                        try:
                            names = sorted(self._disk.listdir(inner))
                            found = [(name, self._stamp(inner, name)) for name in names]
                        finally:
                            self._disk.close(inner)
                        yield project, found
        except FileNotFoundError:
            return
        except OSError as error:
            raise read_error(error, self.path) from error

    def _stamp(self, fd: int, segment: str) -> Stamp:
        """Look at a session's directory and at its log; a second log would show in the directory's own stamp."""
        changed = 0
        parts: list[tuple[int, ...]] = []
        for name in (segment, *(f"{segment}/{log}" for log in LOG_NAMES)):
            try:
                found = self._disk.lstat(name, at=fd)
            except OSError as error:
                parts.append((error.errno or 0,))
                continue
            modified, altered = found.st_mtime_ns, found.st_ctime_ns
            parts.append((*found[:5], found.st_size, modified, altered))
            changed = max(changed, modified, altered)
            if len(parts) > 1:
                break
        return Stamp(changed, tuple(parts))

    def open_directory(self, project: str, segment: str) -> int:
        """Open a session's directory.

        Raises:
            FileNotFoundError: It is not there.
            UnsafePathError: It, or the project's, is a link, no directory, or another user's.
        """
        path = self.full(f"{project}/{segment}")
        try:
            with self._opened() as fd:
                inner = self._disk.open(project, DIRECTORY, at=fd)
                try:
                    directory = self._disk.open(segment, DIRECTORY, at=inner)
                finally:
                    self._disk.close(inner)
            self._require_ours(directory, path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise read_error(error, path) from error
        return directory

    def open_log(self, directory: int, place: Place, flags: int = READ) -> int:
        """Open a log in its open directory, if it is a regular file of this user."""
        path = self.full(place.log)
        try:
            fd = self._disk.open(place.log_name, flags, at=directory)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise read_error(error, path) from error
        self._require_ours(fd, path, regular=True)
        return fd

    def _require_ours(self, fd: int, path: str, *, regular: bool = False) -> None:
        """Close what is open and raise, unless it is this user's and, where asked for, a regular file."""
        try:
            found = self._disk.fstat(fd)
        except BaseException:
            self._disk.close(fd)
            raise
        if found.st_uid != self._uid or (regular and not stat.S_ISREG(found.st_mode)):
            self._disk.close(fd)
            raise unsafe(path, f"no {'regular file' if regular else 'directory'} of this user")

    def make(self) -> int:
        """Make the root where it is missing, every new ancestor synced into the one above, and open it."""
        try:
            return self._disk.open_root(self.path)
        except FileNotFoundError:
            self._make_path(self.path)
        return self._disk.open_root(self.path)

    def _make_path(self, path: str) -> None:
        above = str(Path(path).parent)
        try:
            self._disk.mkdir(path)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make_path(above)
            self._disk.mkdir(path)
        self._sync_directory(above)

    def _sync_directory(self, path: str) -> None:
        fd = self._disk.open_root(path)
        try:
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)

    def make_directory(self, project: str, segment: str) -> int:
        """Make a session's directory, durable with everything above it, and open it.

        Directories that stand already are synced all the same, once in this process: an attempt before this one may
        have made them and failed to sync.

        Raises:
            UnsafePathError: Something else stands in its place.
            OSError: As the kernel gave it.
        """
        fd = self.make()
        try:
            self._settle_project(fd, project, made=self._made(project, fd))
            inner = self._enter(fd, project, project)
        finally:
            self._disk.close(fd)
        try:
            self._made(segment, inner)
            self._disk.fsync(inner)
            return self._enter(inner, segment, f"{project}/{segment}")
        finally:
            self._disk.close(inner)

    def settle(self, directory: int, project: str, segment: str) -> None:
        """Make a session's names durable, before anything that is read there is held for acknowledged.

        Who made it may have died between a name and its sync. Its own directory is synced each time, what stands above
        once in this process. Raises OSError.
        """
        self._disk.fsync(directory)
        relative = f"{project}/{segment}"
        if relative in self._durable:
            return
        with self._opened() as fd:
            inner = self._disk.open(project, DIRECTORY, at=fd)
            try:
                self._disk.fsync(inner)
            finally:
                self._disk.close(inner)
            self._settle_project(fd, project, made=False)
        self._durable.add(relative)

    def _settle_project(self, fd: int, project: str, *, made: bool) -> None:
        if "" not in self._durable:
            self._settle_above(fd)
            self._durable.add("")
        if made or project not in self._durable:
            self._disk.fsync(fd)
            self._durable.add(project)

    def _settle_above(self, fd: int) -> None:
        """Sync every directory above the root in which one may have been made for it: as far as they are ours."""
        device = self._disk.fstat(fd).st_dev
        for path in map(str, Path(self.path).parents):
            found = self._disk.lstat(path)
            if found.st_dev != device:
                return
            with suppress(PermissionError):  # a parent that may not be read was not made by us
                self._sync_directory(path)
            if found.st_uid != self._uid:
                return

    def remove_directory(self, project: str, segment: str) -> None:
        """Remove an empty session directory. Raises OSError."""
        with self._opened() as fd:
            inner = self._disk.open(project, DIRECTORY, at=fd)
            try:
                self._disk.rmdir(segment, at=inner)
            finally:
                self._disk.close(inner)

    def _made(self, name: str, at: int) -> bool:
        try:
            self._disk.mkdir(name, at=at)
        except FileExistsError:
            return False
        return True

    def _enter(self, at: int, name: str, relative: str) -> int:
        try:
            fd = self._disk.open(name, DIRECTORY, at=at)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise unsafe(self.full(relative), "no directory of this user") from error
            raise
        self._require_ours(fd, self.full(relative))
        return fd
