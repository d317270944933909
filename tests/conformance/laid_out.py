"""Recorded odd files laid out under a root, and what a daemon makes of them, in one short line each.

The one rule: an answer is described, not judged. The line that is wanted comes from the record, by `wanted`, or from
the table of differences; a test compares the two.
"""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.canonical import canonical, sha256
from support.events import END_SEED
from support.rpc import CallRefusedError
from support.vectors import vectors, vectors_present

if TYPE_CHECKING:
    from pathlib import Path

    from support.rpc import Connection

OPERATIONS = ("list", "load", "inspect", "readFrom")
"""`load` is our opening for writing, `inspect` our messages and preview, `readFrom` our read."""
LOCK = "session.lock"
_PRINTED_TEXTS = "tool/result"


@dataclass(frozen=True)
class Case:
    """One recorded case.

    Attributes:
        files: Contents by their place below the root.
        recorded: What the format's own program answered, by operation.
        weakness: The name of a known weakness that shows in that answer.
    """

    name: str
    category: str
    session_id: str
    files: dict[str, bytes]
    recorded: dict[str, dict[str, Any]]
    weakness: str | None

    def put(self, root: Path) -> None:
        """Lay the files out."""
        for place, content in self.files.items():
            path = root / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def remove(self, root: Path) -> None:
        """Take away the files, and what was put beside them."""
        for place in self.files:
            first = root / place.split("/")[0]
            if first.is_dir():
                shutil.rmtree(first)
            else:
                first.unlink(missing_ok=True)

    def untouched(self, root: Path) -> bool:
        """Whether the files are as they were laid out."""
        return all((root / place).read_bytes() == content for place, content in self.files.items())


def recorded_cases() -> list[Case]:
    """Return all cases; none where the vectors are absent."""
    if not vectors_present():
        return []
    return [
        Case(
            name=case["name"],
            category=case["category"],
            session_id=case["session_id"],
            files={file["path"]: base64.b64decode(file["base64"]) for file in case["files"]},
            recorded={found["op"]: found for found in case["operations"]},
            weakness=case.get("upstream_defect"),
        )
        for case in json.loads((vectors() / "verdicts.json").read_bytes())["cases"]
    ]


# ---------------------------------------------------------------------- what the record wants


def wanted(case: Case, operation: str) -> str:
    """Return the line that the recorded answer amounts to."""
    found = case.recorded[operation]
    if operation == "list":
        if found["outcome"] != "ok":
            return "fails"
        return "lists " + " ".join(header["id"] for header in found["headers"])
    if found["outcome"] != "ok":
        return ("names " if operation == "readFrom" else "refused ") + _kind(found)
    if operation == "load":
        return f"opens {found['stored_events']}+{found['closers']}"
    verb = "reads" if operation == "readFrom" else "shows"
    return f"{verb} {found['event_count']}"


def _kind(found: dict[str, Any]) -> str:
    if found["error_class"] == "SessionFormatUnsupportedError":
        return "FORMAT_UNSUPPORTED"
    return "SESSION_NOT_FOUND" if found["reason"] == "not-found" else "LOG_CORRUPT"


# ---------------------------------------------------------------------- what a daemon does


def answer(connection: Connection, case: Case, operation: str) -> str:
    """Return what a daemon makes of a case that is laid out under its root."""
    try:
        return _ANSWERS[operation](connection, case)
    except CallRefusedError as error:
        return ("names " if operation == "readFrom" else "refused ") + error.kind


def _list(connection: Connection, case: Case) -> str:
    shown: list[str] = []
    headers = {header["id"]: header for header in case.recorded["list"].get("headers", ())}
    for session in connection.call("session.list")["sessions"]:
        problem = session["problem"]
        mark = "" if problem is None else f"!{problem['kind']}"
        if session["header"] is not None and session["id"] in headers:
            mark = "" if session["header"] == headers[session["id"]] else "~"
        shown.append(session["id"] + mark)
    return "lists " + " ".join(sorted(shown))


def _closers(recovery: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return what a recovery would add, or has to add still."""
    if recovery is None or recovery["committed"]:
        return []
    closers: list[dict[str, Any]] = recovery["closers"]
    return closers


def _load(connection: Connection, case: Case) -> str:
    """Open for writing, and recover: what that leaves must be a log that opens again, closed and unchanged."""
    name = case.session_id
    opened = connection.call("session.open", id=name, access="write")
    events = read_all(connection, name)
    recovery = opened["recovery"]
    closers = _closers(recovery)
    connection.call("session.recover", id=name, writer=opened["writer"])
    connection.call("session.close", id=name, writer=opened["writer"])
    again = connection.call("session.open", id=name, access="write")
    stored = read_all(connection, name)
    connection.call("session.close", id=name, writer=again["writer"])
    assert canonical(stored[: len(events) + len(closers)]) == canonical([*events, *closers])
    assert [event["type"] for event in stored[len(events) + len(closers) :]] == (
        [END_SEED["type"]] if closers else []
    )
    assert again["session"]["openTurn"] is None
    return f"opens {len(events)}+{len(closers)}{_differs(case, 'load', [*events, *closers])}"


def _inspect(connection: Connection, case: Case) -> str:
    recovery = connection.call("session.open", id=case.session_id, access="read")["recovery"]
    connection.call("session.messages", id=case.session_id)
    closers = _closers(recovery)
    events = [*read_all(connection, case.session_id), *closers]
    return f"shows {len(events)}{_differs(case, 'inspect', events)}"


def _read(connection: Connection, case: Case) -> str:
    page = connection.call("session.read", id=case.session_id)
    problem = page.get("problem")
    if problem is not None:
        return f"names {problem['kind']}"
    events = read_all(connection, case.session_id)
    return f"reads {len(events)}{_differs(case, 'readFrom', events)}"


_ANSWERS = {"list": _list, "load": _load, "inspect": _inspect, "readFrom": _read}


def _differs(case: Case, operation: str, events: list[dict[str, Any]]) -> str:
    """Say so where the events are not the recorded ones, as far as a hash of them can be compared."""
    recorded = case.recorded[operation]
    if recorded["outcome"] != "ok" or "events_sha256" not in recorded:
        return ""
    if recorded["event_count"] != len(events) or any(
        event["type"] == _PRINTED_TEXTS and event["data"].get("error") for event in events
    ):
        return ""  # the number says it already; or there are words in it that are free
    return "" if sha256(events) == recorded["events_sha256"] else " otherwise"


def read_all(connection: Connection, session_id: str) -> list[dict[str, Any]]:
    """Return every event that can be read, page by page."""
    events: list[dict[str, Any]] = []
    while True:
        page = connection.call("session.read", id=session_id, offset=len(events))
        events += page["events"]
        if page["end"] or not page["events"]:
            return events
