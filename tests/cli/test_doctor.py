"""`dshctl doctor`: what it finds over a real daemon, over none, and over one of another age."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from cli.looking import Dshctl
from cli.test_ages import STATUS, newer, older
from dsh_client.cli import checks
from dsh_client.cli.main import main
from support.daemon import DaemonProcess, open_daemon
from support.events import turn_start, user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cli.conftest import Ended
    from cli.scripted import ScriptedDaemon

SECRET = "sk-ant-" + "api03-" + "Ab1" * 30


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path_factory.mktemp("doctor")) as running:
        with running.connect() as agent:
            made = agent.call("session.create", id="cut-off")
            handle = {"id": "cut-off", "writer": made["writer"]}
            agent.call("session.append", **handle, events=[turn_start(), user()])
            agent.call("session.flush", **handle)
            agent.call("session.close", **handle)
        for name in ("torn", SECRET):
            folder = running.root / "--fixture--" / name
            folder.mkdir(parents=True, mode=0o700)
            (folder / "session.jsonl").write_bytes(b"no header\n")
        yield running


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in document["checks"]}


def systemctl(folder: Path, script: str) -> str:
    program = folder / "systemctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_every_check_has_a_verdict_and_what_is_not_well_a_next_step(
    real: DaemonProcess,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    shows = 'echo "LoadState=loaded\nActiveState=failed\nUnitFileState=enabled"'
    monkeypatch.setenv("PATH", systemctl(tmp_path, shows))
    monkeypatch.setenv("DSHD_STATE_DIR", str(real.state_dir))
    dshctl = Dshctl(real, capsysbinary)
    assert dshctl("-o", "json", "doctor") == 1
    document = json.loads(dshctl.out)
    assert document.keys() == {
        *("ok", "checks", "client", "server", "socket", "root", "freeBytes", "fsyncMs"),
    }
    found = by_name(document)
    for name in ("daemon", "versions", "socket", "socket's folder", "sessions", "fsync"):
        assert found[name]["status"] in {"ok", "warning"}, found[name]
    assert found["unit dshd.service"] == {
        "name": "unit dshd.service",
        "status": "failure",
        "text": "failed, enabled",
        "try": "journalctl --user -u dshd.service -n 20",
    }
    assert found["session cut-off"]["try"] == "dshctl recover cut-off"
    assert found["session torn"]["status"] == "failure"
    assert found["session torn"]["try"] == "dshd verify torn"
    assert document["freeBytes"] > 0
    assert document["fsyncMs"] > 0
    assert {path.name for path in real.root.iterdir() if path.is_dir()} >= {"--fixture--"}
    assert all(one["try"] for one in document["checks"] if one["status"] == "failure")


def test_what_it_says_can_be_shown_to_others(
    real: DaemonProcess, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    dshctl = Dshctl(real, capsysbinary)
    for form in ("table", "json", "jsonl"):
        dshctl("-o", form, "doctor")
        assert SECRET not in dshctl.out
        assert "hidden" in dshctl.err


def test_it_works_without_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--socket", str(tmp_path / "nowhere"), "doctor"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("FAILURE  daemon: no daemon answers at ")
    assert main(["--socket", str(tmp_path / "nowhere"), "doctor", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert "\n         try: dshd serve, in another terminal" in out


@pytest.mark.parametrize("hello", [newer, older])
def test_a_daemon_of_another_age_is_examined_too(
    daemon: ScriptedDaemon,
    dshctl: Callable[..., Ended],
    hello: Callable[[dict[str, Any]], Any],
) -> None:
    daemon.answers |= {
        "initialize": hello,
        "daemon.status": lambda _: STATUS,
        "session.list": lambda _: {"sessions": [], "nextCursor": None},
    }
    ended = dshctl("doctor", "-o", "json")
    assert ended.code == 1
    assert by_name(ended.document)["versions"]["status"] == "failure"
    assert "9.9.9" in by_name(ended.document)["versions"]["text"]


def test_a_place_that_others_can_get_into_is_told_with_the_command(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    found = checks.place("sessions", str(tmp_path))
    assert (found.status, found.remedy) == ("warning", f"chmod 700 {tmp_path}")
    assert checks.place("socket", str(tmp_path), socket=True).status == "failure"
    assert checks.place("socket", str(tmp_path / "none")).remedy == "dshd serve"


def test_units_that_cannot_be_asked_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", systemctl(tmp_path, "exit 1"))
    assert [one.status for one in checks.units()] == ["unknown"]
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert [one.text for one in checks.units()] == ["systemctl is not there"]
    monkeypatch.setenv("PATH", systemctl(tmp_path, "echo LoadState=not-found"))
    assert [one.remedy for one in checks.units()] == ["dshd install --now"] * 2


def test_a_disk_that_cannot_be_measured_is_said(tmp_path: Path) -> None:
    assert checks.flushing(str(tmp_path / "none"))[0].status == "unknown"
    assert checks.room(str(tmp_path / "none"))[1] is None
