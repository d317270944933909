"""A full disk, a folder that cannot be written, a daemon that stands still or is gone: nothing is dispatched."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from dsh_protocol.errors import EXIT_FAILURE
from support import events, turns
from support.daemon import DaemonProcess, open_daemon
from support.disks import TinyDisk, open_immutable, open_read_only, open_tiny_disk
from support.figures import figure
from support.verdicts import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[TinyDisk]:
    with open_tiny_disk(tmp_path / "root") as disk:
        yield disk


@pytest.fixture
def full(tmp_path: Path, disk: TinyDisk) -> Iterator[DaemonProcess]:
    """A daemon whose root lies on a tiny disk."""
    with open_daemon(tmp_path) as daemon:
        yield daemon


def bulky() -> events.Event:
    """A piece of text that no compression gets into the rest of a page."""
    return events.chunk(secrets.token_hex(16 * 1024))


def log_of(daemon: DaemonProcess, session_id: str) -> Path:
    (found,) = daemon.root.glob(f"**/{session_id}/session.jsonl*")
    return found


def test_with_the_disk_full_every_checkpoint_refuses_and_the_session_goes_on_when_space_returns(
    full: DaemonProcess, disk: TinyDisk
) -> None:
    with full.connect() as one, full.connect() as other:
        handle = turns.begin_turn(one, "s", "x", "y")
        turns.write_session(other, "idle")
        size = log_of(full, "s").stat().st_size
        subscribed = other.call("session.subscribe", id="s", fromSeq=5)["subscriptionId"]
        disk.fill()
        piece = bulky()
        refused = one.refusal(
            "checkpoint.tool", **handle, **turns.tool("x"), events=[piece], expectedSeq=5
        )
        assert refused.kind == "NO_SPACE"
        assert refused.facts["retryable"] is True
        assert refused.facts["errno"] == errno.ENOSPC
        assert refused.facts["admitted"] == {"firstSeq": 5, "nextSeq": 7}
        assert refused.facts["result"]["isError"] is True
        assert "s" in refused.error["message"]
        failures = figure(full, "dshd_flush_failures_total")
        for _ in range(2):  # repeated, it makes one attempt and says its own outcome
            again = one.refusal(
                "checkpoint.tool", **handle, **turns.tool("x"), events=[piece], expectedSeq=5
            )
            assert again.kind == "NO_SPACE"
        assert figure(full, "dshd_flush_failures_total") == failures + 2
        assert one.refusal("session.flush", **handle).kind == "NO_SPACE"
        assert log_of(full, "s").stat().st_size == size
        assert len(read_all(other, "idle")) == 7
        listed = other.call("session.list")["sessions"]
        assert {view["id"]: view["state"] for view in listed} == {"s": "active", "idle": "idle"}
        kinds = {problem["kind"] for problem in full.call("daemon.status")["problems"]}
        assert kinds == {"NO_SPACE"}  # of the session, and of the disk itself
        disk.free()
        started = one.call(
            "checkpoint.tool", **handle, **turns.tool("x"), events=[piece], expectedSeq=5
        )
        assert (started["decision"], started["duplicate"]) == ("DISPATCH", True)
        one.call("session.append", **handle, events=[events.tool_result("x")], expectedSeq=7)
        one.call("checkpoint.tool", **handle, **turns.tool("y"))
        one.call("session.append", **handle, events=[events.tool_result("y")])
        turns.end_turn(one, handle)
        stored = read_all(one, "s")
        assert [event["seq"] for event in stored] == list(range(len(stored)))
        assert turns.types(stored)[5:8] == ["assistant/chunk", "tool/call", "tool/result"]
        seen: list[int] = []
        while len(seen) < len(stored) - 5:
            told = other.notification()["params"]
            assert told["subscriptionId"] == subscribed
            seen += [event["seq"] for event in told["events"]]
        assert seen == list(range(5, len(stored)))


def test_the_timer_stays_quiet_after_a_failure_and_the_failed_batch_stays_in_front(
    full: DaemonProcess, disk: TinyDisk
) -> None:
    with full.connect() as one:
        handle = turns.begin_turn(one, "s")
        disk.fill()
        one.call("session.append", **handle, events=[bulky()], expectedSeq=4)
        while figure(full, "dshd_flush_failures_total") == 0:
            pass
        for seq in range(5, 25):
            one.call("session.append", **handle, events=[events.chunk()], expectedSeq=seq)
        one.socket.settimeout(0.7)  # longer than the batch window, thrice
        with pytest.raises(TimeoutError):
            one.read_message()
        one.socket.settimeout(20)
        assert figure(full, "dshd_flush_failures_total") == 1
        assert len(read_all(one, "s")) == 25, "what is admitted is read"
        disk.free()
        flushed = one.call("session.flush", **handle)
        assert flushed == {"nextSeq": 25, "durableSeq": 25}


def test_a_close_over_a_full_disk_says_so_and_keeps_the_events_for_the_next_holder(
    full: DaemonProcess, disk: TinyDisk
) -> None:
    with full.connect() as one:
        handle = turns.begin_turn(one, "s")
        disk.fill()
        one.call("session.append", **handle, events=[bulky()], expectedSeq=4)
        assert one.refusal("session.close", **handle).kind == "NO_SPACE"
        assert one.refusal("session.append", **handle, events=[]).kind == "WRITER_LOST"
        with full.connect() as other:
            assert len(read_all(other, "s")) == 5
            wanted = {"id": "s", "access": "write"}
            assert other.refusal("session.open", **wanted).kind == "NO_SPACE"
            assert other.refusal("session.open", **wanted).kind == "NO_SPACE"
            disk.free()
            opened = other.call("session.open", **wanted)
            assert opened["session"]["durableSeq"] == 5
            assert len(opened["recovery"]["closers"]) == 2
            recovered = other.call("session.recover", id="s", writer=opened["writer"])
            assert recovered["nextSeq"] == 8
            assert turns.types(read_all(other, "s"))[4:] == [
                "assistant/chunk",
                "step/end",
                "turn/end",
                "session/end-seed",
            ]


def test_a_recovery_over_a_full_disk_keeps_its_closers_and_a_retry_adds_nothing(
    full: DaemonProcess, disk: TinyDisk
) -> None:
    calls = [f"{n}-{secrets.token_hex(40)}" for n in range(40)]
    with full.connect() as one:
        handle = turns.begin_turn(one, "s", *calls)
        one.call("session.close", **handle)
        opened = one.call("session.open", id="s", access="write")
        handle["writer"] = opened["writer"]
        disk.fill()
        assert one.refusal("session.recover", **handle).kind == "NO_SPACE"
        assert one.refusal("session.recover", **handle).kind == "NO_SPACE"
        disk.free()
        recovered = one.call("session.recover", **handle)
        assert recovered == opened["recovery"] | {"committed": True}
        assert recovered == one.call("session.recover", **handle)
        stored = read_all(one, "s")
        assert len(stored) == recovered["nextSeq"] == 5 + 40 + 3


def test_a_session_that_begins_on_a_full_disk_begins_when_there_is_space(
    full: DaemonProcess, disk: TinyDisk
) -> None:
    disk.fill()
    with full.connect() as one:
        made = one.call("session.create", id="s", cwd="/w")
        handle = {"id": "s", "writer": made["writer"]}
        refused = one.refusal("checkpoint.request", **handle, events=turns.opening(), expectedSeq=0)
        assert refused.kind == "NO_SPACE"
        assert refused.facts["admitted"] == {"firstSeq": 0, "nextSeq": 4}
        assert [path.name for path in disk.path.rglob("*.tmp")] == []
        disk.free()
        done = one.call("checkpoint.request", **handle, events=turns.opening(), expectedSeq=0)
        assert done == {"nextSeq": 4, "durableSeq": 4}


def test_pending_events_are_bounded_and_then_appends_answer_the_failure(
    full: DaemonProcess, disk: TinyDisk
) -> None:
    limit = full.call("daemon.status")["limits"]["maxPendingBytes"]
    with full.connect() as one:
        handle = turns.begin_turn(one, "s")
        disk.fill()
        text = "x" * (2 * 1024 * 1024)
        noise = secrets.token_hex(128 * 1024)
        sent = 0
        while True:
            answer = one.answer(
                one.send("session.append", **handle, events=[events.chunk(noise + text)])
            )
            if "error" in answer:
                break
            sent += len(text) + len(noise)
            assert sent <= limit
        assert answer["error"]["data"]["kind"] == "NO_SPACE"
        assert sent > limit // 2


def test_with_the_log_read_only_nothing_is_dispatched_and_other_sessions_go_on(
    daemon: DaemonProcess,
) -> None:
    with daemon.connect() as one, daemon.connect() as other:
        handle = turns.begin_turn(one, "s", "x")
        with open_immutable(log_of(daemon, "s")):
            turns.write_session(other, "unaffected")
            refused = one.refusal("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
            assert refused.kind == "WRITE_FAILED"
            assert refused.facts["errno"] == errno.EPERM
            assert str(log_of(daemon, "s")) in refused.error["message"]
        started = one.call("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
        assert (started["decision"], started["durableSeq"]) == ("DISPATCH", 6)


@pytest.mark.parametrize("how", ["immutable", "mounted read-only"])
def test_with_the_folder_read_only_no_session_begins_and_the_error_says_why(
    daemon: DaemonProcess, how: str
) -> None:
    with daemon.connect() as one:
        turns.write_session(one, "before")
        folder = log_of(daemon, "before").parents[1]
        blocked = open_immutable(folder) if how == "immutable" else open_read_only(folder)
        made = one.call("session.create", id="s", cwd="/w")
        handle = {"id": "s", "writer": made["writer"]}
        asked = {**handle, "events": turns.opening(), "expectedSeq": 0}
        with blocked:
            refused = one.refusal("checkpoint.request", **asked)
            assert refused.kind == "WRITE_FAILED"
            wanted = errno.EPERM if how == "immutable" else errno.EROFS
            assert refused.facts["errno"] == wanted
            assert len(read_all(one, "before")) == 7
        assert one.call("checkpoint.request", **asked)["durableSeq"] == 4


def test_a_daemon_that_stands_still_answers_nothing_and_loses_nothing_when_it_goes_on(
    daemon: DaemonProcess,
) -> None:
    with daemon.connect() as one:
        handle = turns.begin_turn(one, "s", "x")
        os.kill(daemon.pid, signal.SIGSTOP)
        sent = one.send("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
        one.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            one.answer(sent)
        os.kill(daemon.pid, signal.SIGCONT)
        one.socket.settimeout(20)
        assert one.result(sent)["decision"] == "DISPATCH"  # a late reply, to the call it belongs to
        again = one.call("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
        assert again["duplicate"] is True


def test_a_daemon_that_is_gone_answers_no_checkpoint(daemon: DaemonProcess) -> None:
    with daemon.connect() as one:
        handle = turns.begin_turn(one, "s", "x")
        daemon.kill()
        with pytest.raises((ConnectionRefusedError, BrokenPipeError)):
            one.call("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
        with pytest.raises(ConnectionRefusedError):
            daemon.connect()
        daemon.start()
    with daemon.connect() as one:
        assert turns.types(read_all(one, "s"))[-1] == "assistant/message"


def test_after_a_recovery_that_failed_nothing_is_appended_before_the_repairs_were_told(
    full: DaemonProcess, disk: TinyDisk
) -> None:
    calls = [secrets.token_hex(16) for _ in range(300)]  # whose closers fit into no block's rest
    with full.connect() as one:
        turns.begin_turn(one, "s", *calls)
    with full.connect() as one:
        opened = one.call("session.open", id="s", access="write", takeover=True)
        handle = {"id": "s", "writer": opened["writer"]}
        disk.fill()
        assert one.refusal("session.recover", **handle).kind == "NO_SPACE"
        for _ in range(2):
            refused = one.refusal("session.append", **handle, events=[events.title()])
            assert refused.kind == "RECOVERY_REQUIRED"
            assert (refused.facts["openTurn"], refused.facts["pendingCalls"]) == (1, calls)
        disk.free()
        recovery = one.call("session.recover", **handle)
        assert [repair["callId"] for repair in recovery["repairs"]] == calls
        one.call("session.append", **handle, events=[events.title()])
        stored = turns.types(read_all(one, "s"))
        assert stored.count("turn/end") == stored.count("session/end-seed") == 1


def test_sigterm_over_a_full_disk_ends_in_seconds_and_names_what_was_not_written(
    full: DaemonProcess, disk: TinyDisk
) -> None:
    with full.connect() as one:
        handle = turns.begin_turn(one, "s")
        disk.fill()
        one.call("session.append", **handle, events=[bulky()], expectedSeq=4)
        assert full.stop(limit=8) == EXIT_FAILURE
    lost = [line for line in full.output().split("\n") if "events_lost" in line]
    assert len(lost) == 1
    assert {"session": "s", "first_seq": 4, "next_seq": 5}.items() <= json.loads(lost[0]).items()
    disk.free()
    full.start()
    with full.connect() as one:
        assert len(read_all(one, "s")) == 4


def test_a_log_that_another_program_replaced_is_not_written_and_others_go_on(
    daemon: DaemonProcess,
) -> None:
    with daemon.connect() as one, daemon.connect() as other:
        handle = turns.begin_turn(one, "s", "x")
        log = log_of(daemon, "s")
        log.rename(log.with_suffix(".moved"))
        shutil.copy(log.with_suffix(".moved"), log)
        before = log.read_bytes()
        refused = one.refusal("checkpoint.tool", **handle, **turns.tool("x"))
        assert refused.kind == "LOG_CHANGED"
        assert refused.facts["result"]["isError"] is True
        again = one.refusal("session.append", **handle, events=[events.chunk()])
        assert again.kind == "LOG_CHANGED"
        turns.write_session(other, "unaffected")
        assert log.read_bytes() == before == log.with_suffix(".moved").read_bytes()
        assert one.refusal("session.close", **handle).kind == "LOG_CHANGED"


def test_a_log_that_another_program_extended_is_not_written(daemon: DaemonProcess) -> None:
    with daemon.connect() as one:
        handle = turns.begin_turn(one, "s", "x")
        log = log_of(daemon, "s")
        with log.open("ab") as extended:
            extended.write(b"what is this")
        size = log.stat().st_size
        assert one.refusal("checkpoint.tool", **handle, **turns.tool("x")).kind == "LOG_CHANGED"
        assert log.stat().st_size == size
