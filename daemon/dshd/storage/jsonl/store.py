"""The JSONL store: all sessions under one root, each a directory with one log.

The rule that holds here: an id is one session. It is claimed before the disk is looked at, and stays claimed while a
handle for writing lives, so that of two creates or opens in this process exactly one wins; among processes the lock
decides.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from dsh_protocol.errors import (
    SessionBusyError,
    SessionExistsError,
)
from dsh_protocol.events import check_header, header_to_wire
from dshd.storage.files import RealDisk
from dshd.storage.jsonl.faults import read_error, write_error
from dshd.storage.jsonl.frames import FrameEncoder
from dshd.storage.jsonl.holder import read_holder, told
from dshd.storage.jsonl.labels import LABELS, read_labels, write_labels
from dshd.storage.jsonl.layout import (
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
    require_one,
)
from dshd.storage.jsonl.lock import lock_session
from dshd.storage.jsonl.opening import events_of, open_to_read, open_to_write
from dshd.storage.jsonl.read_handle import ReadHandle
from dshd.storage.jsonl.root import Root
from dshd.storage.jsonl.site import Site
from dshd.storage.jsonl.trash import TRASH, Trash
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

T = TypeVar("T")


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

    def _not_settled(self, place: Place) -> bool:
        """Whether this is the first time since its last writer that a session is looked at; asked once."""
        with self._lock:
            fresh = place not in self._settled
            self._settled.add(place)
            return fresh

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
            place = self._places(session_id, segment)[0]
            return open_to_read(self._site(place), session_id, fresh=self._not_settled)
        if not self._claim(session_id):
            raise SessionBusyError(f"session {session_id!r} is open for writing here already")
        places: list[Place] = []
        try:
            places = self._places(session_id, segment)
            require_one(places, self._root)
            released = self._release(session_id, places[0])
            return open_to_write(self._site(places[0]), session_id, released=released)
        except BaseException:
            self._release(session_id, places[0] if places else Place("", "", ""))()
            raise

    def _places(self, session_id: str, segment: str) -> list[Place]:
        places = self._root.find(segment)
        if not places:
            raise not_found(session_id)
        return places

    def rescue(self, session_id: str) -> Iterator[Event]:
        """Yield what can be read of a log whose header is no good; see `SessionStore`."""
        place = self._places(session_id, check_id(session_id))[0]
        yield from events_of(self._site(place), session_id)

    def read_holder(self, session_id: str) -> HolderRecord | None:
        """Return the holder record of a stored session; see `SessionStore`."""
        return self._record_of(session_id, read_holder)

    def read_labels(self, session_id: str) -> Labels | None:
        """Return the labels of a stored session; see `SessionStore`."""
        return self._record_of(session_id, read_labels)

    def _record_of(self, session_id: str, read: Callable[[Disk, int], T | None]) -> T | None:
        site = self._site(self._places(session_id, check_id(session_id))[0])
        try:
            with site.directory() as directory:
                return read(self._disk, directory)
        except FileNotFoundError:
            return None

    def write_labels(self, session_id: str, labels: Labels) -> None:
        """Replace the labels of a stored session; see `SessionStore`."""
        site = self._site(self._places(session_id, check_id(session_id))[0])
        try:
            with site.directory() as directory:
                write_labels(self._disk, directory, labels)
        except FileNotFoundError as error:
            raise not_found(session_id) from error
        except OSError as error:
            path = self._root.full(f"{site.place.directory}/{LABELS}")
            raise write_error(error, path, of_batch=False) from error

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
            raise write_error(
                error, self._root.full(places[0].directory), of_batch=False
            ) from error
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
                holder = told(read_holder(self._disk, directory))
                lock = lock_session(self._disk, directory, session_id, holder)
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
            raise write_error(error, self._root.full(TRASH), of_batch=False) from error
        finally:
            self._release(session_id, Place("", "", ""))()

    def purge(self, session_id: str, deleted_at: int) -> None:
        """Remove a session from the trash for good; see `SessionStore`."""
        segment = check_id(session_id)
        try:
            if not self._trash.remove(segment, deleted_at):
                raise not_deleted(session_id)
        except OSError as error:
            raise write_error(error, self._root.full(TRASH), of_batch=False) from error

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
