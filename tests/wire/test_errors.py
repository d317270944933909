"""Every kind of error that can be provoked from outside, with its code, its retryability and its facts."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from support import events
from support.daemon import open_daemon
from support.rpc import Connection
from wire.shapes import OPENING, WRITER, Recorder, until_accepted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.daemon import DaemonProcess
    from support.rpc import CallRefusedError

    FreshId = Callable[[], str]

CODES = {
    "PARSE_ERROR": -32700,
    "INVALID_REQUEST": -32600,
    "METHOD_NOT_FOUND": -32601,
    "INVALID_PARAMS": -32602,
    "PROTOCOL_VERSION": 1001,
    "FRAME_TOO_LARGE": 1002,
    "EVENT_INVALID": 1003,
    "ID_INVALID": 1004,
    "SESSION_NOT_FOUND": 2001,
    "SESSION_EXISTS": 2002,
    "SESSION_BUSY": 2003,
    "WRITER_LOST": 2004,
    "SEQ_CONFLICT": 2005,
    "OPEN_TURN": 2006,
    "RECOVERY_REQUIRED": 2007,
    "LOG_CORRUPT": 3001,
    "FORMAT_UNSUPPORTED": 3002,
    "WRITE_FAILED": 3003,
    "NO_SPACE": 3004,
    "LOG_CHANGED": 3006,
    "UNSAFE_PATH": 3008,
    "OVERLOADED": 4002,
    "CANCELLED": -32800,
}
RETRYABLE = {"SESSION_BUSY", "NO_SPACE", "SHUTTING_DOWN", "OVERLOADED"}


def check(refused: CallRefusedError, kind: str, **facts: Any) -> None:
    error = refused.error
    assert set(error) == {"code", "message", "data"}
    assert (error["data"]["kind"], error["code"]) == (kind, CODES[kind])
    assert error["data"]["retryable"] is (kind in RETRYABLE)
    assert "\n" not in error["message"]
    assert error["message"]
    assert {key: error["data"].get(key) for key in facts} == facts


# ---------------------------------------------------------------------- sessions


def test_an_older_protocol_is_refused(connection: Connection) -> None:
    client = {"name": "n", "version": "1"}
    check(connection.refusal("initialize", protocolVersion=0, client=client), "PROTOCOL_VERSION")


@pytest.mark.parametrize(
    "method",
    ["session.open", "session.read", "session.messages", "session.stat", "session.fork"],
)
def test_a_session_that_is_not_there_is_not_found(connection: Connection, method: str) -> None:
    more = {"access": "write"} if method == "session.open" else {}
    check(connection.refusal(method, id="nobody", **more), "SESSION_NOT_FOUND", session="nobody")


def test_subscribing_to_nothing_is_refused(connection: Connection) -> None:
    refused = connection.refusal("session.subscribe", id="nobody", fromSeq=0)
    check(refused, "SESSION_NOT_FOUND")


def test_continuing_a_session_that_was_never_durable_is_not_found(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    with daemon.connect() as other:
        recorder = Recorder(other, fresh_id())
        recorder.call("session.close")
    more = {"continue": {"nextSeq": 3, "writer": recorder.writer}}
    refused = connection.refusal("session.open", id=recorder.id, access="write", **more)
    check(refused, "SESSION_NOT_FOUND")


def test_an_id_is_taken_once(connection: Connection, fresh_id: FreshId) -> None:
    recorder = Recorder(connection, fresh_id())
    check(connection.refusal("session.create", id=recorder.id), "SESSION_EXISTS")
    recorder.call("session.flush")
    recorder.call("session.close")
    check(connection.refusal("session.create", id=recorder.id), "SESSION_EXISTS")
    child = connection.refusal("session.fork", id=recorder.id, newId=recorder.id)
    check(child, "SESSION_EXISTS")


def test_a_second_writer_is_told_who_holds_the_handle(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    with Connection(daemon.socket, name="second") as second:
        for more in ({}, {"takeover": True}):
            refused = second.refusal("session.open", id=recorder.id, access="write", **more)
            check(refused, "SESSION_BUSY")
            holder = refused.facts["holder"]
            assert set(holder) == WRITER
            assert holder["pid"] == os.getpid()
            assert (holder["client"], holder["connected"]) == ("wire", True)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session.append", {"events": []}),
        ("session.flush", {}),
        ("session.recover", {}),
        ("session.close", {}),
        ("checkpoint.request", {}),
        ("checkpoint.tool", {"callId": "a", "name": "t", "arguments": "{}"}),
        ("checkpoint.postStep", {}),
        ("checkpoint.turnEnd", {"reason": {"kind": "completed"}}),
    ],
)
def test_a_writer_that_holds_nothing_is_lost(
    connection: Connection, fresh_id: FreshId, method: str, params: dict[str, Any]
) -> None:
    recorder = Recorder(connection, fresh_id())
    for session in (recorder.id, "nobody"):
        refused = connection.refusal(method, id=session, writer="not-it", **params)
        check(refused, "WRITER_LOST", session=session)
    recorder.call("session.close")
    check(recorder.refusal(method, **params), "WRITER_LOST")


def test_other_events_at_a_seq_conflict_and_say_the_next(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(*OPENING)
    for sent, expected_seq in (
        ([events.turn_start()], 5),
        ([events.turn_start(2)], 0),
        ([*OPENING, events.chunk()], 0),
        ([], 5),
    ):
        refused = recorder.refusal("session.append", events=sent, expectedSeq=expected_seq)
        check(refused, "SEQ_CONFLICT", expected=4, got=expected_seq)
    wrong = recorder.refusal("session.append", events=[{**events.chunk(), "seq": 5}])
    check(wrong, "SEQ_CONFLICT", expected=4, got=5)
    assert recorder.length() == 4


def test_a_fork_inside_a_turn_or_outside_the_log_is_refused(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(*OPENING)
    check(connection.refusal("session.fork", id=recorder.id), "OPEN_TURN")
    check(connection.refusal("session.fork", id=recorder.id, boundary=1), "OPEN_TURN")
    outside = connection.refusal("session.fork", id=recorder.id, boundary=4)
    check(outside, "INVALID_PARAMS", path="params.boundary")


def test_until_recovery_nothing_is_appended(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    with daemon.connect() as other:
        Recorder(other, name).ask("a")
    writer = until_accepted(connection, "session.open", id=name, access="write")["writer"]
    for method, params in (
        ("session.append", {"events": [events.turn_start(2)], "expectedSeq": 77}),
        ("checkpoint.request", {}),
        ("checkpoint.tool", {"callId": "a", "name": "t", "arguments": "{}"}),
        ("checkpoint.postStep", {}),
        ("checkpoint.turnEnd", {"reason": {"kind": "completed"}}),
    ):
        refused = connection.refusal(method, id=name, writer=writer, **params)
        check(refused, "RECOVERY_REQUIRED", session=name)
    flushed = connection.call("session.flush", id=name, writer=writer)
    assert flushed["durableSeq"] == 5
    connection.call("session.recover", id=name, writer=writer)
    appended = connection.call(
        "session.append", id=name, writer=writer, events=[events.turn_start(2)], expectedSeq=9
    )
    assert appended["nextSeq"] == 10


# ---------------------------------------------------------------------- logs


def stored_session(daemon: DaemonProcess, connection: Connection, name: str) -> Path:
    """Make a closed session of two events and return its log."""
    before = set(daemon.root.rglob("session.jsonl.zstd"))
    recorder = Recorder(connection, name)
    recorder.append(events.turn_start(), events.turn_end())
    recorder.call("session.close")
    (path,) = set(daemon.root.rglob("session.jsonl.zstd")) - before
    return path


def test_a_corrupt_log_is_refused_for_writing_and_shown(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    path = stored_session(daemon, connection, name)
    content = bytearray(path.read_bytes())
    content[:4] = b"\0\0\0\0"
    path.write_bytes(content)
    refused = connection.refusal("session.open", id=name, access="write")
    check(refused, "LOG_CORRUPT", path=str(path))
    assert "offset" in refused.facts
    shown = connection.call("session.stat", id=name)["session"]
    assert shown["state"] == "damaged"
    assert shown["problem"]["kind"] == "LOG_CORRUPT"
    listed = connection.call("session.list", limit=1000)["sessions"]
    assert [one["state"] for one in listed if one["id"] == name] == ["damaged"]
    problems = connection.call("daemon.status")["problems"]
    assert any(problem["path"] == str(path) for problem in problems)


def test_a_log_of_a_newer_program_is_refused_for_writing_and_shown(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    folder = stored_session(daemon, connection, name).parent
    (folder / "session.jsonl.zstd").unlink()
    header = {"type": "session", "version": 1, "id": name, "createdAt": 1, "delegationDepth": 0}
    (folder / "session.jsonl").write_text(json.dumps(header) + "\n")
    check(connection.refusal("session.open", id=name, access="write"), "FORMAT_UNSUPPORTED")
    check(connection.refusal("session.messages", id=name), "FORMAT_UNSUPPORTED")
    shown = connection.call("session.stat", id=name)["session"]
    assert (shown["state"], shown["problem"]["kind"]) == ("unsupported", "FORMAT_UNSUPPORTED")


def test_a_link_in_place_of_a_session_is_not_followed(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId, tmp_path: Path
) -> None:
    name = fresh_id()
    folder = stored_session(daemon, connection, name).parent
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    before = sorted((tmp_path / "elsewhere").iterdir())
    check(connection.refusal("session.open", id=name, access="write"), "UNSAFE_PATH")
    check(connection.refusal("session.create", id=name), "UNSAFE_PATH")
    shown = [
        one
        for one in connection.call("session.list", limit=1000)["sessions"]
        if one["problem"] is not None and one["problem"]["kind"] == "UNSAFE_PATH"
    ]
    assert shown
    assert sorted((tmp_path / "elsewhere").iterdir()) == before
    folder.unlink()


def test_a_log_that_another_program_changed_takes_nothing_more(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    before = set(daemon.root.rglob("session.jsonl.zstd"))
    recorder = Recorder(connection, fresh_id())
    recorder.call("checkpoint.request", events=OPENING)
    (path,) = set(daemon.root.rglob("session.jsonl.zstd")) - before
    with path.open("ab") as log:
        log.write(b"glued")
    content = path.read_bytes()
    check(recorder.refusal("checkpoint.request", events=[events.chunk()]), "LOG_CHANGED")
    check(recorder.refusal("session.append", events=[events.chunk()]), "LOG_CHANGED")
    assert path.read_bytes() == content
    assert connection.call("session.read", id=recorder.id, length=4)["events"]
    check(recorder.refusal("session.close"), "LOG_CHANGED")


def test_a_full_disk_is_told_and_the_batch_is_kept(tmp_path: Path) -> None:
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not installed")
    with open_daemon(tmp_path, prefix=("prlimit", "--fsize=65536")) as daemon:
        with daemon.connect() as connection:
            recorder = Recorder(connection, "full")
            recorder.call("checkpoint.request", events=OPENING, expectedSeq=0)
            noise = events.chunk(os.urandom(100_000).hex())
            refused = recorder.refusal("checkpoint.request", events=[noise], expectedSeq=4)
            check(refused, "NO_SPACE", admitted={"firstSeq": 4, "nextSeq": 5})
            assert refused.facts["errno"] > 0
            again = recorder.refusal("checkpoint.request", events=[noise], expectedSeq=4)
            check(again, "NO_SPACE", admitted={"firstSeq": 4, "nextSeq": 5})
            shown = connection.call("session.read", id="full")
            assert (shown["nextOffset"], shown["durableSeq"]) == (5, 4)
            check(recorder.refusal("session.flush"), "NO_SPACE")
            check(recorder.refusal("session.close"), "NO_SPACE")
        daemon.kill()


# ---------------------------------------------------------------------- limits and cancels


def test_limits_are_named(connection: Connection, fresh_id: FreshId) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(*OPENING)
    limits = connection.call("daemon.status")["limits"]
    many = [0] * (limits["maxBatchEvents"] + 1)
    refused = recorder.refusal("session.append", events=many)
    check(refused, "FRAME_TOO_LARGE", limit="maxBatchEvents", maximum=limits["maxBatchEvents"])
    values = [0] * limits["maxValues"]
    refused = recorder.refusal("session.append", events=values)
    check(refused, "FRAME_TOO_LARGE", limit="maxValues", maximum=limits["maxValues"])
    large = events.chunk("x" * limits["maxEventBytes"])
    refused = recorder.refusal("session.append", events=[events.chunk(), large])
    check(refused, "FRAME_TOO_LARGE", limit="maxEventBytes", index=1)
    assert recorder.length() == 4


def test_a_subscription_too_many_is_refused(daemon: DaemonProcess, fresh_id: FreshId) -> None:
    with daemon.connect() as connection:
        recorder = Recorder(connection, fresh_id())
        limit = connection.call("daemon.status")["limits"]["maxSubscriptions"]
        for _ in range(limit):
            connection.call("session.subscribe", id=recorder.id, fromSeq=0)
        refused = connection.refusal("session.subscribe", id=recorder.id, fromSeq=0)
        check(refused, "OVERLOADED", limit="maxSubscriptions", maximum=limit)


def cancel(call_id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": call_id}}


def test_a_cancelled_call_answers_cancelled_and_what_it_admitted_stays(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    request = connection.request(
        "checkpoint.request", id=recorder.id, writer=recorder.writer, events=OPENING
    )
    connection.send_together(request, cancel(request["id"]))
    refused = connection.failure(request["id"])
    check(refused, "CANCELLED")
    admitted = refused.facts.get("admitted")
    assert admitted in (None, {"firstSeq": 0, "nextSeq": 4})
    assert recorder.length() == (0 if admitted is None else 4)
    again = recorder.call("checkpoint.request", events=OPENING, expectedSeq=0)
    assert again == {"nextSeq": 4, "durableSeq": 4}


def test_a_cancelled_tool_checkpoint_never_leaves_a_started_call_without_its_result(
    connection: Connection, fresh_id: FreshId
) -> None:
    for _ in range(10):
        recorder = Recorder(connection, fresh_id())
        recorder.ask("a")
        params = {"callId": "a", "name": "t", "arguments": '{"for":"a"}'}
        request = connection.request(
            "checkpoint.tool", id=recorder.id, writer=recorder.writer, **params
        )
        connection.send_together(request, cancel(request["id"]))
        answer = connection.answer(request["id"])
        if recorder.length() == 5:
            assert answer["error"]["data"]["kind"] == "CANCELLED"
            assert "admitted" not in answer["error"]["data"]
            continue
        result = answer["result"]
        if result["decision"] == "DISPATCH":  # it had been answered when the cancel was read
            continue
        assert result["decision"] == "ABORTED_BEFORE_DISPATCH"
        assert result["result"]["isError"] is True
        assert result["result"]["error"]["info"]["code"] == "ABORTED_BEFORE_DISPATCH"
        again = recorder.start("a", expectedSeq=5)
        assert (again["decision"], again["duplicate"]) == ("ABORTED_BEFORE_DISPATCH", True)


def test_cancelling_what_is_not_there_has_no_effect(connection: Connection) -> None:
    for wanted in (99, "unknown", 1):
        connection.notify("$/cancelRequest", id=wanted)
        connection.notify("$/cancel_request", id=wanted)
        assert connection.call("$/cancelRequest", id=wanted) == {}
    connection.call("session.list")


def test_a_failed_notification_is_told_by_the_next_call(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(*OPENING)
    about = {"id": recorder.id, "writer": recorder.writer}
    connection.notify("session.append", events=[events.chunk("one")], expectedSeq=4, **about)
    connection.notify("session.append", events=[events.turn_start(9)], expectedSeq=5, **about)
    connection.notify("session.append", events=[events.chunk("two")], expectedSeq=5, **about)
    refused = recorder.refusal("session.append", events=[events.chunk("three")])
    check(refused, "EVENT_INVALID", notification=True, nextSeq=5, rule="turn-open")
    assert recorder.length() == 5
    assert recorder.append(events.chunk("two"), expectedSeq=5)["nextSeq"] == 6
    connection.notify("session.append", events=[{"type": "nonsense"}], **about)
    closed = recorder.call("session.close")
    assert closed["notificationError"]["data"]["kind"] == "EVENT_INVALID"
    assert (closed["nextSeq"], closed["durableSeq"]) == (6, 6)


def test_a_closed_handle_ends_the_calls_that_wait_on_it(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.call("session.close")
    check(recorder.refusal("session.close"), "WRITER_LOST")


def test_a_handle_given_to_a_connection_that_is_gone_is_free_again(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    names = [fresh_id() for _ in range(20)]
    for name in names:
        with Connection(daemon.socket) as gone:
            gone.send("session.create", id=name)
            gone.send("session.flush", id=name, writer="?")
    stored = Recorder(connection, fresh_id())
    stored.call("session.flush")
    stored.call("session.close")
    for _ in range(20):
        with Connection(daemon.socket) as gone:
            gone.send("session.open", id=stored.id, access="write")
    until_accepted(connection, "session.open", id=stored.id, access="write")
    for name in names:
        until_accepted(connection, "session.create", id=name)
