"""One file of another program becomes one session, or one for each conversation in it.

The rule: a file is read as far as it went when it was opened, once for its digest and once for what it says, and never
written. Its sessions are there when all of them are.
"""

from __future__ import annotations

import hashlib
import io
import os
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from dsh_client.cli.importing import documents, lines
from dsh_client.cli.importing.archive import Archive
from dsh_client.cli.importing.report import Report
from dsh_client.cli.times import now_ms
from dsh_client.cli.values import as_object
from dsh_protocol.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_client.cli.context import Context
    from dsh_client.cli.importing.known import Known
    from dsh_client.cli.importing.lines import Piece
    from dsh_client.cli.importing.meter import Meter
    from dsh_client.cli.importing.reader import Reader

    Json = dict[str, Any]

KINDS = {
    "claude-code": "the JSON Lines below ~/.claude/projects",
    "codex": "the rollout files below ~/.codex/sessions",
    "openai": "chat messages or Responses items, in one document or one a line",
}
_LOOK_AT = 100


def reader_of(kind: str) -> type[Reader]:
    """Return the reader of a kind of file; each is imported where it is wanted."""
    if kind == "claude-code":
        from dsh_client.cli.importing.claude_code import ClaudeCode

        return ClaudeCode
    if kind == "codex":
        from dsh_client.cli.importing.codex import Codex

        return Codex
    from dsh_client.cli.importing.openai import OpenAI

    return OpenAI


class Import:
    """The import of one file.

    Args:
        context: Calls the daemon.
        kind: One of `KINDS`.
        path: The file.
        session_id: For its (first) session; None for a fresh one.
    """

    def __init__(self, context: Context, kind: str, path: str, session_id: str | None) -> None:
        """Nothing is read yet."""
        self.report = Report()
        self.sessions: list[Json] = []
        self.already: list[str] = []
        self.put_away: list[str] = []
        self._context = context
        self._kind = kind
        self._path = path
        self._wanted = session_id
        self._archives: list[Archive] = []
        self._source: Json = {}
        self._cwd: str | None = None
        self._hash = hashlib.sha256()

    def run(self, meter: Meter, known: Known, *, again: bool) -> None:
        """Read and write, unless the same file was imported before.

        Args:
            meter: Shows how far it is.
            known: What was imported before.
            again: Import it whether it was or not.

        Raises:
            OSError: The file cannot be read.
            DshdError, ClientError: A session could not be written; all of this file were taken back.
        """
        reader_type = reader_of(self._kind)
        with open(self._path, "rb") as file:  # noqa: PTH123  # pathlib costs 5 ms at start
            size = os.fstat(file.fileno()).st_size
            self._source = {
                "from": self._kind,
                "file": os.fsencode(os.path.abspath(self._path)).decode("utf-8", "replace"),  # noqa: PTH100  # pathlib costs 5 ms at start
                "bytes": size,
                "sha256": _digest_of(file, size),
                "importedAt": now_ms(),
                "by": f"dshctl {VERSION}",
            }
            meter.begin(os.path.basename(self._path))  # noqa: PTH119  # likewise
            self._cwd = _first_cwd(file, reader_type)
            self.put_away = known.put_away(self._source, self._cwd)
            if not again:
                self.already = known.holding(self._source["sha256"], self._cwd)
            if self.already:
                return
            try:
                self._write(_Watched(file, size, self._hash, meter), reader_type)
            except BaseException:
                for archive in self._archives:
                    archive.abandon()
                raise
        known.add(self.sessions, self._source, self._cwd)

    def _write(self, watched: _Watched, reader_type: type[Reader]) -> None:
        reader = reader_type(self._begin, self.report)
        for piece in self._pieces(watched, reader):
            reader.piece(piece)
        self._finish()
        self.sessions = [one.archive() for one in self._archives]

    def _pieces(self, watched: _Watched, reader: Reader) -> Iterator[Piece]:
        if self._kind == "openai" and watched.size <= documents.LARGEST:
            raw = watched.read()
            found = documents.document_pieces(raw, reader.plausible)
            if found is not None:
                yield from found
                return
            yield from lines.pieces(io.BytesIO(raw), reader.plausible)
            return
        yield from lines.pieces(io.BufferedReader(watched, lines.PART), reader.plausible)

    def _begin(self) -> Archive:
        self._finish()
        header: Json = {}
        if self._wanted is not None:
            header["id"], self._wanted = self._wanted, None
        if self._cwd is not None:
            header["cwd"] = self._cwd
        archive = Archive(self._context, header, self.report)
        self._archives.append(archive)  # from here on it is taken back where anything fails
        archive.begin(self._source)
        return archive

    def _finish(self) -> None:
        """End the conversation that was written last."""
        if self._archives:
            self._archives[-1].end({"sha256": self._hash.hexdigest()})


def _digest_of(file: BinaryIO, size: int) -> str:
    """Return the digest of a file's first `size` bytes, and go back to its beginning."""
    digest = hashlib.sha256()
    left = size
    while left > 0 and (piece := file.read(min(left, lines.PART))):
        digest.update(piece)
        left -= len(piece)
    file.seek(0)
    return digest.hexdigest()


class _Watched(io.RawIOBase):
    """A file read to where it ended when it was opened; what is read is hashed, and shown."""

    def __init__(self, file: BinaryIO, size: int, digest: Any, meter: Meter) -> None:
        super().__init__()
        self.size = size
        self._file: IO[bytes] = file
        self._left = size
        self._digest = digest
        self._meter = meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._file.read(min(len(buffer), self._left))
        buffer[: len(found)] = found
        self._left -= len(found)
        self._digest.update(found)
        self._meter.show(self.size - self._left, self.size)
        return len(found)


def _first_cwd(file: BinaryIO, reader_type: type[Reader]) -> str | None:
    """Return the first working directory that the records name; the header, which has it, comes before them."""
    for _ in range(_LOOK_AT):
        raw = file.readline(lines.PART)
        if not raw:
            break
        for piece in lines.line_pieces(raw, 1, reader_type.plausible):
            record = as_object(piece.value)
            cwd = record.get("cwd") or as_object(record.get("payload")).get("cwd")
            if isinstance(cwd, str) and cwd.startswith("/") and cwd.isprintable():
                file.seek(0)
                return cwd
    file.seek(0)
    return None
