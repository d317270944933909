"""What was released stays: logs that an older version wrote, and the two calls that an upgrade needs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from dsh_protocol.version import VERSION
from support import events, turns
from support.daemon import DaemonProcess
from support.rpc import Connection
from support.verdicts import read_all, repairs_due

HERE = Path(__file__).resolve().parent
RELEASED = sorted(HERE.glob("logs-*/*.json"))
FROZEN: dict[str, Any] = json.loads((HERE / "frozen.json").read_text("utf-8"))


def named(path: Path) -> str:
    return f"{path.parent.name} {path.stem}"


def laid_out(expected: Path, base: Path) -> DaemonProcess:
    """A daemon over a private copy of released logs; the names of their folders may be odd."""
    daemon = DaemonProcess(base)
    shutil.copytree(expected.with_suffix(""), daemon.root)
    for folder, _, files in os.walk(daemon.root):
        Path(folder).chmod(0o700)
        for file in files:
            (Path(folder) / file).chmod(0o600)
    return daemon


def test_the_logs_of_this_version_are_kept() -> None:
    assert {path.stem for path in (HERE / f"logs-{VERSION}").glob("*.json")} == {"zstd", "none"}


@pytest.mark.parametrize("released", RELEASED, ids=named)
def test_logs_of_every_released_version_are_read_recovered_and_continued(
    released: Path, tmp_path: Path
) -> None:
    expected = json.loads(released.read_text("utf-8"))
    daemon = laid_out(released, tmp_path)
    try:
        daemon.start()
        with Connection(daemon.socket, name="newer") as one:
            views = {v["id"]: v for v in one.call("session.list", limit=1000)["sessions"]}
            assert set(views) == set(expected)
            for name, session in expected.items():
                assert views[name]["problem"] is None
                assert views[name]["header"] == session["header"]
                assert read_all(one, name) == session["events"]
                assert one.call("session.messages", id=name)["problem"] is None
                continue_session(one, name, session)
    finally:
        daemon.remove()


def continue_session(one: Connection, name: str, session: dict[str, Any]) -> None:
    stored = session["events"]
    opened = one.call("session.open", id=name, access="write")
    handle = {"id": name, "writer": opened["writer"]}
    if opened["recovery"] is not None and not opened["recovery"]["committed"]:
        due = repairs_due(stored, session["header"])
        found = one.call("session.recover", **handle)["repairs"]
        assert [(one["callId"], one["code"], one["idempotencyKey"]) for one in found] == [
            (one["callId"], one["code"], one["idempotencyKey"]) for one in due
        ]
    last = max([0, *(e["data"]["turn"] for e in stored if e["type"] == "turn/start")])
    one.call("session.append", **handle, events=turns.opening(last + 1))
    one.call("session.append", **handle, events=[events.assistant(turn=last + 1)])
    turns.end_turn(one, handle, last + 1)
    one.call("session.close", **handle)
    whole = read_all(one, name)
    assert whole[: len(stored)] == stored
    assert [event["seq"] for event in whole] == list(range(len(whole)))


@pytest.mark.parametrize("method", FROZEN)
def test_what_an_upgrade_calls_is_frozen_for_ever(method: str, tmp_path: Path) -> None:
    frozen = FROZEN[method]
    daemon = DaemonProcess(tmp_path)
    try:
        daemon.start()
        result = daemon.call(method, **frozen["params"])
        assert set(frozen["result"]) <= set(result)
        assert set(frozen.get("server", ())) <= set(result.get("server", ()))
        if method == "daemon.shutdown":
            assert daemon.process.wait(10) == 0, sys.executable
    finally:
        daemon.remove()
