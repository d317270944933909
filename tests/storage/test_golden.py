"""The store against logs that the format's own program wrote."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from dsh_protocol.errors import LogCorruptError
from dshd.storage.jsonl.frames import decode_frame, frames
from dshd.storage.jsonl.layout import decode_segment
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.vocabulary import parse_header
from support.logs import sha256
from support.vectors import vectors

if TYPE_CHECKING:
    from pathlib import Path


def loaded(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_every_sample_log_reads_as_its_recorded_events(tmp_path: Path) -> None:
    manifest = loaded(vectors() / "logs" / "manifest.json")
    place = tmp_path / "--fixture--" / "s" / "session.jsonl"
    place.parent.mkdir(parents=True)
    store = open_store(tmp_path)
    for log in manifest["logs"]:
        shutil.copy(vectors() / "logs" / log["file"], place)
        handle = store.open("s", "read")
        if log["reason"] == "seq-gap":
            with pytest.raises(LogCorruptError, match="seq gap"):
                list(handle.read())
        else:
            events = list(handle.read())
            assert len(events) == log["stored_events"] == handle.next_seq, log["file"]
            assert sha256(events) == log["stored_events_sha256"], log["file"]
        handle.close()


def containers() -> list[dict[str, Any]]:
    folder = vectors() / "zstd"
    return [loaded(path) | {"folder": path.parent} for path in folder.glob("*/expected.json")]


def test_every_recorded_container_reads_as_its_recorded_events(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for case in containers():
        place = tmp_path / case["path"]
        place.parent.mkdir(parents=True)
        shutil.copy(case["folder"] / case["file"], place)
        segment = place.parent.name
        assert decode_segment(segment) == case["session_id"]
        handle = store.open(case["session_id"], "read")
        events = list(handle.read())
        assert len(events) == case["stored_events"], case["name"]
        assert sha256(events) == case["stored_events_sha256"], case["name"]
        middle = len(events) // 2
        assert list(handle.read(middle, 3)) == events[middle : middle + 3]
        handle.close()
    assert all(found.problem is None for found in store.list())
    assert len(list(store.list())) == len(containers())


def test_batches_appended_as_recorded_give_the_recorded_bytes(tmp_path: Path) -> None:
    for case in containers():
        if sum(case.get("append_events", ())) != case["stored_events"]:
            continue  # made by other means than appends alone
        if case["has_non_safe_integer_numbers"]:
            continue
        if any("\ud800" <= c <= "\udfff" for c in case["session_id"]):
            continue  # such an id is read, and refused when a session is created
        again = tmp_path / "again" / case["name"]
        recorded = tmp_path / "recorded" / case["name"]
        place = recorded / case["path"]
        place.parent.mkdir(parents=True)
        shutil.copy(case["folder"] / case["file"], place)
        old = open_store(recorded).open(case["session_id"], "read")
        store = open_store(
            again, compression=case["compression"], pack_chunks=case.get("pack_chunks", True)
        )
        handle = store.create(old.header)
        at = 0
        for count, end in zip(case["append_events"], case["append_ends"], strict=True):
            handle.append(list(old.read(at, count)))
            at += count
            assert same_library() is False or handle.size_bytes == end, case["name"]
        handle.close()
        old.close()
        written = (again / case["path"]).read_bytes()
        assert plain(written, case) == plain(place.read_bytes(), case), case["name"]
        if same_library():
            assert written == place.read_bytes(), case["name"]


def same_library() -> bool:
    return zstandard.ZSTD_VERSION == (1, 5, 7)


def plain(content: bytes, case: dict[str, Any]) -> list[bytes]:
    if case["compression"] == "none":
        return [content]

    def pread(size: int, offset: int) -> bytes:
        return content[offset : offset + size]

    return [decode_frame(frame) for frame in frames(pread, 0, len(content))]


def test_every_recorded_header_line_is_read_as_the_recorded_header() -> None:
    for case in containers():
        header = parse_header(case["header_line"].encode("utf-8", "surrogatepass"), "log")
        assert header.id == case["header"]["id"]
        assert header.created_at == case["header"]["createdAt"]
        assert header.cwd == case["header"].get("cwd")
