"""Checking a stored session without a daemon: what is whole, what is torn, what is damaged, and where.

The rule that holds here: no lock is taken and nothing is changed, so it may be run beside a living daemon. An append
that is being written at that moment is seen as a torn tail.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dsh_protocol.defects import defect_text
from dsh_protocol.errors import DshdError, SessionNotFoundError
from dshd.storage.files import READ, RealDisk
from dshd.storage.jsonl.closed import closed_projects
from dshd.storage.jsonl.derived import Lineage, lineage_of, read_derived
from dshd.storage.jsonl.faults import read_error, unsafe
from dshd.storage.jsonl.index import SeqIndex
from dshd.storage.jsonl.layout import (
    LEFTOVER,
    LOG_NAMES,
    NEWER_LOG,
    RAW_LOG,
    ZSTD_LOG,
    decode_segment,
    encode_segment,
    is_project,
)
from dshd.storage.jsonl.scan import Walk
from dshd.storage.jsonl.source import Source, read_header
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.targets import Sessions, path_of
from dshd.storage.jsonl.vocabulary import find_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_protocol.vocabulary import Event


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is not as it should be; `kind` is one of `dsh_protocol.errors`, or `TORN_TAIL`."""

    kind: str
    message: str
    offset: int | None = None


class Report(msgspec.Struct, rename="camel", kw_only=True):
    """What was found.

    Attributes:
        whole: Nothing is torn and nothing damaged.
        events: How many can be read from the beginning.
        good_bytes: Where what is good ends.
        frames: Zstandard frames, the header's not counted; 0 for a raw log.
        unchecked_frames: Frames without a checksum. Legal, never written by this program.
        beside: Names beside the log that look like one and are read by nobody: copies that a program for keeping
            folders alike has made, say. They are no fault of the session's.
    """

    target: str
    path: str
    id: str | None = None
    whole: bool = False
    size_bytes: int = 0
    good_bytes: int = 0
    events: int = 0
    frames: int = 0
    unchecked_frames: int = 0
    beside: list[str] = []
    findings: list[Finding] = []

    def to_json(self) -> str:
        """Return the report as one JSON document."""
        try:
            return msgspec.json.encode(self).decode()
        except UnicodeEncodeError:  # half of a surrogate pair, in an odd id
            beside = list(map(shown, self.beside))
            plain = msgspec.structs.replace(
                self, id=shown(self.id), target=shown(self.target), beside=beside
            )
            return msgspec.json.encode(plain).decode()

    def to_text(self) -> str:
        """Return the report for a person, control characters escaped."""
        verdict = "whole" if self.whole else "not whole"
        lines = [f"{shown(self.path or self.target)}: {verdict}"]
        if self.id is not None:
            lines.append(
                f"  session {shown(self.id)}, {self.events} events in {self.good_bytes} bytes"
            )
        if self.unchecked_frames:
            lines.append(f"  {self.unchecked_frames} of {self.frames} frames carry no checksum")
        lines += [f"  {finding.kind}: {shown(finding.message)}" for finding in self.findings]
        lines += [
            f"  ignored: {shown(name)}, which is not the session's log" for name in self.beside
        ]
        return "\n".join(lines)


Judge = Callable[["Event"], "str | None"]
"""Takes the events of one log in order and says which rule one breaks, that only the whole log can tell."""
Progress = Callable[[int, int], None]
"""Is told how many bytes of how many were gone through."""


class Looker(NamedTuple):
    """Who looks on.

    Attributes:
        judge: Makes a judge for one log; none judges nothing.
        progress: Of one log.
    """

    judge: Callable[[], Judge] | None = None
    progress: Progress | None = None


_NOBODY = Looker()


def verify(target: str, root: Path, looker: Looker = _NOBODY) -> Report:
    """Check one session.

    Args:
        target: As `targets.path_of` takes it.
        root: Where ids are looked for.
        looker: Who looks on.
    """
    report = Report(target=target, path="")
    try:
        report.path = path_of(target, root)
        _check(report, looker)
    except DshdError as error:
        offset = error.facts.get("offset")
        at = offset if isinstance(offset, int) else None
        report.findings.append(Finding(error.kind, error.message, at))
    except FileNotFoundError:
        text = f"there is no {report.path!r}"
        report.findings.append(Finding(SessionNotFoundError.kind, text))
    except OSError as error:
        told = read_error(error, report.path or target)
        report.findings.append(Finding(told.kind, told.message))
    report.whole = not report.findings
    return report


class RootReport(msgspec.Struct, rename="camel", kw_only=True):
    """What was found under a root, or in one project's folder: a report for each session, and how many are whole.

    Attributes:
        whole: Every session is, and every project could be looked into.
        closed: Projects that could not be: what lies in them is in no list.
        strays: Directories among those of sessions whose names no id has; what lies in them is in no list.
    """

    root: str
    whole: bool
    count: int
    whole_count: int
    strays: list[str] = []
    closed: list[str] = []
    sessions: list[Report]

    def to_json(self) -> str:
        """Return the report as one JSON document."""
        sessions = ",".join(report.to_json() for report in self.sessions)
        rest = msgspec.structs.replace(self, sessions=[])
        return msgspec.json.encode(rest).decode()[:-2] + sessions + "]}"

    def to_text(self) -> str:
        """Return what a person wants to know: every session that is not whole, and the count."""
        lines = [one.to_text() for one in self.sessions if not one.whole or one.beside]
        lines += [f"{shown(path)}: ignored, no session is called so" for path in self.strays]
        lines += [
            f"{shown(path)}: not looked into, it is no folder of yours that can be read"
            for path in self.closed
        ]
        return "\n".join([*lines, f"{self.whole_count} of {self.count} sessions are whole"])


def verify_root(
    root: Path | Sessions,
    looker: Looker = _NOBODY,
    begin: Callable[[int, int], None] | None = None,
) -> RootReport:
    """Check every session under a root or in one of its projects, each by itself.

    Args:
        root: The directory of projects; or which of them.
        looker: Who looks on.
        begin: Is told which session of how many is begun.

    Raises:
        UnsafePathError, WriteFailedError: The root cannot be looked into.
    """
    root, project = root if isinstance(root, Sessions) else Sessions(root)
    sessions = sorted(open_store(root).list(), key=lambda stored: stored.path)
    if project is not None:
        names = {path.name for path in project.iterdir()}
        sessions = [one for one in sessions if encode_segment(one.session_id) in names]
    closed = [path for path in closed_projects(root) if project in {None, Path(path)}]
    reports: list[Report] = []
    for number, stored in enumerate(sessions):
        if begin is not None:
            begin(number, len(sessions))
        report = Report(target=stored.session_id, path=stored.path, id=stored.session_id)
        if stored.header is not None:
            report = verify(stored.path, root, looker)
        problem = stored.problem
        if problem is not None and all(problem.kind != one.kind for one in report.findings):
            report.findings.append(Finding(problem.kind, problem.message, problem.offset))
        report.whole = not report.findings
        reports.append(report)
    good = sum(report.whole for report in reports)
    return RootReport(
        root=str(project or root),
        whole=good == len(reports) and not closed,
        count=len(reports),
        whole_count=good,
        strays=list(_strays(root, project)),
        closed=closed,
        sessions=reports,
    )


def _strays(root: Path, only: Path | None) -> Iterator[str]:
    with suppress(OSError):
        projects = sorted(path for path in root.iterdir() if is_project(path.name))
        for project in projects if only is None else [only]:
            with suppress(OSError):
                for path in sorted(project.iterdir()):
                    if decode_segment(path.name) is None and path.is_dir():
                        yield str(path)


def _check(report: Report, looker: Looker) -> None:
    name = Path(report.path).name
    if not name.endswith((RAW_LOG, ZSTD_LOG, ".jsonl", ".jsonl.zstd")):
        raise unsafe(report.path, "no session log by its name")
    disk = RealDisk()
    fd = disk.open(report.path, READ)
    try:
        found = disk.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise unsafe(report.path, "no regular file")
        report.size_bytes = found.st_size
        report.beside = _beside(Path(report.path))
        _scan(report, Source(disk, fd, report.path, name.endswith(".zstd")), looker)
    finally:
        disk.close(fd)


def _beside(log: Path) -> list[str]:
    if log.name not in LOG_NAMES:
        return []
    names = (path.name for path in log.parent.iterdir() if path.name not in LOG_NAMES)
    return sorted(
        name
        for name in names
        if ".jsonl" in name and not LEFTOVER.fullmatch(name) and not NEWER_LOG.fullmatch(name)
    )


def _scan(report: Report, source: Source, looker: Looker) -> None:
    header, first = read_header(source, report.size_bytes)
    report.id, report.good_bytes = header.id, first
    lineage = _lineage(source, first, report.size_bytes)
    index = SeqIndex([(first, 0)])
    walk = Walk(source, index, index.last(), report.size_bytes, lineage.known, crc=0)
    batches = _judged(walk, report, looker)
    try:
        problem = find_problem(batches, index, source.path)
    finally:
        report.good_bytes, report.events = walk.offset, walk.seq
        report.frames, report.unchecked_frames = walk.frames, walk.unchecked_frames
    if walk.torn is not None:
        text = f"{walk.torn.size} bytes behind the last good one: {walk.torn.reason}"
        report.findings.append(Finding("TORN_TAIL", text, walk.torn.offset))
    problem = problem or lineage.loss
    if problem is not None:
        raise problem


def _lineage(source: Source, first: int, size: int) -> Lineage:
    """Return what the derived file says that is kept beside a log in its place."""
    if Path(source.path).name not in LOG_NAMES:
        return Lineage()
    directory = source.disk.open_root(str(Path(source.path).parent))
    try:
        return lineage_of(read_derived(source.disk, directory, whole=False), source, first, size)
    finally:
        source.disk.close(directory)


def _judged(walk: Walk, report: Report, looker: Looker) -> Iterator[list[Event]]:
    """Yield a walk's events, with somebody looking on."""
    judge = None if looker.judge is None else looker.judge()
    for batch in walk.batches():
        for event in batch:
            rule = None if judge is None else judge(event)
            if rule is not None:
                text = f"event {event['seq']} breaks {rule!r}: {defect_text(rule)}"
                report.findings.append(Finding("LOG_CORRUPT", text, walk.offset))
                judge = None
        if looker.progress is not None:
            looker.progress(walk.offset, report.size_bytes)
        yield batch


def shown(text: str | None) -> str:
    """Return a text with what a terminal must not be sent escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text or "")
