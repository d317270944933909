"""Logs that the format's own program wrote, put at their places under a root and read through a real daemon."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from interop.recorded import Recorded, recorded_logs
from support.canonical import sha256
from support.logs import read_log
from support.rpc import CallRefusedError
from support.vectors import vectors

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from support.daemon import DaemonProcess
    from support.rpc import Connection

LOGS = recorded_logs()
LOADABLE = [log for log in LOGS if log.loads and not log.is_legacy]
LEGACY = [log for log in LOGS if log.loads and log.is_legacy]
REFUSED = [log for log in LOGS if not log.loads]
LOCK = "session.lock"
PAGES = ({"length": 7}, {"maxBytes": 3000}, {"length": 1000, "maxBytes": 1}, {"maxBytes": 0})
PAGED = {
    "acp-fs-read.jsonl",
    "web-sidebar-seed.jsonl",
    "z-25-unicode",
    "z-26-numbers-float",
    "raw-41-unicode",
}


def named(logs: list[Recorded]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("log", logs, ids=[log.name for log in logs])


@contextmanager
def placed(daemon: DaemonProcess, log: Recorded) -> Generator[Connection, None, None]:
    """Put a log at its place, and make sure that it stands there untouched afterwards."""
    path = log.put(daemon.root)
    before = files_below(path.parent)
    try:
        with daemon.connect() as connection:
            yield connection
        assert files_below(path.parent) == before
    finally:
        shutil.rmtree(path.parent)


def files_below(folder: Path) -> dict[str, bytes]:
    """Return names and contents; the lock, which is empty and stays, is no content."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}


def read_all(connection: Connection, session_id: str, page: dict[str, int]) -> list[Any]:
    events: list[Any] = []
    while True:
        found = connection.call("session.read", id=session_id, offset=len(events), **page)
        events += found["events"]
        assert found["nextOffset"] == len(events)
        if found["end"]:
            assert found["durableSeq"] == len(events)
            return events
        assert found["events"], "a page without an event does not lead on"


def all_messages(connection: Connection, session_id: str, limit: int) -> list[Any]:
    messages: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        found = connection.call("session.messages", id=session_id, offset=offset, limit=limit)
        messages += found["messages"]
        offset = found["nextOffset"]
    return messages


def refusal(connection: Connection, method: str, **params: Any) -> str:
    with pytest.raises(CallRefusedError) as caught:
        connection.call(method, **params)
    return caught.value.kind


def test_the_recorded_logs_are_all_there() -> None:
    vectors()
    assert (len(LOADABLE), len(LEGACY), len(REFUSED)) == (140, 12, 6)


@named(LOADABLE)
def test_a_loadable_log_reads_as_recorded(daemon: DaemonProcess, log: Recorded) -> None:
    name = log.session_id
    with placed(daemon, log) as connection:
        events = read_all(connection, name, {})
        assert len(events) == log.facts["stored_events"]
        assert sha256(events) == log.facts["stored_events_sha256"]
        opened = connection.call("session.open", id=name, access="read")
        recovery = opened["recovery"]
        closers: list[Any] = []
        if recovery is not None and not recovery["committed"]:
            closers = recovery["closers"]
            assert recovery["nextSeq"] == len(events) + len(closers) + 1
        assert len(events) + len(closers) == log.facts["events"]
        if closers or log.facts["events_sha256"] != log.facts["stored_events_sha256"]:
            assert sha256([*events, *closers]) == log.facts["events_sha256"]
        assert opened["session"]["header"] == log.facts["header"]
        assert opened["session"]["problem"] is None


@pytest.mark.parametrize("page", PAGES, ids=str)
@named([log for log in LOADABLE if log.name in PAGED])
def test_any_page_size_gives_the_same_events(
    daemon: DaemonProcess, log: Recorded, page: dict[str, int]
) -> None:
    with placed(daemon, log) as connection:
        events = read_all(connection, log.session_id, page)
        assert sha256(events) == log.facts["stored_events_sha256"]


@named(LOADABLE)
def test_a_loadable_log_gives_the_recorded_messages(daemon: DaemonProcess, log: Recorded) -> None:
    with placed(daemon, log) as connection:
        messages = all_messages(connection, log.session_id, 1000)
        assert len(messages) == log.facts["messages"]
        assert sha256(messages) == log.facts["messages_sha256"]
        assert all_messages(connection, log.session_id, 5) == messages


@named([log for log in LOADABLE if log.truncate_to is None])
def test_opening_for_writing_and_closing_changes_nothing(
    daemon: DaemonProcess, log: Recorded
) -> None:
    path = log.put(daemon.root)
    before = path.read_bytes()
    with daemon.connect() as connection:
        opened = connection.call("session.open", id=log.session_id, access="write")
        connection.call("session.close", id=log.session_id, writer=opened["writer"])
    assert path.read_bytes() == before
    shutil.rmtree(path.parent)


@named([log for log in LOADABLE if log.facts.get("closers")])
def test_recovery_writes_the_recorded_closers(daemon: DaemonProcess, log: Recorded) -> None:
    path = log.put(daemon.root)
    kept = path.read_bytes()[: log.truncate_to]
    with daemon.connect() as connection:
        opened = connection.call("session.open", id=log.session_id, access="write")
        about = {"id": log.session_id, "writer": opened["writer"]}
        recovered = connection.call("session.recover", **about)
        assert recovered == {**opened["recovery"], "committed": True}
        assert len(recovered["closers"]) == log.facts["closers"]
        connection.call("session.close", **about)
    *events, end_seed = read_log(path)
    assert sha256(events) == log.facts["events_sha256"]
    assert end_seed["type"] == "session/end-seed"
    assert path.read_bytes().startswith(kept)
    shutil.rmtree(path.parent)


@named(LEGACY)
def test_retired_shapes_are_read_as_stored_and_refused_otherwise(
    daemon: DaemonProcess, log: Recorded
) -> None:
    name = log.session_id
    with placed(daemon, log) as connection:
        events = read_all(connection, name, {})
        assert sha256(events) == log.facts["stored_events_sha256"]
        assert refusal(connection, "session.messages", id=name) == "FORMAT_UNSUPPORTED"
        kind = refusal(connection, "session.open", id=name, access="write")
        assert kind == "FORMAT_UNSUPPORTED"
        partial = connection.call("session.messages", id=name, partial=True)
        assert partial["problem"]["kind"] == "FORMAT_UNSUPPORTED"
        shown = connection.call("session.stat", id=name)["session"]
        assert shown["state"] == "unsupported"
        assert shown["problem"]["kind"] == "FORMAT_UNSUPPORTED"


@named(REFUSED)
def test_what_does_not_load_is_shown_with_its_problem(daemon: DaemonProcess, log: Recorded) -> None:
    name = log.session_id
    with placed(daemon, log) as connection:
        found = connection.call("session.read", id=name)
        if log.facts["stored_events_sha256"] is None:
            assert found["problem"]["kind"] == "LOG_CORRUPT"
        else:
            assert sha256(found["events"]) == log.facts["stored_events_sha256"]
        unreadable = {"LOG_CORRUPT", "FORMAT_UNSUPPORTED"}
        assert refusal(connection, "session.messages", id=name) in unreadable
        assert refusal(connection, "session.open", id=name, access="write") in unreadable
        shown = connection.call("session.stat", id=name)["session"]
        assert shown["state"] in {"damaged", "unsupported"}
        assert shown["problem"]["kind"] in unreadable
        assert connection.call("session.list")["sessions"][0]["id"] == name
