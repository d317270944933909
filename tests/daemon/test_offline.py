"""`dshd verify` and `dshd salvage` as a person runs them."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.events import Header
from dshd import main as command
from dshd.storage.jsonl.lock import lock_root
from dshd.storage.jsonl.store import open_store
from support import events
from support.daemon import clean_environ
from support.events import stored

if TYPE_CHECKING:
    from pathlib import Path

GOOD = [events.turn_start(), events.step_start(), events.user(), events.step_end()]


def lay(root: Path, *ids: str, log: list[dict[str, Any]] | None = None) -> None:
    for name in ids:
        with closing(open_store(root).create(Header(id=name, created_at=1))) as handle:
            for event in stored(GOOD if log is None else log):
                handle.append([event])


def log_of(root: Path, name: str) -> Path:
    return root / "_no-cwd" / name / "session.jsonl.zstd"


def damage(path: Path) -> int:
    """Break the second frame of events and return where it begins."""
    data = bytearray(path.read_bytes())
    frames = [at for at in range(len(data)) if data.startswith(b"\x28\xb5\x2f\xfd", at)]
    data[frames[2] + 12] ^= 8
    path.write_bytes(data)
    return frames[2]


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = command.main([str(word) for word in argv])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_a_root_is_verified_session_by_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(tmp_path, "a", "b", "c")
    everything = ("verify", "--root", tmp_path)
    assert run(capsys, *everything) == (0, "3 of 3 sessions are whole\n", "")
    at = damage(log_of(tmp_path, "b"))
    log_of(tmp_path, "c").write_bytes(b"")
    os.symlink("/etc/passwd", tmp_path / "_no-cwd" / "d")  # noqa: PTH211  # the name that tests use
    code, out, _ = run(capsys, *everything)
    assert code == 1
    assert "1 of 4 sessions are whole" in out
    code, out, _ = run(capsys, "verify", tmp_path, "--json")
    found = json.loads(out)
    assert (code, found["whole"], found["count"], found["wholeCount"]) == (1, False, 4, 1)
    told = {
        one["id"]: [(f["kind"], f.get("offset")) for f in one["findings"]]
        for one in found["sessions"]
    }
    assert told["a"] == []
    assert told["b"] == [("LOG_CORRUPT", at)]
    assert told["c"] == [("LOG_CORRUPT", 0)]
    assert [kind for kind, _ in told["d"]] == ["UNSAFE_PATH"]


def test_an_empty_root_is_whole_by_whatever_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.chdir(root)
    for words in (("--root", root), (root, "--root", root), (".", "--root", "."), (".",)):
        assert run(capsys, "verify", *words)[:2] == (0, "0 of 0 sessions are whole\n")
    (root / "dshd.lock").touch()
    (root / ".trash").mkdir()
    assert run(capsys, "verify", ".")[0] == 0


def test_a_root_that_is_not_there_or_no_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "none", tmp_path / "file"):
        code, out, err = run(capsys, "verify", "--root", root)
        assert (code, out) == (78, "")
        assert str(root) in err
        assert "$DSHD_ROOT" in err
    monkeypatch.setenv("DSHD_ROOT", str(tmp_path / "none"))
    assert run(capsys, "verify", "--json")[:2] == (78, "")
    assert not (tmp_path / "none").exists()


def test_a_folder_of_a_project_is_verified_session_by_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    lay(root, "a", "b")
    with closing(open_store(root).create(Header(id="c", created_at=1, cwd="/w"))) as handle:
        handle.append(stored(GOOD))
    damage(log_of(root, "b"))
    (root / "_no-cwd" / "no id").mkdir()
    (tmp_path / "link").symlink_to(root / "_no-cwd")
    for there, target in (
        (tmp_path, root / "_no-cwd"),
        (root / "_no-cwd", "."),
        (tmp_path, "link"),
    ):
        monkeypatch.chdir(there)
        code, out, _ = run(capsys, "verify", target)
        assert code == 1
        assert "1 of 2 sessions are whole" in out
        assert "no id" in out
    monkeypatch.chdir(root / "--w--")
    assert run(capsys, "verify", ".")[:2] == (0, "1 of 1 sessions are whole\n")
    assert json.loads(run(capsys, "verify", "..", "--json")[1])["count"] == 3
    monkeypatch.chdir(root / "_no-cwd" / "a")
    assert run(capsys, "verify", ".")[0] == 0


def test_a_session_that_stands_in_two_projects_is_found_from_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(tmp_path, "a")
    shutil.copytree(tmp_path / "_no-cwd", tmp_path / "--w--")
    for name in ("_no-cwd", "--w--"):
        assert run(capsys, "verify", tmp_path / name)[0] == 1


@pytest.mark.parametrize("how", ["absolute", "relative", "dot"])
def test_a_folder_that_holds_no_sessions_is_refused_and_not_passed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    lay(tmp_path / "root", "a")
    for place in ("etc", "root/_no-cwd/empty", "root/_no-cwd/odd", "root/.trash"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        if folder.name != "empty":
            (folder / "session.jsonl.bak").touch()
        monkeypatch.chdir(folder if how == "dot" else folder.parent)
        target = {"absolute": folder, "relative": folder.name, "dot": "."}[how]
        code, out, _ = run(capsys, "verify", target, "--root", tmp_path / "root")
        assert code == 4
        assert "nothing in it was looked at" in out
        told = json.loads(run(capsys, "verify", target, "--root", tmp_path / "root", "--json")[1])
        assert told["whole"] is False
        folder.rename(tmp_path / f"seen-{folder.name}")


def test_a_project_that_cannot_be_looked_into_is_told_and_not_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(tmp_path, "a")
    (tmp_path / "--closed--").symlink_to(tmp_path / "_no-cwd")
    code, out, _ = run(capsys, "verify", "--root", tmp_path)
    assert (code, out.endswith("\n1 of 1 sessions are whole\n")) == (1, True)
    assert "--closed--: not looked into" in out
    found = json.loads(run(capsys, "verify", "--root", tmp_path, "--json")[1])
    assert (found["whole"], found["closed"]) == (False, [str(tmp_path / "--closed--")])


@pytest.mark.parametrize(
    "name", ["a/b", "/a", "a/", "..", ".", "./a", "x" * 80 + "/", "etc", "a.txt"]
)
def test_an_id_is_found_though_it_looks_like_a_path(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    lay(tmp_path / "root", name)
    beside = tmp_path / "beside" / "deep"
    (beside / "etc").mkdir(parents=True)
    for place in (beside, beside.parent, beside / "etc"):
        (place / "a.txt").touch()
    monkeypatch.chdir(beside)
    code, out, _ = run(capsys, "verify", "--json", "--root", tmp_path / "root", name)
    assert (code, json.loads(out)["id"]) == (0, name)
    words = ("salvage", "--json", "--root", tmp_path / "root", "--to", tmp_path / "to", name)
    assert json.loads(run(capsys, *words)[1])["id"] == name


def test_what_is_not_there_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay(tmp_path, "a")
    for target in ("nobody", tmp_path / "x" / "session.jsonl"):
        code, out, _ = run(capsys, "verify", target, "--root", tmp_path)
        assert (code, "SESSION_NOT_FOUND" in out) == (4, True)
        code, out, err = run(capsys, "salvage", target, "--root", tmp_path, "--to", tmp_path / "to")
        assert (code, out) == (4, "")
        assert err


def test_a_surface_that_does_not_fold_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = events.user("odd", surfaceOp={"op": "replace", "start": 1, "end": 1}, sourceEventSeqs=[1])
    lay(tmp_path, "a", log=[events.turn_start(), events.step_start(), odd])
    code, out, _ = run(capsys, "verify", "a", "--root", tmp_path)
    assert code == 1
    assert "replace-start-missing" in out


def test_what_was_acknowledged_and_is_gone_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dshd.storage.store import Snapshot  # noqa: PLC0415  # only this test keeps one

    lay(tmp_path, "a")
    with closing(open_store(tmp_path).open("a", "write")) as handle:
        assert handle.keep(Snapshot(len(GOOD), b"", b""))
    data = log_of(tmp_path, "a").read_bytes()
    frames = [at for at in range(len(data)) if data.startswith(b"\x28\xb5\x2f\xfd", at)]
    log_of(tmp_path, "a").write_bytes(data[: frames[-1]])  # a whole frame less: nothing is torn
    code, out, _ = run(capsys, "verify", "a", "--root", tmp_path)
    assert code == 1
    assert "shorter than acknowledged" in out


def test_progress_goes_to_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    lay(tmp_path, "a", "b")
    words = [sys.executable, "-m", "dshd.main", "verify", "--root", str(tmp_path)]
    ours, theirs = pty.openpty()
    ended = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=theirs, env=clean_environ(tmp_path), check=False
    )
    os.close(theirs)
    shown = os.read(ours, 4096)
    os.close(ours)
    assert (ended.returncode, ended.stdout) == (0, b"2 of 2 sessions are whole\n")
    assert b"session 1 of 2" in shown
    assert shown.endswith(b"\r")


def test_salvage_says_what_it_left_out_and_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, to = tmp_path / "root", tmp_path / "to"
    lay(root, "a", "b")
    at = damage(log_of(root, "a"))
    code, out, _ = run(capsys, "salvage", "a", "--root", root, "--to", to)
    assert code == 1
    assert f"left out: bytes {at} to " in out
    assert "3 events of" in out
    assert run(capsys, "verify", "--root", to)[0] == 0
    code, out, _ = run(capsys, "salvage", "b", "--root", root, "--to", to, "--json")
    found = json.loads(out)
    assert (code, found["whole"], found["events"], found["newId"]) == (0, True, 4, "b")
    again = run(capsys, "salvage", "b", "--root", root, "--to", to)
    assert again[0] == 5
    assert "exists" in again[2]


def test_salvage_into_the_root_itself_needs_it_for_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(tmp_path, "a")
    damage(log_of(tmp_path, "a"))
    with closing(lock_root(tmp_path, socket="/s", since=1)):
        for more in ((), ("--to", tmp_path)):
            code, _, err = run(capsys, "salvage", "a", "--root", tmp_path, *more)
            assert (code, "is held by" in err) == (78, True)
        assert run(capsys, "verify", "a", "--root", tmp_path)[0] == 1, "looking needs no lock"
    code, out, _ = run(capsys, "salvage", "a", "--root", tmp_path, "--json")
    made = json.loads(out)["newId"]
    assert code == 1
    assert made != "a"
    assert run(capsys, "verify", made, "--root", tmp_path)[0] == 0
