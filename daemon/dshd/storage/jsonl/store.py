"""The JSONL store: all sessions under one root, each a directory with one log.

The rule that holds here: an id is one session. It is claimed before the disk is looked at, and stays claimed while a
handle for writing lives, so that of two creates or opens in this process exactly one wins; among processes the lock
decides.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING

from dsh_protocol.errors import (
    SessionBusyError,
    SessionExistsError,
)
from dsh_protocol.events import check_header, header_to_wire
from dshd.storage.files import APPEND, RealDisk
from dshd.storage.jsonl.beginning import READ_WHOLE, begun, find_loss
from dshd.storage.jsonl.derived import lineage_of, read_derived
from dshd.storage.jsonl.faults import read_error, write_error
from dshd.storage.jsonl.frames import FrameEncoder
from dshd.storage.jsonl.generations import refuse_newer
from dshd.storage.jsonl.holder import read_holder
from dshd.storage.jsonl.labels import read_labels, write_labels
from dshd.storage.jsonl.layout import (
    LEFTOVER,
    RAW_LOG,
    ZSTD_LOG,
    Compression,
    Place,
    check_cwd,
    check_id,
    check_new_id,
    log_name,
)
from dshd.storage.jsonl.listing import (
    Listing,
    not_deleted,
    not_found,
    require_identity,
    require_one,
)
from dshd.storage.jsonl.lock import lock_session
from dshd.storage.jsonl.log import LogFile, OpenFile
from dshd.storage.jsonl.read_handle import ReadHandle
from dshd.storage.jsonl.repair import cut, set_aside, settle, sweep
from dshd.storage.jsonl.rescue import events_behind_header
from dshd.storage.jsonl.root import Root
from dshd.storage.jsonl.site import Site
from dshd.storage.jsonl.source import read_header
from dshd.storage.jsonl.trash import TRASH, Trash
from dshd.storage.jsonl.vocabulary import find_problem
from dshd.storage.jsonl.write_handle import WriteHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    from dsh_protocol.events import Header
    from dsh_protocol.vocabulary import Event
    from dshd.storage.files import Disk
    from dshd.storage.store import (
        Access,
        HolderRecord,
        Labels,
        SessionHandle,
        StoredSession,
    )

_LEFTOVER_AGE = 24 * 3600.0


class JsonlStore:
    """Sessions in format version 0. New logs get one encoding, logs of either are read and continued."""

    def __init__(
        self, root: Path, *, compression: Compression, pack_chunks: bool, disk: Disk
    ) -> None:
        self._root = Root(os.fspath(root), disk)
        self._disk = disk
        self._log_name = log_name(compression)
        self._pack_chunks = pack_chunks
        self._encoder = FrameEncoder()
        self._listing = Listing(self._root, disk, self._site)
        self._trash = Trash(self._root, disk)
        self._claims: set[str] = set()
        self._settled: set[Place] = set()
        self._lock = Lock()

    def _site(self, place: Place) -> Site:
        return Site(self._root, self._disk, place, self._encoder, self._pack_chunks)

    def _claim(self, session_id: str) -> bool:
        with self._lock:
            free = session_id not in self._claims
            self._claims.add(session_id)
            return free

    def _release(self, session_id: str, place: Place) -> Callable[[], None]:
        def release() -> None:
            with self._lock:
                self._claims.discard(session_id)
                self._settled.discard(place)

        return release

    def create(self, header: Header) -> SessionHandle:
        """Take an id for a new session; see `SessionStore`."""
        return self._create(header, self._log_name)

    def fork(
        self, source: SessionHandle, end: int, header: Header, closing: Sequence[Event]
    ) -> SessionHandle:
        """Make a session that begins with another's events, in the other's encoding; see `SessionStore`."""
        if not isinstance(source, ReadHandle | WriteHandle):
            raise TypeError("the handle of another store")
        with source.lent() as lent:
            handle = self._create(header, ZSTD_LOG if lent.source.zstd else RAW_LOG)
            try:
                handle.begin_with(lent, end, closing)
            except BaseException:
                handle.close()
                raise
        return handle

    def _create(self, header: Header, name: str) -> WriteHandle:
        place = Place(check_cwd(header.cwd), check_new_id(header.id), name)
        check_header({"type": "session", **header_to_wire(header)})  # what is written can be read
        if not self._claim(header.id):
            raise _exists(header.id)
        release = self._release(header.id, place)
        try:
            taken = self._root.find(place.segment)
        except BaseException:
            release()
            raise
        if taken:
            release()
            raise _exists(header.id)
        return WriteHandle(self._site(place), header, released=release)

    def open(self, session_id: str, access: Access) -> SessionHandle:
        """Open a stored session; see `SessionStore`."""
        segment = check_id(session_id)
        if access == "read":
            return self._open_read(self._places(session_id, segment)[0])
        if not self._claim(session_id):
            raise SessionBusyError(f"session {session_id!r} is open for writing here already")
        places: list[Place] = []
        try:
            places = self._places(session_id, segment)
            require_one(places, self._root)
            return self._open_write(session_id, places[0])
        except BaseException:
            self._release(session_id, places[0] if places else Place("", "", ""))()
            raise

    def _places(self, session_id: str, segment: str) -> list[Place]:
        places = self._root.find(segment)
        if not places:
            raise not_found(session_id)
        return places

    def _open_read(self, place: Place) -> ReadHandle:
        site = self._site(place)
        try:
            directory = site.open_directory()
            try:
                kept = read_derived(self._disk, directory, whole=True)
                fd = self._root.open_log(directory, place)
            finally:
                self._disk.close(directory)
        except FileNotFoundError as error:
            raise not_found(place.segment) from error
        except OSError as error:
            raise read_error(error, site.path) from error
        file = OpenFile(self._disk, fd)
        try:
            with self._lock:
                fresh = place not in self._settled
                self._settled.add(place)
            if fresh:
                self._settle_names(site)
                settle(self._disk, fd)
            found = self._disk.fstat(fd)
            header, first = read_header(site.source(fd), found.st_size)
            derived = lineage_of(kept, site.source(fd), first, found.st_size)
            if found.st_size <= READ_WHOLE and not (kept is not None and kept.is_level(found)):
                derived = derived.distrusted()
        except OSError as error:
            file.close()
            raise read_error(error, site.path) from error
        except BaseException:
            file.close()
            raise
        return ReadHandle(site, file, header, first, derived)

    def rescue(self, session_id: str) -> Iterator[Event]:
        """Yield what can be read of a log whose header is no good; see `SessionStore`."""
        place = self._places(session_id, check_id(session_id))[0]
        site = self._site(place)
        try:
            directory = site.open_directory()
            try:
                fd = self._root.open_log(directory, place)
            finally:
                self._disk.close(directory)
            try:
                yield from events_behind_header(site.source(fd), self._disk.fstat(fd).st_size)
            finally:
                self._disk.close(fd)
        except FileNotFoundError as error:
            raise not_found(session_id) from error
        except OSError as error:
            raise read_error(error, site.path) from error

    def _settle_names(self, site: Site) -> None:
        """Make the names of what is about to be shown durable, where this disk and this user can."""
        with suppress(OSError):
            directory = site.open_directory()
            try:
                self._root.settle(directory, site.place.project, site.place.segment)
            finally:
                self._disk.close(directory)

    def _open_write(self, session_id: str, place: Place) -> WriteHandle:
        site = self._site(place)
        try:
            directory = site.open_directory()
        except FileNotFoundError as error:
            raise not_found(session_id) from error
        lock = fd = None
        try:
            lock = lock_session(
                self._disk, directory, session_id, _told(read_holder(self._disk, directory))
            )
            fd = self._root.open_log(directory, place, APPEND)
            handle = self._opened(session_id, site, directory, lock, fd)
        except BaseException as error:
            for held in (fd, lock):
                if held is not None:
                    self._disk.close(held)
            if isinstance(error, FileNotFoundError):
                raise not_found(session_id) from error
            if isinstance(error, OSError):
                raise write_error(error, site.path) from error
            raise
        finally:
            self._disk.close(directory)
        return handle

    def _opened(
        self, session_id: str, site: Site, directory: int, lock: int, fd: int
    ) -> WriteHandle:
        """Read the log as the disk has it, refuse what must not be continued, then mend its tail."""
        names = self._disk.listdir(directory)
        refuse_newer(site, directory, names)
        self._root.settle(directory, site.place.project, site.place.segment)
        settle(self._disk, fd)
        source, found = site.source(fd), self._disk.fstat(fd)
        header, first = read_header(source, found.st_size)
        require_identity(header, session_id, site)
        derived = read_derived(self._disk, directory, whole=True)
        lineage = lineage_of(derived, source, first, found.st_size)
        if lineage.loss is not None and derived is not None:
            find_loss(source, first, found.st_size, derived)
            raise lineage.loss
        level = derived is not None and derived.is_level(found)
        index, walk = begun(source, first, found.st_size, lineage, trusted=level)
        problem = find_problem(walk.batches(), index, site.path)
        if problem is not None:
            raise problem
        if walk.torn is not None:
            set_aside(directory, source, walk.torn)
            cut(source, walk.torn)
        sweep(
            self._disk,
            directory,
            older_than=time.time() - _LEFTOVER_AGE,
            names=[name for name in names if LEFTOVER.fullmatch(name)],
        )
        return WriteHandle(
            site,
            header,
            lock=lock,
            log=LogFile(OpenFile(self._disk, fd), site.path, walk.offset, walk.crc or 0),
            first=first,
            index=index,
            next_seq=walk.seq,
            derived=lineage.head,
            level=level,
            released=self._release(session_id, site.place),
        )

    def read_holder(self, session_id: str) -> HolderRecord | None:
        """Return the holder record of a stored session; see `SessionStore`."""
        place = self._places(session_id, check_id(session_id))[0]
        try:
            directory = self._site(place).open_directory()
        except FileNotFoundError:
            return None
        try:
            return read_holder(self._disk, directory)
        finally:
            self._disk.close(directory)

    def read_labels(self, session_id: str) -> Labels | None:
        """Return the labels of a stored session; see `SessionStore`."""
        place = self._places(session_id, check_id(session_id))[0]
        try:
            directory = self._site(place).open_directory()
        except FileNotFoundError:
            return None
        try:
            return read_labels(self._disk, directory)
        finally:
            self._disk.close(directory)

    def write_labels(self, session_id: str, labels: Labels) -> None:
        """Replace the labels of a stored session; see `SessionStore`."""
        site = self._site(self._places(session_id, check_id(session_id))[0])
        try:
            directory = site.open_directory()
            try:
                write_labels(self._disk, directory, labels)
            finally:
                self._disk.close(directory)
        except FileNotFoundError as error:
            raise not_found(session_id) from error
        except OSError as error:
            raise write_error(error, site.path) from error

    def delete(self, session_id: str) -> None:
        """Move a session to the trash; see `SessionStore`."""
        segment = check_id(session_id)
        if not self._claim(session_id):
            raise SessionBusyError(f"session {session_id!r} is open for writing here already")
        places: list[Place] = []
        try:
            places = self._places(session_id, segment)
            projects = dict.fromkeys(place.project for place in places)
            with self._locked(session_id, projects, segment):
                self._trash.put(projects, segment)
        except FileNotFoundError as error:
            raise not_found(session_id) from error
        except OSError as error:
            raise write_error(error, self._root.full(f"{places[0].directory}")) from error
        finally:
            for place in places or [Place("", "", "")]:
                self._release(session_id, place)()

    @contextmanager
    def _locked(
        self, session_id: str, projects: Iterable[str], segment: str
    ) -> Generator[None, None, None]:
        """Hold the locks of a session's directories, whatever they hold."""
        with ExitStack() as stack:
            for project in projects:
                directory = self._root.open_directory(project, segment)
                stack.callback(self._disk.close, directory)
                told = _told(read_holder(self._disk, directory))
                lock = lock_session(self._disk, directory, session_id, told)
                stack.callback(self._disk.close, lock)
            yield

    def undelete(self, session_id: str) -> None:
        """Move a session back out of the trash; see `SessionStore`."""
        segment = check_id(session_id)
        if not self._claim(session_id):
            raise _exists(session_id)
        try:
            if self._root.find(segment):
                raise _exists(session_id)
            found = self._trash.find(segment)
            if not found:
                raise not_deleted(session_id)
            self._trash.restore(found)
        except OSError as error:
            raise write_error(error, self._root.full(TRASH)) from error
        finally:
            self._release(session_id, Place("", "", ""))()

    def purge(self, session_id: str, deleted_at: int) -> None:
        """Remove a session from the trash for good; see `SessionStore`."""
        segment = check_id(session_id)
        try:
            if not self._trash.remove(segment, deleted_at):
                raise not_deleted(session_id)
        except OSError as error:
            raise write_error(error, self._root.full(TRASH)) from error

    def list_deleted(self) -> Iterator[StoredSession]:
        """Yield what lies in the trash; see `SessionStore`."""
        try:
            found = list(self._trash.each())
        except OSError as error:
            raise read_error(error, self._root.full(TRASH)) from error
        for one in found:
            stored = self._listing.deleted(one)
            if stored is not None:
                yield stored

    def stat(self, session_id: str) -> StoredSession:
        """Return what is known of one session; see `SessionStore`."""
        return self._listing.stat(session_id)

    def list(self) -> Iterator[StoredSession]:
        """Yield every session; see `SessionStore`."""
        return self._listing.list()

    def close(self) -> None:
        """Release what the store itself holds; handles are closed by those who opened them."""


def open_store(
    root: Path,
    *,
    compression: Compression = "zstd",
    pack_chunks: bool = True,
    disk: Disk | None = None,
) -> JsonlStore:
    """Return the store of the sessions under `root`. Nothing is made or locked; see `lock.lock_root`.

    Args:
        root: May be absent; made with the first session.
        compression: Of logs that are created.
        pack_chunks: Whether runs of chunks are packed into rows when written; read they are either way.
        disk: A stand-in, for tests.
    """
    return JsonlStore(
        root, compression=compression, pack_chunks=pack_chunks, disk=disk or RealDisk()
    )


def _exists(session_id: str) -> SessionExistsError:
    return SessionExistsError(
        f"session {session_id!r} exists already; open it, or use another id", session=session_id
    )


def _told(holder: HolderRecord | None) -> dict[str, object] | None:
    if holder is None:
        return None
    return {"pid": holder.pid, "client": holder.client, "since": holder.since, "connected": False}
