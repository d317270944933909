"""One file of another program becomes one session, or one for each conversation in it.

The rule: a file is read once, as far as it went when it was opened, and never written.
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
        self._context = context
        self._kind = kind
        self._path = path
        self._wanted = session_id
        self._archive: Archive | None = None
        self._source: Json = {}
        self._cwd: str | None = None
        self._hash = hashlib.sha256()

    def run(self, meter: Meter) -> Json:
        """Read and write; return what is to be told.

        Raises:
            OSError: The file cannot be read.
            DshdError, ClientError: A session could not be written; it was taken back.
        """
        reader_type = reader_of(self._kind)
        with open(self._path, "rb") as file:  # noqa: PTH123  # pathlib costs 5 ms at start
            size = os.fstat(file.fileno()).st_size
            self._source = {
                "from": self._kind,
                "file": os.fsencode(os.path.abspath(self._path)).decode("utf-8", "replace"),  # noqa: PTH100  # pathlib costs 5 ms at start
                "bytes": size,
                "importedAt": now_ms(),
                "by": f"dshctl {VERSION}",
            }
            meter.begin(os.path.basename(self._path))  # noqa: PTH119  # likewise
            self._cwd = _first_cwd(file, reader_type)
            watched = _Watched(file, size, self._hash, meter)
            try:
                reader = reader_type(self._begin, self.report)
                for piece in self._pieces(watched, reader):
                    reader.piece(piece)
                self._finish()
            except BaseException:
                if self._archive is not None:
                    self._archive.abandon()
                raise
        return {"file": self._path, "sessions": self.sessions, **self.report.document()}

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
        self._archive = Archive(self._context, header, self._source, self.report)
        return self._archive

    def _finish(self) -> None:
        if self._archive is not None:
            self.sessions.append(self._archive.end({"sha256": self._hash.hexdigest()}))
        self._archive = None


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
