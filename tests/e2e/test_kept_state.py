"""What the daemon keeps beside a log, when, and what a later daemon makes of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from support import events, turns

if TYPE_CHECKING:
    from pathlib import Path

    from support.daemon import DaemonProcess


def derived_of(daemon: DaemonProcess, session_id: str) -> Path:
    return daemon.root / "--w--" / session_id / "derived.bin"


def wait_until(holds: Any, limit_s: float = 10) -> None:
    until = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.05)


def view(daemon: DaemonProcess, session_id: str) -> dict[str, Any]:
    with daemon.connect() as connection:
        listed: list[dict[str, Any]] = connection.call("session.list")["sessions"]
    (found,) = [one for one in listed if one["id"] == session_id]
    return found


def test_a_closed_session_is_level_and_a_later_daemon_lists_its_state_from_there(
    daemon: DaemonProcess,
) -> None:
    with daemon.connect() as connection:
        next_seq = turns.write_session(connection, "s")
        assert derived_of(daemon, "s").exists(), "close comes after it"
        before = connection.call("session.stat", id="s")["session"]
    daemon.stop()
    daemon.start()
    found = view(daemon, "s")
    shown = ("state", "nextSeq", "turns", "openTurn", "title", "revision", "sizeBytes")
    assert {key: found[key] for key in shown} == {key: before[key] for key in shown}
    assert (found["state"], found["nextSeq"]) == ("idle", next_seq)


def test_a_session_that_rests_is_kept_and_one_that_is_killed_resumes_from_there(
    daemon: DaemonProcess,
) -> None:
    with daemon.connect() as connection:
        handle = turns.begin_turn(connection, "s", "x", "y")
        wait_until(derived_of(daemon, "s").exists)
        kept = derived_of(daemon, "s").read_bytes()
        connection.call("checkpoint.tool", **handle, **turns.tool("x"), expectedSeq=5)
        daemon.kill()
    assert derived_of(daemon, "s").read_bytes() == kept, "an append waits for nothing of it"
    daemon.start()
    with daemon.connect() as connection:
        opened = connection.call("session.open", id="s", access="write", takeover=True)
        codes = {one["callId"]: one["code"] for one in opened["recovery"]["repairs"]}
        assert codes == {"x": "TOOL_OUTCOME_UNKNOWN", "y": "TOOL_NOT_STARTED"}
        handle = {"id": "s", "writer": opened["writer"]}
        recovered = connection.call("session.recover", **handle)
        assert recovered["nextSeq"] == opened["recovery"]["nextSeq"]
        begun = [events.turn_start(2)]
        connection.call("session.append", **handle, events=begun, expectedSeq=recovered["nextSeq"])
        connection.call("session.flush", **handle)


def test_a_log_that_lost_what_was_acknowledged_is_damaged_and_disturbs_no_other(
    daemon: DaemonProcess,
) -> None:
    with daemon.connect() as connection:
        turns.write_session(connection, "good")
        turns.write_session(connection, "bad")
    log = derived_of(daemon, "bad").with_name("session.jsonl.zstd")
    log.write_bytes(log.read_bytes()[:-3])
    found = view(daemon, "bad")
    assert found["state"] == "damaged"
    assert "shorter than acknowledged" in found["problem"]["message"]
    assert view(daemon, "good")["state"] == "idle"
    with daemon.connect() as connection:
        refused = connection.refusal("session.open", id="bad", access="write")
        assert refused.kind == "LOG_CORRUPT"
        assert refused.facts["path"] == str(log)
        assert 0 < refused.facts["offset"] < log.stat().st_size
        page = connection.call("session.read", id="bad")
        assert page["events"]
        assert page["problem"]["kind"] == "LOG_CORRUPT"
