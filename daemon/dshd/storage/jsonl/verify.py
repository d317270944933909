"""Checking a stored session without a daemon: what is whole, what is torn, what is damaged, and where.

The rule that holds here: no lock is taken and nothing is changed, so it may be run beside a living daemon. An append
that is being written at that moment is seen as a torn tail.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dsh_protocol.errors import DshdError, SessionNotFoundError
from dshd.storage.files import READ, RealDisk
from dshd.storage.jsonl.faults import corrupt, read_error, unsafe
from dshd.storage.jsonl.index import SeqIndex
from dshd.storage.jsonl.layout import LOG_NAMES, RAW_LOG, ZSTD_LOG, check_id
from dshd.storage.jsonl.root import Root
from dshd.storage.jsonl.scan import Source, Walk, read_header
from dshd.storage.jsonl.vocabulary import find_problem


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
    findings: list[Finding] = []

    def to_json(self) -> str:
        """Return the report as one JSON document."""
        try:
            return msgspec.json.encode(self).decode()
        except UnicodeEncodeError:  # half of a surrogate pair, in an odd id
            plain = msgspec.structs.replace(self, id=_shown(self.id), target=_shown(self.target))
            return msgspec.json.encode(plain).decode()

    def to_text(self) -> str:
        """Return the report for a person, control characters escaped."""
        verdict = "whole" if self.whole else "not whole"
        lines = [f"{_shown(self.path or self.target)}: {verdict}"]
        if self.id is not None:
            lines.append(
                f"  session {_shown(self.id)}, {self.events} events in {self.good_bytes} bytes"
            )
        if self.unchecked_frames:
            lines.append(f"  {self.unchecked_frames} of {self.frames} frames carry no checksum")
        lines += [f"  {finding.kind}: {_shown(finding.message)}" for finding in self.findings]
        return "\n".join(lines)


def verify(target: str, root: Path) -> Report:
    """Check one session.

    Args:
        target: The path of a log or of a session's directory, where it has a slash or stands in the file system; else
            a session's id.
        root: Where ids are looked for.
    """
    report = Report(target=target, path="")
    try:
        report.path = _path_of(target, root)
        _check(report)
    except DshdError as error:
        offset = error.facts.get("offset")
        at = offset if isinstance(offset, int) else None
        report.findings.append(Finding(error.kind, error.message, at))
    except OSError as error:
        told = read_error(error, report.path or target)
        report.findings.append(Finding(told.kind, told.message))
    report.whole = not report.findings
    return report


def _path_of(target: str, root: Path) -> str:
    """Return the path of the log that is meant."""
    if os.sep not in target and not Path(target).exists():
        places = Root(os.fspath(root), RealDisk()).find(check_id(target))
        paths = [f"{Path(root).absolute()}/{place.log}" for place in places]
    elif Path(target).is_dir():
        paths = [str(Path(target, name)) for name in LOG_NAMES if Path(target, name).exists()]
    else:
        return target
    if not paths:
        raise SessionNotFoundError(f"no session {target!r} under {str(root)!r}")
    if len(paths) > 1:
        raise corrupt(paths[0], 0, f"the session has several logs: {', '.join(paths)}")
    return paths[0]


def _check(report: Report) -> None:
    name = Path(report.path).name
    if name not in {ZSTD_LOG, RAW_LOG} and not name.endswith((".jsonl", ".jsonl.zstd")):
        raise unsafe(report.path, "no session log by its name")
    disk = RealDisk()
    fd = disk.open(report.path, READ)
    try:
        source = Source(disk, fd, report.path, name.endswith(".zstd"))
        report.size_bytes = disk.fstat(fd).st_size
        _scan(report, source)
    finally:
        disk.close(fd)


def _scan(report: Report, source: Source) -> None:
    header, first = read_header(source, report.size_bytes)
    report.id, report.good_bytes = header.id, first
    index = SeqIndex()
    index.add(first, 0)
    walk = Walk(source, index, index.last(), report.size_bytes)
    try:
        problem = find_problem(walk.batches(), index, source.path)
    finally:
        report.good_bytes, report.events = walk.offset, walk.seq
        report.frames, report.unchecked_frames = walk.frames, walk.unchecked_frames
    if walk.torn is not None:
        text = f"{walk.torn.size} bytes behind the last good one: {walk.torn.reason}"
        report.findings.append(Finding("TORN_TAIL", text, walk.torn.offset))
    if problem is not None:
        raise problem


def _shown(text: str | None) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text or "")
