"""A file that is imported a second time, and an import that was killed: seen, said, and never twice in the list."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import pytest

from cli import foreign
from cli.looking import Dshctl
from dsh_client.cli.context import Context
from dsh_client.cli.importing.files import Import
from dsh_client.cli.importing.known import Known
from dsh_client.cli.importing.meter import Meter
from dsh_client.cli.output import Output, Terminal
from support.daemon import DaemonProcess, open_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARK = "unfinished import of "


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path) as running:
        yield running


@pytest.fixture
def dshctl(daemon: DaemonProcess, capsysbinary: pytest.CaptureFixture[bytes]) -> Dshctl:
    return Dshctl(daemon, capsysbinary)


def imported(dshctl: Dshctl, *words: str) -> list[dict[str, Any]]:
    code = dshctl("-o", "json", "import", "--from", "codex", *words)
    assert code == 0, dshctl.err
    found: list[dict[str, Any]] = json.loads(dshctl.out)["imported"]
    return found


def sessions(daemon: DaemonProcess, **asked: Any) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in daemon.call("session.list", **asked)["sessions"]}


def test_the_same_file_is_imported_once_whatever_its_name(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    one, copy, other = (tmp_path / name for name in ("one", "copy", "other"))
    one.write_bytes(foreign.CODEX_WHOLE)
    copy.write_bytes(foreign.CODEX_WHOLE)
    other.write_bytes(foreign.CODEX_WHOLE + b"\n")
    first, again, differs = imported(dshctl, str(one), str(copy), str(other))
    [name] = (session["id"] for session in first["sessions"])
    assert (again["sessions"], again["already"]) == ([], [name])
    assert len(differs["sessions"]) == 1
    [forced] = imported(dshctl, "--again", str(copy))
    assert (len(forced["sessions"]), forced["already"]) == (1, [])
    assert len(sessions(daemon)) == 3
    labels = sessions(daemon)[name]["labels"]
    assert labels == {"title": None, "archived": True, "pinned": False}
    # It is the digest that counts: continued, forked or no longer archived, it is known.
    daemon.call("session.setLabel", id=name, archived=False, title="mine")
    daemon.call("session.fork", id=name, newId="fork")
    assert dshctl("import", "--from", "codex", str(one)) == 0
    assert "was imported before: " in dshctl.out
    assert name in dshctl.out
    assert "fork" not in dshctl.out
    assert dshctl.out.endswith("add --again\n")
    for session in list(sessions(daemon)):
        if session != "fork":
            daemon.call("session.delete", id=session)
    assert len(imported(dshctl, str(one))[0]["sessions"]) == 1  # what lies in the trash counts not


class KilledError(BaseException):
    """The program is gone: nothing of it runs any more."""


class Killed(Context):
    """Ends before one of its calls, and makes none afterwards."""

    def __init__(self, daemon: DaemonProcess, calls: int) -> None:
        out = Output(io.BytesIO(), io.BytesIO(), "table", Terminal(80))
        super().__init__(out, Namespace(socket=str(daemon.socket), timeout=30.0, no_redact=False))
        self._left = calls

    def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        self._left -= 1
        if self._left < 0:
            raise KilledError
        return super().call(method, params)


def killed_after(daemon: DaemonProcess, path: Path, calls: int) -> bool:
    context = Killed(daemon, calls)
    try:
        Import(context, "codex", str(path), None).run(Meter(), Known(context), again=True)
    except KilledError:
        return True
    finally:
        context.close()
    return False


def test_whatever_call_an_import_is_killed_before_what_it_left_is_known_and_goes(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(foreign.CODEX_WHOLE)
    calls = 0
    while killed_after(daemon, path, calls):
        calls += 1
        while any(one["writer"] or not one["nextSeq"] for one in sessions(daemon).values()):
            time.sleep(0.01)  # until the daemon has noticed, and one that was never written is gone
        for one in sessions(daemon).values():
            read = daemon.call("session.read", id=one["id"], offset=0, length=1)
            [first] = read["events"]
            assert first["data"]["file"] == str(path)
            assert str(one["title"]).startswith(MARK) or one["nextSeq"] == 1
        left = set(sessions(daemon))
        [report] = imported(dshctl, str(path))
        assert set(report["putAway"]) == left
        assert set(sessions(daemon)) == {one["id"] for one in report["sessions"]}
        daemon.call("session.delete", id=report["sessions"][0]["id"])
    assert calls > 5


def long_chat(path: Path) -> None:
    """Several conversations, long enough to be killed amidst the last one."""
    lines = [json.dumps({"messages": [{"role": "user", "content": f"{n}"}]}) for n in range(2)]
    many = [{"role": "user", "content": "x" * 2000} for _ in range(3000)]
    path.write_text("\n".join([*lines, json.dumps({"messages": many})]), "utf-8")


@pytest.mark.slow
def test_what_a_killed_import_left_says_so_and_goes_when_it_is_done_again(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    path = tmp_path / "chat.jsonl"
    long_chat(path)
    words = ["--socket", str(daemon.socket), "import", "--from", "openai", str(path)]
    with subprocess.Popen([sys.executable, "-m", "dsh_client.cli.main", *words]) as importing:
        while len([one for one in sessions(daemon).values() if one["title"]]) < 3:
            assert importing.poll() is None
            time.sleep(0.01)  # until another process has come so far
        importing.send_signal(signal.SIGSTOP)
        busy = dshctl("-o", "json", "import", "--from", "openai", str(path))
        assert busy == 1
        assert "SESSION_BUSY" in json.loads(dshctl.out)["imported"][0]["error"]
        importing.kill()
    left = sessions(daemon)
    assert len(left) == 3
    assert {one["title"] for one in left.values()} == {MARK + "chat.jsonl"}
    assert MARK in dshctl.text("list")
    path.write_bytes(path.read_bytes() + b'\n{"messages": [{"role": "user", "content": "more"}]}')
    assert dshctl("-o", "json", "import", "--from", "openai", str(path)) == 0
    [report] = json.loads(dshctl.out)["imported"]
    assert set(report["putAway"]) == set(left)
    done = sessions(daemon)
    assert set(done) == {one["id"] for one in report["sessions"]}
    assert len(done) == 4
    assert not any(str(one["title"]).startswith(MARK) for one in done.values())
    assert set(left) == set(sessions(daemon, deleted=True))
