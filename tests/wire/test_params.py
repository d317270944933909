"""Parameters that a method does not take: the error names the path, and nothing is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support import events
from wire.shapes import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.daemon import DaemonProcess
    from support.rpc import Connection

    FreshId = Callable[[], str]

CLIENT = {"name": "n", "version": "1"}
WRITTEN = {"id": "s", "writer": "w"}
TOOL = {**WRITTEN, "callId": "a", "name": "t", "arguments": "{}"}

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("initialize", {}, "params.protocolVersion"),
    ("initialize", {"protocolVersion": "1", "client": CLIENT}, "params.protocolVersion"),
    ("initialize", {"protocolVersion": True, "client": CLIENT}, "params.protocolVersion"),
    ("initialize", {"protocolVersion": 1}, "params.client"),
    ("initialize", {"protocolVersion": 1, "client": {"name": "n"}}, "params.client.version"),
    ("initialize", {"protocolVersion": 1, "client": {**CLIENT, "name": 7}}, "params.client.name"),
    ("initialize", {"protocolVersion": 1, "client": {**CLIENT, "pid": -1}}, "params.client.pid"),
    ("session.create", {"id": 7}, "params.id"),
    ("session.create", {"id": "x", "title": "t"}, "params.title"),
    ("session.create", {"id": "x", "seedLength": -1}, "params.seedLength"),
    ("session.create", {"id": "x", "seedLength": 1.5}, "params.seedLength"),
    ("session.create", {"id": "x", "seedLength": False}, "params.seedLength"),
    ("session.create", {"id": "x", "origin": "somewhere"}, "params.origin"),
    ("session.create", {"id": "x", "delegationDepth": "1"}, "params.delegationDepth"),
    ("session.create", {"id": "x", "cwd": "relative"}, "params.cwd"),
    ("session.create", {"id": "x", "cwd": ""}, "params.cwd"),
    ("session.create", {"id": "x", "cwd": "/with\0nul"}, "params.cwd"),
    ("session.create", {"id": "x", "cwd": "/\ud800"}, "params.cwd"),
    ("session.create", {"id": "x", "cwd": "/" + "x" * 5000}, "params.cwd"),
    ("session.create", {"id": "x", "parentSession": "\udc00"}, "params.parentSession"),
    ("session.open", {"access": "read"}, "params.id"),
    ("session.open", {"id": "s"}, "params.access"),
    ("session.open", {"id": "s", "access": "append"}, "params.access"),
    ("session.open", {"id": "s", "access": "write", "takeover": 1}, "params.takeover"),
    ("session.open", {"id": "s", "access": "write", "continue": 7}, "params.continue"),
    (
        "session.open",
        {"id": "s", "access": "write", "continue": {"nextSeq": 1}},
        "params.continue.writer",
    ),
    (
        "session.open",
        {"id": "s", "access": "write", "continue": {"nextSeq": -1, "writer": "w"}},
        "params.continue.nextSeq",
    ),
    ("session.append", {"id": "s", "events": []}, "params.writer"),
    ("session.append", WRITTEN, "params.events"),
    ("session.append", {**WRITTEN, "events": {}}, "params.events"),
    ("session.append", {**WRITTEN, "events": [], "expectedSeq": "0"}, "params.expectedSeq"),
    ("session.append", {**WRITTEN, "events": [], "expectedSeq": True}, "params.expectedSeq"),
    ("session.append", {**WRITTEN, "events": [], "extra": 1}, "params.extra"),
    ("session.flush", {"id": "s"}, "params.writer"),
    ("session.recover", {"writer": "w"}, "params.id"),
    ("session.read", {"id": "s", "offset": -1}, "params.offset"),
    ("session.read", {"id": "s", "length": "1"}, "params.length"),
    ("session.read", {"id": "s", "maxBytes": 1.5}, "params.maxBytes"),
    ("session.messages", {"id": "s", "partial": "yes"}, "params.partial"),
    ("session.stat", {}, "params.id"),
    ("session.stat", {"id": None}, "params.id"),
    ("session.list", {"limit": 0}, "params.limit"),
    ("session.list", {"limit": "x"}, "params.limit"),
    ("session.list", {"states": ["idle", "asleep"]}, "params.states[1]"),
    ("session.list", {"states": "idle"}, "params.states"),
    ("session.list", {"cursor": "nonsense"}, "params.cursor"),
    ("session.list", {"cursor": "é"}, "params.cursor"),
    ("session.list", {"cursor": "WyJ4Il0="}, "params.cursor"),
    ("session.fork", {"id": "s", "boundary": -1}, "params.boundary"),
    ("session.subscribe", {"id": "s"}, "params.fromSeq"),
    ("session.unsubscribe", {}, "params.subscriptionId"),
    ("checkpoint.request", {**WRITTEN, "events": 7}, "params.events"),
    ("checkpoint.tool", {**TOOL, "arguments": {}}, "params.arguments"),
    ("checkpoint.tool", {**TOOL, "time": "now"}, "params.time"),
    ("checkpoint.tool", WRITTEN, "params.callId"),
    ("checkpoint.turnEnd", WRITTEN, "params.reason"),
    ("checkpoint.turnEnd", {**WRITTEN, "reason": "completed"}, "params.reason"),
    ("daemon.status", {"verbose": True}, "params.verbose"),
    ("rpc.discover", {"x": 1}, "params.x"),
]


@pytest.mark.parametrize(
    ("method", "params", "path"), BAD, ids=[f"{n}-{b[0]}-{b[2]}" for n, b in enumerate(BAD)]
)
def test_the_error_names_the_path(
    connection: Connection, method: str, params: dict[str, Any], path: str
) -> None:
    refused = connection.refusal(method, **params)
    assert refused.kind == "INVALID_PARAMS"
    assert refused.error["code"] == -32602
    assert refused.facts["path"] == path
    assert refused.facts["retryable"] is False
    assert path in refused.error["message"]
    assert len(refused.error["message"]) < 500


def test_a_refused_create_takes_no_id(connection: Connection) -> None:
    assert connection.refusal("session.stat", id="x").kind == "SESSION_NOT_FOUND"


def test_null_is_the_same_as_absent(connection: Connection, fresh_id: FreshId) -> None:
    name = fresh_id()
    created = connection.call("session.create", id=name, cwd=None, origin=None, seedLength=None)
    assert "cwd" not in created["session"]["header"]


def test_integral_numbers_are_integers_however_they_are_written(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    assert recorder.append(events.turn_start(), expectedSeq=0.0)["nextSeq"] == 1
    assert (
        connection.call("session.read", id=recorder.id, offset=0.0, length=1e0)["nextOffset"] == 1
    )


@pytest.mark.parametrize("name", ["", "x" * 256, "😀" * 100, "é" * 60, "\ud800", "a\udfffb"])
def test_an_id_that_names_no_folder_is_invalid(connection: Connection, name: str) -> None:
    refused = connection.refusal("session.create", id=name)
    assert (refused.kind, refused.error["code"]) == ("ID_INVALID", 1004)
    assert len(refused.error["message"]) < 500
    for method, more in (("session.stat", {}), ("session.open", {"access": "write"})):
        found = connection.refusal(method, id=name, **more)
        assert found.kind in {"ID_INVALID", "SESSION_NOT_FOUND"}


@pytest.mark.parametrize("name", ["", "x" * 256, "😀" * 100])
def test_a_fork_needs_an_id_that_names_a_folder(
    connection: Connection, fresh_id: FreshId, name: str
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(events.title())
    refused = connection.refusal("session.fork", id=recorder.id, newId=name)
    assert refused.kind == "ID_INVALID"


@pytest.mark.parametrize(
    "name",
    [
        "x" * 250, ".", "..", "../../up", "/etc/x", "a/b", "a\\b", "a b", "~", "-rf", "*", "\n",
        "a\0b", "é", "e\u0301", "😀" * 9, "CON", "A", "a", "session.lock", "\u2028", "_no-cwd",
        "--x--", "\u202e", "%2e", "~002F",
    ],
)  # fmt: skip
def test_any_other_text_is_an_id_of_its_own_below_the_root(
    daemon: DaemonProcess, connection: Connection, name: str
) -> None:
    around = daemon.root.parents[2]  # this daemon's alone, far above its root
    before = _paths(around)
    recorder = Recorder(connection, name, cwd="/../odd/./~ cwd\n")
    recorder.append(events.title(name[:9]))
    recorder.call("session.close")
    made = _paths(around) - before
    (log,) = [path for path in made if path.name == "session.jsonl.zstd"]
    assert log.parent.parent.parent == daemon.root
    assert {path.parent for path in made} <= {daemon.root, log.parent, log.parent.parent}
    assert connection.call("session.stat", id=name)["session"]["title"] == name[:9]
    assert connection.call("session.read", id=name)["nextOffset"] == 1
    listed = connection.call("session.list", limit=1000)["sessions"]
    assert [one["problem"] for one in listed if one["id"] == name] == [None]


def _paths(folder: Path) -> set[Path]:
    """All that is in a folder, without the files of other tests' sessions: one that ends has some made or removed."""
    return {path for path in folder.rglob("*") if not path.parent.name.startswith("wire-")}
