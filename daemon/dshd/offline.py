"""The verbs of `dshd` that need no daemon: `verify` looks, `salvage` and `restore` make a session of what was kept.

The one rule: none changes what it looks at. What is found goes to standard output, progress to standard error and
only where a person looks.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from dsh_protocol.errors import (
    EXIT_CANNOT_START,
    EXIT_FAILURE,
    EXIT_NO_SUCH_SESSION,
    EXIT_OK,
    DshdError,
    SessionNotFoundError,
)
from dsh_protocol.ids import new_session_id
from dshd.sessions.fold import Fold
from dshd.sessions.surface import SurfaceDefectError
from dshd.storage.jsonl.lock import lock_root
from dshd.storage.jsonl.restore import restore
from dshd.storage.jsonl.salvage import salvage
from dshd.storage.jsonl.targets import Sessions, sessions_of
from dshd.storage.jsonl.verify import Looker, shown, verify, verify_root

if TYPE_CHECKING:
    import argparse

    from dsh_protocol.events import Event
    from dshd.storage.jsonl.verify import Judge

_EVERY_S = 0.1
_WIDTH = 60


class Meter:
    """One line on a terminal that says how far a long look has come; nothing anywhere else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._next = 0.0
        self._where = ""

    def begin(self, number: int, count: int) -> None:
        """Note which session of how many is looked at."""
        self._where = f"session {number + 1} of {count}, "
        self.show(0, 0)

    def show(self, done: int, total: int) -> None:
        """Show how many bytes of how many are done."""
        now = time.monotonic()
        if self._stream is None or now < self._next:
            return
        self._next = now + _EVERY_S
        share = f"{100 * done // total} %" if total else "begun"
        self._write(f"dshd: {self._where}{share}".ljust(_WIDTH))

    def clear(self) -> None:
        """Leave the line empty."""
        if self._stream is not None and self._next:
            self._write(" " * _WIDTH)
            self._write("")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(f"\r{text}")
            self._stream.flush()


def new_judge() -> Judge:
    """Return a judge of one log's surface."""
    fold = Fold()

    def judge(event: Event) -> str | None:
        try:
            fold.apply(event)
        except SurfaceDefectError as defect:
            return defect.rule
        except (KeyError, TypeError, AttributeError):
            return "invalid-envelope"
        return None

    return judge


def run_verify(flags: argparse.Namespace, root: Path) -> int:
    """Check a session, or all of a root or project, and print what was found; exit 0 only where all is whole."""
    meter = Meter(sys.stderr)
    looker = Looker(new_judge, meter.show)
    target: str | None = flags.target
    try:
        many = Sessions(root) if target is None else sessions_of(target, root)
        if many is not None:
            found = verify_root(many, looker, meter.begin)
            if not os.path.isdir(many.root):  # noqa: PTH112  # a root that goes away meanwhile is not whole either
                return _refuse(f"there is no root {str(many.root)!r}", EXIT_CANNOT_START)
            meter.clear()
            return _say(found.to_json() if flags.json else found.to_text(), whole=found.whole)
    except DshdError as error:  # of the root itself, or of the search for an id
        return _refuse(error.message, EXIT_CANNOT_START if target is None else error.exit_code)
    report = verify(str(target), root, looker)
    meter.clear()
    said = _say(report.to_json() if flags.json else report.to_text(), whole=report.whole)
    if any(finding.kind == SessionNotFoundError.kind for finding in report.findings):
        return EXIT_NO_SUCH_SESSION
    return said


def _refuse(text: str, code: int) -> int:
    sys.stderr.write(f"dshd: {shown(text)}; name another with --root or $DSHD_ROOT\n")
    return code


def run_salvage(flags: argparse.Namespace, root: Path) -> int:
    """Write a new session from what can be read of one; exit 0 only where everything could."""
    to = root if flags.to is None else Path(flags.to)
    new_id: str | None = flags.id
    if new_id is None and flags.to is None:
        new_id = new_session_id()
    meter = Meter(sys.stderr)
    try:
        with closing(lock_root(to, socket="", since=time.time_ns() // 1_000_000)):
            found = salvage(flags.target, root, to, new_id, Looker(new_judge, meter.show))
    except DshdError as error:
        sys.stderr.write(f"dshd: {shown(error.message)}\n")
        return error.exit_code
    finally:
        meter.clear()
    return _say(found.to_json() if flags.json else found.to_text(), whole=found.whole)


def run_restore(flags: argparse.Namespace, root: Path) -> int:
    """Make a session of a bundle and print it; exit 0 only where it is there, whole."""
    meter = Meter(sys.stderr)
    try:
        manifest, made = restore(Path(flags.target), root, flags.id, Looker(new_judge, meter.show))
    except DshdError as error:
        sys.stderr.write(f"{flags.said_by}: {shown(error.message)}\n")
        return error.exit_code
    finally:
        meter.clear()
    if not flags.json:
        return _say(
            f"{made.events} events of {shown(flags.target)} are {shown(made.new_id)}", whole=True
        )
    told = {
        "id": shown(made.new_id),
        "path": shown(made.new_path),
        "events": made.events,
        "redacted": manifest.redacted,
        "labels": manifest.labels,
    }
    return _say(msgspec.json.encode(told).decode(), whole=True)


def _say(text: str, *, whole: bool) -> int:
    sys.stdout.write(text + "\n")
    return EXIT_OK if whole else EXIT_FAILURE
