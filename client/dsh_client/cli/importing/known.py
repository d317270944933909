"""What was imported before: by the digest of the file, which the first event of each imported session has.

The rule: a session whose import did not come to its end says so in its title until the whole file is through, or has no
event but its first; only such a session is ever put away here, and never one that somebody still writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.values import as_list, as_object
from dsh_protocol.errors import DshdError

if TYPE_CHECKING:
    from dsh_client.cli.context import Context

    Json = dict[str, Any]

SOURCE = "import/source"
UNFINISHED = "unfinished import of "


class Known:
    """The imports that a daemon keeps. Sessions are looked into once, and only those of the folder that is asked for.

    Args:
        context: Calls the daemon.
    """

    def __init__(self, context: Context) -> None:
        """Nothing is asked yet."""
        self._context = context
        self._listed: dict[str | None, list[Json]] | None = None
        self._sources: dict[str | None, list[tuple[Json, Json]]] = {}

    def holding(self, digest: str, cwd: str | None) -> list[str]:
        """Return the ids of the sessions that a file of this digest has become already."""
        return [
            str(session["id"])
            for session, source in self._of(cwd)
            if source.get("sha256") == digest and not _is_unfinished(session)
        ]

    def put_away(self, source: Json, cwd: str | None) -> list[str]:
        """Put what is left of broken-off imports of this file, or of a file in its place, into the trash; return ids.

        Raises:
            SessionBusyError: It is being imported at this moment.
        """
        left = [
            (session, found) for session, found in self._of(cwd) if _is_left(session, found, source)
        ]
        # An import of several conversations is finished as a whole: those of the same moment go with it.
        moments = {found.get("importedAt") for _, found in left}
        gone: list[str] = []
        for session, found in list(self._of(cwd)):
            if (session, found) in left or (
                found.get("file") == source["file"] and found.get("importedAt") in moments
            ):
                self._context.call("session.delete", {"id": session["id"]})
                self._sources[cwd].remove((session, found))
                gone.append(str(session["id"]))
        return gone

    def add(self, sessions: list[Json], source: Json, cwd: str | None) -> None:
        """Take note of what was imported now."""
        self._of(cwd).extend((session, source) for session in sessions)

    def _of(self, cwd: str | None) -> list[tuple[Json, Json]]:
        if self._listed is None:
            self._listed = {}
            for page in self._context.sessions({}):
                for session in page["sessions"]:
                    header = as_object(session.get("header"))
                    if header.get("parentSession") is None:  # a fork begins as its parent does
                        self._listed.setdefault(header.get("cwd"), []).append(session)
        if cwd not in self._sources:
            looked = [(one, self._source_of(one)) for one in self._listed.get(cwd, ())]
            self._sources[cwd] = [(one, source) for one, source in looked if source]
        return self._sources[cwd]

    def _source_of(self, session: Json) -> Json:
        """Return what the first event says of a file; nothing where it is no import's."""
        if session.get("header") is None:
            return {}
        try:
            page = self._context.call("session.read", {"id": session["id"], "length": 1})
        except DshdError:  # it went meanwhile, or nobody can read it
            return {}
        first = as_object(next(iter(as_list(page.get("events"))), None))
        return as_object(first.get("data")) if first.get("type") == SOURCE else {}


def _is_left(session: Json, found: Json, source: Json) -> bool:
    same = found.get("sha256") == source["sha256"] or found.get("file") == source["file"]
    return same and _is_unfinished(session)


def _is_unfinished(session: Json) -> bool:
    title = as_object(session.get("labels")).get("title")
    marked = isinstance(title, str) and title.startswith(UNFINISHED)
    return marked or session.get("nextSeq") == 1  # killed before it could be marked
