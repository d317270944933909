from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dsh_protocol.events import Header
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.verify import verify
from storage.samples import HEADER, batch, event, log_of

if TYPE_CHECKING:
    from pathlib import Path


def made(root: Path) -> Path:
    with closing(open_store(root).create(HEADER)) as handle:
        handle.append(batch(0, 3))
        handle.append(batch(3, 1))
    return log_of(root)


def test_a_whole_session_is_found_by_id_by_log_and_by_directory(tmp_path: Path) -> None:
    log = made(tmp_path)
    for target in ("s1", str(log), str(log.parent)):
        report = verify(target, tmp_path)
        assert report.whole
        assert (report.id, report.events, report.frames) == ("s1", 4, 2)
        assert report.path == str(log)
        assert report.good_bytes == report.size_bytes == log.stat().st_size
        assert json.loads(report.to_json())["whole"] is True
        assert "whole" in report.to_text()


def test_a_live_session_is_verified_without_its_lock_and_without_a_trace(tmp_path: Path) -> None:
    with closing(open_store(tmp_path).create(HEADER)) as handle:
        handle.append(batch(0, 1))
        before = sorted(path.name for path in log_of(tmp_path).parent.iterdir())
        assert verify("s1", tmp_path).whole
        assert sorted(path.name for path in log_of(tmp_path).parent.iterdir()) == before
        handle.append(batch(1, 1))


def test_a_torn_tail_is_reported_and_left(tmp_path: Path) -> None:
    log = made(tmp_path)
    size = log.stat().st_size
    with log.open("ab") as file:
        file.write(b"half")
    report = verify("s1", tmp_path)
    assert not report.whole
    assert [(found.kind, found.offset) for found in report.findings] == [("TORN_TAIL", size)]
    assert report.events == 4
    assert log.stat().st_size == size + 4


def test_damage_is_reported_with_what_stands_before_it(tmp_path: Path) -> None:
    log = made(tmp_path)
    with closing(open_store(tmp_path).open("s1", "write")) as handle:
        at = handle.size_bytes
        handle.append(batch(4, 1))
        handle.append(batch(5, 1))
    content = bytearray(log.read_bytes())
    content[at + 8] ^= 0xFF
    log.write_bytes(content)
    report = verify(str(log), tmp_path)
    assert not report.whole
    assert (report.events, report.good_bytes) == (4, at)
    assert [(found.kind, found.offset) for found in report.findings] == [("LOG_CORRUPT", at)]


def test_an_event_that_must_not_be_continued_is_reported(tmp_path: Path) -> None:
    made(tmp_path)
    with closing(open_store(tmp_path).open("s1", "write")) as handle:
        handle.append([event(4, "no/such")])
    report = verify("s1", tmp_path)
    assert [found.kind for found in report.findings] == ["FORMAT_UNSUPPORTED"]


@pytest.mark.parametrize("target", ["nothing", "", "x" * 300, "/nowhere/session.jsonl", "--help"])
def test_what_is_not_there_is_a_finding_and_no_failure(tmp_path: Path, target: str) -> None:
    report = verify(target, tmp_path)
    assert not report.whole
    assert len(report.findings) == 1
    json.loads(report.to_json())


def test_a_file_that_is_no_log_is_not_read(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("secret")
    report = verify(str(other), tmp_path)
    assert [found.kind for found in report.findings] == ["UNSAFE_PATH"]
    assert "secret" not in report.to_json()


def test_escape_codes_in_an_id_never_reach_the_terminal(tmp_path: Path) -> None:
    header = Header(id="a\x1b[31mb\n", created_at=1)
    with closing(open_store(tmp_path).create(header)) as handle:
        handle.flush()
    text = verify("a\x1b[31mb\n", tmp_path).to_text()
    assert "\x1b" not in text
    assert "a\\x1b[31mb\\n" in text
