"""A session out as a bundle and in again: the same bytes, all or nothing, never over another."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from cli.looking import CRASHED, OPEN, Dshctl, place_logs
from dsh_protocol.errors import FormatUnsupportedError, LogCorruptError, SessionNotFoundError
from dshd.offline import new_judge
from dshd.storage.jsonl.restore import restore
from dshd.storage.jsonl.verify import Looker
from support.daemon import DaemonProcess, open_daemon
from support.events import turn_end, turn_start, user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "ghp_" + "Ab1Cd2Ef3G" * 4


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path_factory.mktemp("bundle")) as running:
        with running.connect() as agent:
            made = agent.call("session.create", id="mine", cwd="/w")
            handle = {"id": "mine", "writer": made["writer"]}
            said = [turn_start(), user(f"the key is {SECRET}"), turn_end()]
            agent.call("session.append", **handle, events=said)
            agent.call("session.close", **handle)
            agent.call("session.setLabel", id="mine", title="kept", pinned=True)
        yield running


@pytest.fixture
def dshctl(daemon: DaemonProcess, capfdbinary: pytest.CaptureFixture[bytes]) -> Dshctl:
    return Dshctl(daemon, capfdbinary)


def logs_of(daemon: DaemonProcess, session_id: str) -> list[bytes]:
    return [path.read_bytes() for path in daemon.root.glob(f"*/{session_id}/session.jsonl")]


def test_a_session_comes_back_with_its_events_header_and_labels(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    path = tmp_path / "mine.tar"
    dshctl.text("--no-redact", "export", "mine", "--to", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    before = daemon.call("session.stat", id="mine")["session"]
    assert dshctl("import", str(path)) == 5
    assert dshctl.err.endswith(f"try: dshctl import {path} --as ID\n")
    assert "exists" in dshctl.err
    dshctl.text("rm", "mine", "--yes")
    [told] = dshctl.document("import", str(path))["imported"]
    assert (told["id"], told["events"], told["redacted"]) == ("mine", 3, 0)
    after = daemon.call("session.stat", id="mine")["session"]
    assert after["header"] == before["header"]
    assert after["labels"] == before["labels"]
    with tarfile.open(path) as bundle:
        log = bundle.extractfile("session.jsonl")
        assert log is not None
        assert logs_of(daemon, "mine") == [log.read()]


def test_it_can_be_taken_in_beside_the_one_it_came_from(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    path = str(tmp_path / "mine.tar")
    dshctl.text("export", "mine", "--to", path)
    assert "likely secrets are hidden" in dshctl.err
    assert "secrets were hidden in it" in dshctl.text("import", path, "--as", "again")
    read = daemon.call("session.read", id="again")["events"]
    assert len(read) == 3
    assert SECRET not in json.dumps(read)


def test_recovered_and_interrupted_sessions_come_back_byte_for_byte(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    place_logs(daemon, (CRASHED, OPEN))
    for name in (CRASHED, OPEN):
        path = str(tmp_path / f"{name}.tar")
        before = logs_of(daemon, name)
        dshctl.text("--no-redact", "export", name, "--to", path)
        dshctl.text("rm", name, "--yes")
        dshctl.text("import", path)
        assert logs_of(daemon, name) == before
    assert daemon.call("session.stat", id=OPEN)["session"]["state"] == "interrupted"


def _retarred(path: Path, change: dict[str, bytes | None], extra: str = "") -> None:
    with tarfile.open(path) as bundle:
        parts = {
            member.name: (bundle.extractfile(member) or io.BytesIO()).read()
            for member in bundle.getmembers()
        }
    with tarfile.open(path, "w") as bundle:
        for name, data in {**parts, **change, **({extra: b"x"} if extra else {})}.items():
            if data is not None:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                bundle.addfile(entry, io.BytesIO(data))


def test_what_is_not_the_whole_bundle_makes_nothing(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    path = tmp_path / "mine.tar"
    dshctl.text("--no-redact", "export", "mine", "--to", str(path))
    whole = path.read_bytes()
    before = {one["id"] for one in daemon.call("session.list")["sessions"]}
    manifest = b'{"kind":"dshd-bundle","version":1,"id":"x","events":1,"files":{}}'
    newer = json.dumps(
        {"kind": "dshd-bundle", "version": 2, "id": "x", "events": 1}
        | {"files": {"session.jsonl": {"bytes": 1, "sha256": ""}}}
    ).encode()
    for change, extra, said in (
        ({"session.jsonl": b"other\n"}, "", "checksum"),
        ({"session.jsonl": None}, "", "session.jsonl is not where"),
        ({"manifest.json": b"{}"}, "", "manifest cannot be read"),
        ({"manifest.json": manifest}, "", "not that of a bundle"),
        ({"manifest.json": newer}, "", "of version 2"),
        ({}, "../../escaped", "there is more in it"),
    ):
        path.write_bytes(whole)
        _retarred(path, dict(change), extra)
        with pytest.raises((LogCorruptError, FormatUnsupportedError), match=said):
            restore(path, daemon.root, "never", Looker(new_judge))
    for cut in (0, 100, 700, len(whole) // 2):
        path.write_bytes(whole[:cut])
        with pytest.raises(LogCorruptError):
            restore(path, daemon.root, "never", Looker(new_judge))
    assert dshctl("import", str(path)) == 1
    assert "it is no bundle" in dshctl.err
    assert dshctl.err.endswith("try: dshctl import --help (what is no bundle needs --from)\n")
    with pytest.raises(SessionNotFoundError):
        restore(tmp_path / "missing", daemon.root, None, Looker(new_judge))
    assert {one["id"] for one in daemon.call("session.list")["sessions"]} == before
    assert not list(daemon.root.glob("**/never"))


def test_what_refuses_a_bundle_speaks_as_the_program_that_was_run(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    path, other = tmp_path / "mine.tar", tmp_path / "other"
    dshctl.text("export", "mine", "--to", str(path))
    before = daemon.call("session.list")["sessions"]
    other.write_bytes(b"no tar")
    for words, code in (
        ((path,), 5),
        ((path, "--as", "mine"), 5),
        ((path, "--as", "x" * 300), 2),
        ((path, "--as", ""), 2),
        ((other,), 1),
        ((tmp_path / "none",), 4),
        ((tmp_path,), 1),
    ):
        assert dshctl("import", *map(str, words)) == code, words
        first, *_, last = dshctl.err.splitlines()
        assert first.startswith("dshctl: ")
        assert last.startswith("try: dshctl import ")
        assert "--id" not in dshctl.err
    assert daemon.call("session.list")["sessions"] == before


def test_a_damaged_session_and_a_screen_get_no_bundle(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    folder = daemon.root / "--fixture--" / "torn"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "session.jsonl").write_bytes(b"no header\n")
    path = tmp_path / "torn.tar"
    assert dshctl("export", "torn", "--to", str(path)) == 1
    assert "a bundle holds a whole session" in dshctl.err
    assert not path.exists()
    assert dshctl("export", "mine", "--format", "bundle") == 2
