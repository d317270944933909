"""What is said of sessions without reading their events: one by one, and all of them in a list.

The rule that holds here: a bad session is shown with its problem and disturbs no other. What a list has once found out
is kept, and believed only while every file and directory that it was found in is what it was.
"""

from __future__ import annotations

import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from dsh_protocol.errors import DshdError, SessionNotFoundError
from dshd.storage.jsonl.derived import lineage_of, read_derived, revision_of
from dshd.storage.jsonl.faults import corrupt, read_error
from dshd.storage.jsonl.generations import refuse_newer
from dshd.storage.jsonl.labels import read_labels
from dshd.storage.jsonl.layout import LOG_NAMES, Place, check_id, decode_segment, project_name
from dshd.storage.jsonl.source import read_header
from dshd.storage.store import Problem, StoredSession

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from dsh_protocol.events import Header
    from dshd.storage.files import Disk
    from dshd.storage.jsonl.root import Root, Stamp
    from dshd.storage.jsonl.site import Site
    from dshd.storage.jsonl.trash import Deleted
    from dshd.storage.store import Labels

_MOST_SEEN = 50_000
_SETTLED_NS = 50_000_000
_LASTING = frozenset({"LOG_CORRUPT", "FORMAT_UNSUPPORTED"})


class _Seen(NamedTuple):
    """What was found of one session, and the stamp of all that it was found in."""

    stamp: Stamp
    found: tuple[StoredSession, ...]


class Listing:
    """Looks at sessions. Usable from any thread."""

    def __init__(self, root: Root, disk: Disk, site_of: Callable[[Place], Site]) -> None:
        self._root = root
        self._disk = disk
        self._site_of = site_of
        self._seen: dict[tuple[str, str], _Seen] = {}

    def stat(self, session_id: str) -> StoredSession:
        """Return what is known of one session; see `SessionStore`."""
        segment = check_id(session_id)
        try:
            places = self._root.find(segment)
        except DshdError as error:
            path = str(error.facts.get("path", self._root.path))
            return StoredSession(session_id, None, path, 0, "", 0, problem_of(error))
        if not places:
            raise not_found(session_id)
        return self._stat(session_id, places)

    def _stat(
        self, session_id: str, places: Sequence[Place], deleted_at: int | None = None
    ) -> StoredSession:
        site = self._site_of(places[0])
        look = _Look(session_id, places, deleted_at)
        problem = None
        try:
            directory = site.open_directory()
            try:
                look.labels = read_labels(self._disk, directory)
                look.found = self._disk.lstat(site.place.log_name, at=directory)
                self._look_into(look, site, directory)
            finally:
                self._disk.close(directory)
        except FileNotFoundError as error:
            raise not_found(session_id) from error
        except OSError as error:
            problem = problem_of(read_error(error, site.path))
        except DshdError as error:
            problem = problem_of(error)
        return look.told(site.path, problem)

    def _look_into(self, look: _Look, site: Site, directory: int) -> None:
        """Read the header, and find out whether the log is what the derived file says."""
        fd = self._root.open_log(directory, site.place)
        try:
            source, found = site.source(fd), self._disk.fstat(fd)
            header, first = read_header(source, found.st_size)
            look.header = header
            if look.deleted_at is None:  # what lies in the trash is not where its header says
                require_one(look.places, self._root)
                require_identity(header, look.session_id, site)
                refuse_newer(site, directory, self._disk.listdir(directory))
            derived = read_derived(self._disk, directory, whole=False)
            if derived is None:
                return
            if revision_of(found) == derived.head.revision:
                look.summary = derived.summary or None
                return
            loss = lineage_of(derived, source, first, found.st_size).loss
            if loss is not None:
                raise loss
        finally:
            self._disk.close(fd)

    # ------------------------------------------------------------------ all of them

    def list(self) -> Iterator[StoredSession]:
        """Yield every session; see `SessionStore`."""
        projects: dict[str, list[str]] = {}
        stamps: dict[tuple[str, str], Stamp] = {}
        for project, segments in self._root.stamped():
            for segment, stamp in segments:
                projects.setdefault(segment, []).append(project)
                stamps[project, segment] = stamp
        seen: dict[tuple[str, str], _Seen] = {}
        for segment, homes in projects.items():
            session_id = decode_segment(segment)
            if session_id is None:
                continue
            key = (homes[0], segment)
            known = self._seen.get(key)
            if len(homes) > 1 or known is None or known.stamp != stamps[key]:
                known = _Seen(stamps[key], tuple(self._listed(session_id, segment, homes)))
                if len(homes) == 1 and _lasts(known):
                    seen[key] = known
            else:
                seen[key] = known
            yield from known.found
        self._seen = seen if len(seen) <= _MOST_SEEN else {}

    def _listed(
        self, session_id: str, segment: str, projects: Sequence[str]
    ) -> Iterator[StoredSession]:
        path = self._root.full(f"{projects[0]}/{segment}")
        try:
            places = [
                place for project in projects for place in self._root.find_in(project, segment)
            ]
            if places:
                yield self._stat(session_id, places)
        except SessionNotFoundError:
            return  # gone meanwhile
        except DshdError as error:
            if self._root.is_stray_file(projects[0], segment):
                return
            yield StoredSession(session_id, None, path, 0, "", 0, problem_of(error))

    # ------------------------------------------------------------------ those in the trash

    def deleted(self, one: Deleted) -> StoredSession | None:
        """Return what is known of a session in the trash; None where there is no log."""
        session_id = decode_segment(one.segment) or one.segment
        for name in LOG_NAMES:
            place = Place(one.folder, one.segment, name)
            with suppress(SessionNotFoundError):
                return self._stat(session_id, [place], one.deleted_at)
        return None


def _lasts(seen: _Seen) -> bool:
    """Whether what was found will be true as long as the stamp is: not where the clock may not have ticked since."""
    if seen.stamp.changed_ns > time.time_ns() - _SETTLED_NS:
        return False
    return all(one.problem is None or one.problem.kind in _LASTING for one in seen.found)


class _Look:
    """What one look at a session has found so far."""

    def __init__(
        self, session_id: str, places: Sequence[Place], deleted_at: int | None = None
    ) -> None:
        self.session_id = session_id
        self.places = places
        self.deleted_at = deleted_at
        self.labels: Labels | None = None
        self.header: Header | None = None
        self.found: os.stat_result | None = None
        self.summary: bytes | None = None

    def told(self, path: str, problem: Problem | None) -> StoredSession:
        found = self.found
        if found is None or not stat.S_ISREG(found.st_mode):
            return StoredSession(
                *(self.session_id, self.header, path, 0, "", 0, problem),
                labels=self.labels,
                deleted_at=self.deleted_at,
            )
        return StoredSession(
            session_id=self.session_id,
            header=self.header,
            path=path,
            size_bytes=found.st_size,
            revision=":".join(map(str, revision_of(found))),
            updated_at=found.st_mtime_ns // 1_000_000,
            problem=problem,
            summary=self.summary,
            labels=self.labels,
            deleted_at=self.deleted_at,
        )


def not_found(session_id: str) -> SessionNotFoundError:
    """Return the error for a session that is not there."""
    return SessionNotFoundError(
        f"no session {session_id!r} under this root; dshctl list shows those that there are",
        session=session_id,
    )


def not_deleted(session_id: str) -> SessionNotFoundError:
    """Return the error for a session that is not in the trash."""
    return SessionNotFoundError(
        f"no session {session_id!r} is in the trash; dshctl list --deleted shows what is",
        session=session_id,
    )


def problem_of(error: DshdError) -> Problem:
    """Return an error as what a list says of a session."""
    offset = error.facts.get("offset")
    path = str(error.facts.get("path", ""))
    return Problem(error.kind, error.message, path, offset if isinstance(offset, int) else None)


def require_one(places: Sequence[Place], root: Root) -> None:
    """Raise LogCorruptError where a session has several logs."""
    if len(places) > 1:
        paths = [root.full(place.log) for place in places]
        raise corrupt(paths[0], 0, f"the session has several logs: {', '.join(paths)}")


def require_identity(header: Header, session_id: str, site: Site) -> None:
    """Refuse a log whose header names another session or another place."""
    if header.id != session_id:
        raise corrupt(site.path, 0, f"its header names session {header.id!r}")
    if header.cwd is not None and not header.cwd:
        raise corrupt(site.path, 0, "its header has an empty cwd")
    if project_name(header.cwd) != site.place.project:
        raise corrupt(site.path, 0, f"its header's cwd {header.cwd!r} belongs elsewhere")
