from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.errors import (
    DshdError,
    FrameTooLargeError,
    LogChangedError,
    SeqConflictError,
)
from dshd.storage.jsonl.store import open_store
from storage.samples import HEADER, batch, event, log_of, made, read

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_what_is_appended_is_read_back_by_every_handle(
    tmp_path: Path, compression: Compression
) -> None:
    store = open_store(tmp_path, compression=compression)
    handle = store.create(HEADER)
    assert (handle.next_seq, handle.size_bytes, handle.materialised) == (0, 0, False)
    assert list(handle.read()) == []
    for first in range(0, 40, 4):
        handle.append(batch(first, 4))
    assert list(handle.read()) == batch(0, 40)
    assert list(handle.read(17, 5)) == batch(17, 5)
    assert list(handle.read(38, 10)) == batch(38, 2)
    assert list(handle.read(40)) == []
    reader = store.open("s1", "read")
    assert list(reader.read(17, 5)) == batch(17, 5)
    assert reader.next_seq == 40
    handle.append(batch(40, 1))
    assert list(reader.read(39)) == batch(39, 2)
    assert reader.next_seq == 41
    handle.close()
    reader.close()
    again = store.open("s1", "write")
    assert (again.next_seq, again.header) == (41, HEADER)
    assert again.size_bytes == log_of_any(tmp_path).stat().st_size
    again.append(batch(41, 1))
    assert list(again.read(40)) == batch(40, 2)
    again.close()


def log_of_any(root: Path) -> Path:
    return next(path for path in root.rglob("session.jsonl*"))


def test_nothing_is_on_disk_before_the_first_batch_and_nothing_after_closing_without_one(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    handle = open_store(root).create(HEADER)
    handle.close()
    handle.close()
    assert not root.exists()


def test_a_flush_makes_an_empty_session(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    handle = store.create(HEADER)
    handle.flush()
    size = handle.size_bytes
    handle.flush()
    handle.append([])
    assert handle.size_bytes == size == log_of(tmp_path).stat().st_size
    handle.close()
    assert read(store) == []


def test_a_batch_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    handle = open_store(tmp_path).create(HEADER)
    handle.append(batch(0, 2))
    with pytest.raises(SeqConflictError) as caught:
        handle.append(batch(3, 1))
    assert caught.value.facts == {"expected": 2, "got": 3}
    handle.append(batch(2, 1))
    handle.close()


def test_a_log_that_another_program_changed_is_written_no_more(tmp_path: Path) -> None:
    for change in (cut_short, grown, removed, replaced):
        root = tmp_path / change.__name__
        handle = open_store(root).create(HEADER)
        handle.append(batch(0, 2))
        log = log_of(root)
        change(log)
        there = log.read_bytes() if log.exists() else None
        for _ in range(2):
            with pytest.raises(LogChangedError):
                handle.append(batch(2, 1))
        assert (log.read_bytes() if log.exists() else None) == there
        handle.close()


def cut_short(log: Path) -> None:
    os.truncate(log, log.stat().st_size - 20)


def grown(log: Path) -> None:
    with log.open("ab") as file:
        file.write(b"x")


def removed(log: Path) -> None:
    log.unlink()


def replaced(log: Path) -> None:
    copy = log.with_suffix(".copy")
    copy.write_bytes(log.read_bytes())
    copy.rename(log)


def test_a_read_of_a_log_cut_below_what_is_durable_says_so(tmp_path: Path) -> None:
    handle = open_store(tmp_path).create(HEADER)
    handle.append(batch(0, 2))
    handle.append(batch(2, 2))
    cut_short(log_of(tmp_path))
    events = handle.read()
    assert [next(events), next(events)] == batch(0, 2)
    with pytest.raises(DshdError) as caught:
        next(events)
    assert caught.value.kind == "LOG_CHANGED"
    handle.close()


def test_a_long_history_is_published_at_once_in_frames_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dshd.storage.jsonl.site.MAX_PLAIN", 4000)
    monkeypatch.setattr("dshd.storage.jsonl.write_handle._FIRST_BATCH", 2000)
    store = open_store(tmp_path)
    handle = store.create(HEADER)
    handle.append(batch(0, 200))
    with pytest.raises(FrameTooLargeError):
        handle.append(batch(200, 200))
    assert list(handle.read(150, 2)) == batch(150, 2)
    handle.close()
    again = store.open("s1", "write")
    assert list(again.read()) == batch(0, 200)
    again.close()


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (event(3, "no/such-type"), "FORMAT_UNSUPPORTED"),
        (event(3, "mode/set"), "FORMAT_UNSUPPORTED"),
        ({**event(3), "extra": 1}, "LOG_CORRUPT"),
        ({**event(3), "ignorable": False}, "LOG_CORRUPT"),
        ({**event(3), "type": ["llm/retry"]}, "LOG_CORRUPT"),
        ({**event(3), "surfaceOp": "append"}, "LOG_CORRUPT"),
        (event(3, "user/message"), "LOG_CORRUPT"),
        ({**event(3, "no/such-type"), "ignorable": True}, None),
    ],
)
def test_what_this_version_must_not_continue_is_refused_for_writing_and_read(
    tmp_path: Path, odd: dict[str, Any], kind: str | None
) -> None:
    log = made(tmp_path)
    handle = open_store(tmp_path).open("s1", "write")
    handle.append([odd])  # the store writes what it is given; the rules stand above it
    handle.close()
    before = log.read_bytes()
    store = open_store(tmp_path)
    if kind is None:
        store.open("s1", "write").close()
    else:
        with pytest.raises(DshdError) as caught:
            store.open("s1", "write")
        assert caught.value.kind == kind
        assert caught.value.facts["path"] == str(log)
    assert log.read_bytes() == before
    assert read(store) == [*batch(0, 3), odd]


def test_a_read_that_outlives_its_handle_ends_with_it_and_not_with_another_file(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    made(tmp_path, 50)
    reader = store.open("s1", "read")
    events = reader.read()
    first = next(events)
    reader.close()
    assert [first, *events] == batch(0, 50)
    with pytest.raises(ValueError, match="closed"):
        list(reader.read())


def test_a_read_beside_an_append_sees_the_log_before_it_or_after_it(tmp_path: Path) -> None:
    handle = open_store(tmp_path).create(HEADER)
    handle.append(batch(0, 1))
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            events = list(handle.read())
            assert events == batch(0, len(events))
            seen.append(len(events))

    thread = threading.Thread(target=watch)
    thread.start()
    for first in range(1, 100):
        handle.append(batch(first, 1))
    done.set()
    thread.join()
    assert seen == sorted(seen)
    handle.close()
