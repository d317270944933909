"""Making a new session of what can be read of a damaged one.

The rule that holds here: the damaged log is only read, and no session is ever written over. What was left out is told
byte for byte. Behind damage the seqs move up, so that the new log is one that every program of the format takes.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dsh_protocol.defects import defect_text
from dsh_protocol.errors import LogCorruptError, SessionExistsError, SessionNotFoundError
from dsh_protocol.events import Header
from dshd.storage.files import READ, RealDisk
from dshd.storage.jsonl.faults import corrupt, read_error, unsafe
from dshd.storage.jsonl.layout import LOG_NAMES, check_cwd, decode_segment
from dshd.storage.jsonl.pieces import Gap, Row, row_behind, rows, values_of
from dshd.storage.jsonl.renumber import LostReferenceError, Renumbering
from dshd.storage.jsonl.rows import is_object
from dshd.storage.jsonl.source import Source
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.targets import path_of
from dshd.storage.jsonl.verify import shown
from dshd.storage.jsonl.vocabulary import parse_header, stored_defect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_protocol.vocabulary import Event
    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.jsonl.verify import Judge, Looker
    from dshd.storage.store import SessionHandle

_BATCH_EVENTS = 1000
_BATCH_BYTES = 8 * 1024 * 1024


class Salvage(msgspec.Struct, rename="camel", kw_only=True):
    """What was made, and what was left out.

    Attributes:
        id: The session that was read.
        new_id: The session that was made; None where nothing could be read.
        new_path: Its log.
        events: How many it has.
        renumbered: Some of them have other seqs than they had, because events in front of them are lost.
        header_lost: The header could not be read: the new one has the id, and nothing else of the old one.
        left_out: The bytes that gave nothing, in order.
    """

    path: str
    id: str | None = None
    new_id: str | None = None
    new_path: str | None = None
    events: int = 0
    renumbered: bool = False
    header_lost: bool = False
    left_out: list[Gap] = []

    @property
    def whole(self) -> bool:
        """Whether everything could be read."""
        return not self.left_out and not self.header_lost

    def to_json(self) -> str:
        """Return the report as one JSON document."""
        plain = msgspec.structs.replace(self, id=shown(self.id), new_id=shown(self.new_id))
        return msgspec.json.encode({**msgspec.to_builtins(plain), "whole": self.whole}).decode()

    def to_text(self) -> str:
        """Return the report for a person."""
        lines = [f"nothing can be read of {shown(self.path)}; nothing was written"]
        if self.new_id is not None:
            lines = [f"{self.events} events of {shown(self.path)} are in {shown(self.new_path)}"]
        if self.header_lost:
            lines.append("  the header was lost; the new one has the id and nothing else of it")
        if self.renumbered:
            lines.append("  events behind what is lost have moved up to lower seqs")
        for gap in self.left_out:
            row = "" if gap.row is None else f", row {gap.row}"
            lines.append(f"  left out: bytes {gap.start} to {gap.end}{row}: {shown(gap.reason)}")
        return "\n".join(lines)


class _Reader:
    """Goes through a damaged log once and yields what can be kept of it."""

    def __init__(self, source: Source, size: int, judge: Judge | None) -> None:
        self.left_out: list[Gap] = []
        self.numbers = Renumbering()
        self.seed_length = 0
        self._seeds = 0
        self._judge = judge
        self._pieces = rows(source, size)
        self._path = source.path
        self._first: Row | None = None

    def header(self) -> Header | None:
        """Return the header, where the file begins with one that can be read.

        Raises:
            FormatUnsupportedError: It is another version's: nothing here knows what its events mean.
        """
        piece = next(self._pieces, None)
        if isinstance(piece, Gap):
            self.left_out.append(piece)
        if not isinstance(piece, Row):
            return None
        try:
            header = parse_header(piece.text, self._path)
        except LogCorruptError as error:
            if self._is_event(piece):
                self._first = piece
            else:
                self.left_out.append(piece.gap(str(error.facts.get("reason", "no header"))))
            return None
        self._seeds = header.seed_length or 0
        return header

    def _is_event(self, row: Row) -> bool:
        values = values_of(row)
        return isinstance(values, list) and bool(values) and _seq_of(values[0]) is not None

    def events(self) -> Iterator[Event]:
        """Yield the events that are kept, renumbered."""
        if self._first is not None:
            yield from self._row(self._first)
        for piece in self._pieces:
            if isinstance(piece, Gap):
                self.left_out.append(piece)
            else:
                yield from self._row(piece)

    def _row(self, row: Row) -> Iterator[Event]:
        values = values_of(row)
        if isinstance(values, Gap):
            behind = row_behind(row)
            self.left_out.append(Gap(row.start, behind.start, values.reason) if behind else values)
            if behind is not None:
                yield from self._row(behind)
            return
        for value in values:
            reason = self._fault(value)
            if reason is None:
                old = int(value["seq"])
                try:
                    event = self.numbers.moved(value)
                except LostReferenceError as error:
                    reason = str(error)
                else:
                    reason = self._objection(event)
                    if reason is None:
                        self.numbers.take(old)
                        self.seed_length += old < self._seeds
                        yield event
            if reason is not None:
                self._leave(row, reason)

    def _fault(self, value: Any) -> str | None:
        seq = _seq_of(value)
        if seq is None:
            return "no event"
        if seq < self.numbers.next_old:
            return f"seq {seq} again, or out of order"
        defect = stored_defect(value)
        if defect is None or defect[1]:
            return None  # another vocabulary is no damage
        return f"event {seq} breaks {defect[0]!r}: {defect_text(defect[0])}"

    def _objection(self, event: Event) -> str | None:
        rule = None if self._judge is None else self._judge(event)
        if rule is None:
            return None
        return f"event {event['seq']} of the new log would break {rule!r}: {defect_text(rule)}"

    def _leave(self, row: Row, reason: str) -> None:
        gap = row.gap(reason)
        last = self.left_out[-1] if self.left_out else None
        if last is None or (last.start, last.end, last.row) != (gap.start, gap.end, gap.row):
            self.left_out.append(gap)


def _seq_of(value: Any) -> int | None:
    seq: Any = value.get("seq") if is_object(value) else None
    if type(seq) is float and seq.is_integer():
        seq = int(seq)
    return seq if type(seq) is int and seq >= 0 else None


def salvage(target: str, root: Path, to: Path, new_id: str | None, looker: Looker) -> Salvage:
    """Write a new session from what can be read of another.

    The caller holds the lock of the root that is written to.

    Args:
        target: As `targets.path_of` takes it; of a session with two logs, the path of one.
        root: Where ids are looked for.
        to: The root that gets the new session.
        new_id: Of the new session; that of the old one by default.
        looker: Says which events do not fit those before.

    Raises:
        SessionNotFoundError: There is no such log.
        SessionExistsError: There is a session of that id already.
        FormatUnsupportedError, UnsafePathError, NoSpaceError, WriteFailedError: Nothing was written.
    """
    report = Salvage(path=path_of(target, root))
    name = Path(report.path).name
    if not name.endswith((*LOG_NAMES, ".jsonl", ".jsonl.zstd")):
        raise unsafe(report.path, "no session log by its name")
    disk = RealDisk()
    try:
        fd = disk.open(report.path, READ)
    except FileNotFoundError as error:
        raise SessionNotFoundError(f"there is no {report.path!r}") from error
    except OSError as error:
        raise read_error(error, report.path) from error
    try:
        source = Source(disk, fd, report.path, name.endswith(".zstd"))
        reader = _Reader(source, disk.fstat(fd).st_size, looker.judge and looker.judge())
        _salvage(report, reader, to, new_id, "zstd" if source.zstd else "none")
    finally:
        disk.close(fd)
    return report


def _salvage(
    report: Salvage, reader: _Reader, to: Path, new_id: str | None, compression: Compression
) -> None:
    header = reader.header()
    report.header_lost, report.left_out = header is None, reader.left_out
    report.id = header.id if header is not None else decode_segment(Path(report.path).parent.name)
    wanted = report.id if new_id is None else new_id
    if wanted is None:
        raise corrupt(report.path, 0, "its header is lost, and no id is given for a new one")
    store = open_store(to, compression=compression)
    if any(stored.session_id == wanted for stored in store.list()):
        raise SessionExistsError(
            f"session {wanted!r} exists in {str(to)!r} already and was not touched; give the new one another id",
            session=wanted,
        )
    staging = to / f".salvage-{secrets.token_hex(6)}"
    try:
        with closing(_staged(staging, reader, compression)) as part:
            events = part.next_seq
            if header is None and not events:
                return
            made = _header(header, wanted, reader)
            with closing(store.fork(part, events, made, ())) as handle:
                report.new_path = store.stat(wanted).path
                report.events = handle.next_seq
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    report.new_id, report.renumbered = wanted, reader.numbers.changed


def _header(header: Header | None, session_id: str, reader: _Reader) -> Header:
    if header is None:
        return Header(id=session_id, created_at=0)
    seeds = None if header.seed_length is None else reader.seed_length
    changed = msgspec.structs.replace(header, id=session_id, seed_length=seeds)
    check_cwd(changed.cwd)
    return changed


def _staged(staging: Path, reader: _Reader, compression: Compression) -> SessionHandle:
    """Write what is kept where nobody looks for sessions: under its name it is never seen unfinished."""
    handle = open_store(staging, compression=compression).create(Header(id="part", created_at=0))
    try:
        handle.flush()
        batch: list[Event] = []
        size = 0
        for event in reader.events():
            batch.append(event)
            size += len(str(event.get("data")))
            if len(batch) >= _BATCH_EVENTS or size > _BATCH_BYTES:
                handle.append(batch)
                batch, size = [], 0
        handle.append(batch)
    except BaseException:
        handle.close()
        raise
    return handle
