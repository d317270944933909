"""The index of words, `search.sqlite` in the root: in which events of which sessions a text may stand.

It holds nothing that is not in the logs, and is none: it goes to the disk by SQLite's own means. The rule that holds
here: it only proposes. Whoever asks looks into the log before anybody is told, so that an index that is old, damaged or
gone costs time and nothing else.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

NAME = "search.sqlite"
DAMAGED = "search.sqlite.damaged"
_VERSION = 1
_APPLICATION = 0x64736864  # "dshd"
_SEQ_BITS = 32
_SCHEMA = (
    "CREATE VIRTUAL TABLE texts USING fts5(body, content='', tokenize='unicode61')",
    """CREATE TABLE sessions(key INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL,
        created INTEGER, revision TEXT NOT NULL, next_seq INTEGER NOT NULL, tail TEXT NOT NULL)""",
    f"PRAGMA application_id={_APPLICATION}",
    f"PRAGMA user_version={_VERSION}",
)
_PASSING = frozenset(
    {
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN),
        *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
        *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH),
    }
)
_FEW = 20_000
_WASTE = 1000


class IndexDamagedError(Exception):
    """What is in the file is no index of ours, or not whole: it is to be made anew."""


class IndexUnusableError(Exception):
    """The disk does not let us have an index now."""


class Indexed(NamedTuple):
    """What of a session is in the index.

    Attributes:
        created: When the session was made, as its header says.
        revision: Of the log that was read to its end; empty where it was not.
        next_seq: So many of its events.
        tail: Digest of the last of them.
    """

    created: int | None
    revision: str
    next_seq: int
    tail: str


@contextmanager
def _told() -> Generator[None, None, None]:
    """Turn what SQLite says into whether the file or the machine is at fault."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _PASSING:
            raise IndexUnusableError(str(error)) from error
        raise IndexDamagedError(str(error)) from error
    except OSError as error:
        raise IndexUnusableError(str(error)) from error


class TextIndex:
    """The index of one root. One thread at a time, whichever.

    Args:
        root: The directory it lies in.

    Raises:
        IndexDamagedError, IndexUnusableError: As every method does.
    """

    def __init__(self, root: str) -> None:
        path = f"{root}/{NAME}"
        with _told():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            with _told():
                self._begin()
        except BaseException:
            self._db.close()
            raise

    def _begin(self) -> None:
        self._db.execute("PRAGMA secure_delete=ON")
        if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            with self._transaction():
                for line in _SCHEMA:
                    self._db.execute(line)
        if (
            self._pragma("application_id") != _APPLICATION
            or self._pragma("user_version") != _VERSION
        ):
            raise IndexDamagedError("it is of another version")
        if self._pragma("quick_check") != "ok":
            raise IndexDamagedError("its pages do not agree")
        self._db.execute("SELECT rowid FROM texts WHERE texts MATCH '\"a\"' LIMIT 1").fetchall()
        rows = self._db.execute("SELECT id, key, created, revision, next_seq, tail FROM sessions")
        self._keys: dict[str, int] = {}
        self.known: dict[str, Indexed] = {}
        for session_id, key, *rest in rows:
            self._keys[session_id] = key
            self.known[session_id] = Indexed(*rest)

    def _pragma(self, name: str) -> object:
        return self._db.execute(f"PRAGMA {name}").fetchone()[0]

    @contextmanager
    def _transaction(self) -> Generator[None, None, None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()

    # ------------------------------------------------------------------ filling

    @contextmanager
    def filling(self) -> Generator[None, None, None]:
        """Make what is added within one change of the file, all or nothing."""
        keys, known = dict(self._keys), dict(self.known)
        try:
            with _told(), self._transaction():
                yield
        except BaseException:
            self._keys, self.known = keys, known
            raise

    def forget(self, session_id: str) -> None:
        """Take a session out. What its words took up is only reused when the index is made anew."""
        self._db.execute("DELETE FROM sessions WHERE id=?", (session_id,))
        self._keys.pop(session_id, None)
        self.known.pop(session_id, None)

    def add(self, session_id: str, rows: Iterable[tuple[int, str]], state: Indexed) -> None:
        """Add texts of a session by their seqs, and note how far it is read now."""
        key = self._keys.get(session_id)
        if key is None:
            key = self._db.execute(
                "INSERT INTO sessions(id, created, revision, next_seq, tail) VALUES(?,?,?,?,?)",
                (session_id, *state),
            ).lastrowid
            assert key is not None  # noqa: S101  # of a row that was just made
            self._keys[session_id] = key
        else:
            self._db.execute(
                "UPDATE sessions SET created=?, revision=?, next_seq=?, tail=? WHERE key=?",
                (*state, key),
            )
        self.known[session_id] = state
        base = key << _SEQ_BITS
        self._db.executemany(
            "INSERT INTO texts(rowid, body) VALUES(?,?)", ((base | seq, text) for seq, text in rows)
        )

    @property
    def wasted(self) -> bool:
        """Whether most of what is in it belongs to sessions that are gone: better made anew."""
        with _told():
            last = self._db.execute("SELECT max(seq) FROM sqlite_sequence").fetchone()[0] or 0
        return int(last) > 2 * len(self.known) + _WASTE

    # ------------------------------------------------------------------ asking

    def find(self, match: str) -> dict[str, list[int]] | None:
        """Return the seqs of every event that may match, newest first, by session; None where they are too many."""
        with _told():
            rows = self._db.execute(
                "SELECT rowid FROM texts WHERE texts MATCH ? LIMIT ?", (match, _FEW + 1)
            ).fetchall()
        if len(rows) > _FEW:
            return None
        names = {key: session_id for session_id, key in self._keys.items()}
        found: dict[str, list[int]] = {}
        for (row,) in sorted(rows, reverse=True):
            session_id = names.get(row >> _SEQ_BITS)
            if session_id is not None:
                found.setdefault(session_id, []).append(row & ((1 << _SEQ_BITS) - 1))
        return found

    def find_in(self, session_id: str, match: str, most: int, below: int | None) -> list[int]:
        """Return the last `most` seqs of one session's events that may match, those below `below`, newest first."""
        key = self._keys.get(session_id)
        if key is None:
            return []
        base = key << _SEQ_BITS
        last = base | ((1 << _SEQ_BITS) - 1 if below is None else below - 1)
        with _told():
            rows = self._db.execute(
                "SELECT rowid FROM texts WHERE texts MATCH ? AND rowid BETWEEN ? AND ?"
                " ORDER BY rowid DESC LIMIT ?",
                (match, base, last, most),
            ).fetchall()
        return [row - base for (row,) in rows]


def set_aside(root: str) -> None:
    """Put an index out of the way that is of no use; the one before it is given up. Raises OSError."""
    with suppress(FileNotFoundError):
        os.replace(f"{root}/{NAME}", f"{root}/{DAMAGED}")  # noqa: PTH105  # a name, not a path object
    for tail in ("-journal", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(f"{root}/{NAME}{tail}")  # noqa: PTH108  # likewise


_MARK = "\x02"
_WORDS = 24
_BEFORE, _AFTER = 80, 160


class Excerpts:
    """Looks into texts for one question, in memory, by the rules of the index.

    Args:
        match: The question.
    """

    def __init__(self, match: str) -> None:
        self._match = match
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.execute("CREATE VIRTUAL TABLE texts USING fts5(body, tokenize='unicode61')")

    def of(self, texts: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Return which of some numbered texts match, newest first, each with what stands around the first place."""
        self._db.execute("BEGIN")
        try:
            self._db.executemany("INSERT INTO texts(rowid, body) VALUES(?,?)", texts)
            rows = self._db.execute(
                "SELECT rowid, snippet(texts, 0, ?, '', '…', ?) FROM texts WHERE texts MATCH ?"
                " ORDER BY rowid DESC",
                (_MARK, _WORDS, self._match),
            ).fetchall()
        finally:
            self._db.execute("ROLLBACK")
        return [(seq, _cut(text)) for seq, text in rows]

    def close(self) -> None:
        """Give the memory back."""
        self._db.close()


def _cut(text: str) -> str:
    """Return an excerpt without its mark, and short also where a word is long."""
    before, _, after = text.partition(_MARK)
    after = after.replace(_MARK, "")
    if len(before) > _BEFORE:
        before = "…" + before[-_BEFORE:]
    return before + (after[:_AFTER] + "…" if len(after) > _AFTER else after)
