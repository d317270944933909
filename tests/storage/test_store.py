from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.errors import (
    DshdError,
    FormatUnsupportedError,
    FrameTooLargeError,
    IdInvalidError,
    LogChangedError,
    LogCorruptError,
    RootLockedError,
    SeqConflictError,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    UnsafePathError,
)
from dsh_protocol.events import Header
from dshd.storage.jsonl.lock import lock_root
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import HolderRecord
from storage.samples import HEADER, batch, event, log_of

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.jsonl.store import JsonlStore

HOLDER = HolderRecord("ab" * 32, 12, 34, "boot", "tests", 56, 0)


def made(root: Path, count: int = 3, compression: Compression = "zstd") -> Path:
    handle = open_store(root, compression=compression).create(HEADER)
    handle.append(batch(0, count))
    handle.close()
    return log_of(root, "session.jsonl.zstd" if compression == "zstd" else "session.jsonl")


def read(store: JsonlStore) -> list[Any]:
    with closing(store.open("s1", "read")) as handle:
        return list(handle.read())


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


def test_an_id_is_taken_once_in_whatever_project(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    handle = store.create(HEADER)
    elsewhere = Header(id="s1", created_at=5, cwd="/other")
    with pytest.raises(SessionExistsError):
        store.create(elsewhere)
    handle.append(batch(0, 1))
    handle.close()
    with pytest.raises(SessionExistsError):
        store.create(elsewhere)
    with pytest.raises(SessionExistsError):
        open_store(tmp_path).create(elsewhere)


def test_an_id_is_free_again_when_its_session_never_came_to_be(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.create(HEADER).close()
    store.create(HEADER).close()


def test_of_creates_that_race_exactly_one_wins(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    won: list[Any] = []

    def take() -> None:
        with suppress(SessionExistsError):
            won.append(store.create(HEADER))

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_one_handle_writes_at_a_time_here_and_among_processes(tmp_path: Path) -> None:
    made(tmp_path)
    store = open_store(tmp_path)
    handle = store.open("s1", "write")
    handle.write_holder(HOLDER)
    with pytest.raises(SessionBusyError):
        store.open("s1", "write")
    with pytest.raises(SessionBusyError) as caught:
        open_store(tmp_path).open("s1", "write")
    assert caught.value.facts["holder"]["pid"] == 12
    program = (
        "import sys; from pathlib import Path\n"
        "from dshd.storage.jsonl.store import open_store\n"
        "from dsh_protocol.errors import SessionBusyError\n"
        "try: open_store(Path(sys.argv[1])).open('s1', 'write')\n"
        "except SessionBusyError: sys.exit(7)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert ended.returncode == 7
    handle.close()
    store.open("s1", "write").close()


def test_a_lock_file_left_behind_locks_nobody_out(tmp_path: Path) -> None:
    made(tmp_path)
    assert log_of(tmp_path, "session.lock").exists()
    open_store(tmp_path).open("s1", "write").close()
    log_of(tmp_path, "session.lock").unlink()
    open_store(tmp_path).open("s1", "write").close()


def test_the_holder_record_outlives_its_handle(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    handle = store.create(HEADER)
    assert handle.read_holder() is None
    handle.append(batch(0, 1), HOLDER)
    assert handle.read_holder() == HOLDER
    later = HolderRecord("cd" * 32, 99, 1, "boot", "x", 1, 1)
    handle.append(batch(1, 1), later)
    handle.close()
    assert store.read_holder("s1") == later
    reader = store.open("s1", "read")
    assert reader.read_holder() == later
    reader.close()
    again = store.open("s1", "write")
    again.clear_holder()
    again.clear_holder()
    assert again.read_holder() is None
    assert store.read_holder("s1") is None
    again.close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid":"x"}', b"\xff"])
def test_a_holder_record_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    made(tmp_path)
    log_of(tmp_path, "holder.json").write_bytes(content)
    assert open_store(tmp_path).read_holder("s1") is None


def test_files_are_for_their_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        handle = open_store(tmp_path / "root").create(HEADER)
        handle.append(batch(0, 1), HOLDER)
        handle.close()
        with log_of(tmp_path / "root").open("ab") as log:
            log.write(b"torn")
        open_store(tmp_path / "root").open("s1", "write").close()
        lock_root(tmp_path / "root", socket="/x", since=1).close()
    finally:
        os.umask(old)
    for path in [tmp_path / "root", *(tmp_path / "root").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_two_stores_may_mix_encodings_under_one_root_but_not_in_one_session(
    tmp_path: Path,
) -> None:
    zstd = made(tmp_path)
    other = Header(id="s2", created_at=1, cwd="/work")
    raw = open_store(tmp_path, compression="none")
    handle = raw.create(other)
    handle.append(batch(0, 1))
    handle.close()
    assert {found.problem for found in raw.list()} == {None}
    continued = raw.open("s1", "write")
    continued.append(batch(3, 1))
    continued.close()
    assert zstd.exists()
    twin = log_of(tmp_path, "session.jsonl")
    twin.write_bytes(
        b'{"type":"session","version":0,"id":"s1","createdAt":1,"cwd":"/work",'
        b'"delegationDepth":0}\n'
    )
    found = raw.stat("s1")
    assert found.problem is not None
    assert found.problem.kind == "LOG_CORRUPT"
    assert str(twin) in found.problem.message
    assert str(zstd) in found.problem.message
    with pytest.raises(LogCorruptError):
        raw.open("s1", "write")
    assert raw.stat("s2").problem is None


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


UNSAFE = ["link-to-directory", "file", "fifo", "dangling-link"]


@pytest.mark.parametrize("what", UNSAFE)
def test_a_session_directory_that_is_none_is_refused_and_left_alone(
    tmp_path: Path, what: str
) -> None:
    place = tmp_path / "--work--" / "s1"
    place.parent.mkdir(mode=0o700)
    outside = tmp_path / "outside"
    outside.mkdir()
    put(place, what, outside)
    store = open_store(tmp_path)
    with pytest.raises(UnsafePathError):
        store.create(HEADER)
    for access in ("read", "write"):
        with pytest.raises((UnsafePathError, SessionNotFoundError)):
            store.open("s1", access)
    assert list(outside.iterdir()) == []
    for found in store.list():
        assert found.problem is not None
        assert found.problem.kind == "UNSAFE_PATH"


def put(place: Path, what: str, outside: Path) -> None:
    match what:
        case "link-to-directory":
            place.symlink_to(outside)
        case "dangling-link":
            place.symlink_to(outside / "nothing")
        case "fifo":
            os.mkfifo(place)
        case "directory":
            place.mkdir()
        case _:
            place.write_bytes(b"")


@pytest.mark.parametrize("what", [*UNSAFE, "directory"])
def test_a_log_that_is_no_regular_file_is_named_and_harms_no_other(
    tmp_path: Path, what: str
) -> None:
    log = made(tmp_path)
    log.unlink()
    outside = tmp_path / "outside"
    outside.mkdir()
    if what == "file":
        log.write_bytes(b"")  # empty: damaged, not unsafe
    else:
        put(log, what, outside)
    store = open_store(tmp_path)
    store.create(Header(id="good", created_at=1, cwd="/work")).flush()
    found = {session.session_id: session for session in store.list()}
    assert set(found) == {"s1", "good"}
    assert found["good"].problem is None
    problem = found["s1"].problem
    assert problem is not None
    assert problem.kind == ("LOG_CORRUPT" if what == "file" else "UNSAFE_PATH")
    assert store.stat("s1").problem == problem
    with pytest.raises((UnsafePathError, LogCorruptError)):
        store.open("s1", "write")


def test_a_session_in_two_projects_is_named_once_with_both_paths(tmp_path: Path) -> None:
    log = made(tmp_path)
    twin = tmp_path / "--other--" / "s1" / log.name
    twin.parent.mkdir(parents=True)
    twin.write_bytes(log.read_bytes())
    store = open_store(tmp_path)
    listed = list(store.list())
    assert len(listed) == 1
    problem = listed[0].problem
    assert problem is not None
    assert str(log) in problem.message
    assert str(twin) in problem.message
    assert store.stat("s1").problem == problem
    with pytest.raises(LogCorruptError):
        store.open("s1", "write")


@pytest.mark.parametrize("name", ["session.lock", "holder.json"])
def test_a_link_in_the_place_of_a_file_beside_the_log_is_not_followed(
    tmp_path: Path, name: str
) -> None:
    log = made(tmp_path)
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    log.with_name(name).unlink(missing_ok=True)
    log.with_name(name).symlink_to(outside)
    store = open_store(tmp_path)
    if name == "session.lock":
        with pytest.raises(UnsafePathError):
            store.open("s1", "write")
    else:
        handle = store.open("s1", "write")
        assert handle.read_holder() is None
        handle.write_holder(HOLDER)
        assert handle.read_holder() == HOLDER
        handle.close()
    assert outside.read_bytes() == b"mine"


def test_a_linked_project_directory_is_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    made(outside)
    root.mkdir(mode=0o700)
    (root / "--work--").symlink_to(outside / "--work--")
    store = open_store(root)
    assert list(store.list()) == []
    with pytest.raises(SessionNotFoundError):
        store.open("s1", "read")
    handle = store.create(HEADER)
    with pytest.raises(UnsafePathError):
        handle.append(batch(0, 1))
    handle.close()


def test_files_that_are_no_sessions_are_passed_over(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "--work--" / "stray.jsonl").write_text("x")
    (tmp_path / "--work--" / "~zz").mkdir()
    (tmp_path / "--work--" / "empty").mkdir()
    (tmp_path / "--work--" / "s1" / "notes.jsonl").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    store = open_store(tmp_path)
    problems = {found.session_id: found.problem for found in store.list()}
    assert problems["s1"] is None
    assert "empty" not in problems
    store.open("s1", "write").close()


def test_a_newer_generation_beside_a_log_keeps_it_from_being_continued(tmp_path: Path) -> None:
    made(tmp_path)
    log_of(tmp_path, "session.v2.jsonl.zstd").write_bytes(b"")
    store = open_store(tmp_path)
    with pytest.raises(FormatUnsupportedError, match=r"session\.v2\.jsonl\.zstd"):
        store.open("s1", "write")
    problem = store.stat("s1").problem
    assert problem is not None
    assert problem.kind == "FORMAT_UNSUPPORTED"
    assert read(store) == batch(0, 3)


def test_a_log_in_another_place_than_its_header_says_is_damaged(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "--work--" / "s1").rename(tmp_path / "--work--" / "s9")
    store = open_store(tmp_path)
    problem = store.stat("s9").problem
    assert problem is not None
    assert problem.kind == "LOG_CORRUPT"
    with pytest.raises(LogCorruptError, match="s1"):
        store.open("s9", "write")
    with closing(store.open("s9", "read")) as handle:
        assert list(handle.read()) == batch(0, 3)


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


@pytest.mark.parametrize("session_id", ["", "x" * 256])
def test_an_id_that_no_session_can_have_is_named_as_such(tmp_path: Path, session_id: str) -> None:
    store = open_store(tmp_path)
    with pytest.raises(IdInvalidError):
        store.open(session_id, "read")
    with pytest.raises(IdInvalidError):
        store.stat(session_id)


def test_a_session_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    store = open_store(tmp_path / "absent")
    assert list(store.list()) == []
    with pytest.raises(SessionNotFoundError):
        store.stat("s1")
    with pytest.raises(SessionNotFoundError):
        store.read_holder("s1")
    with pytest.raises(SessionNotFoundError):
        store.open("s1", "write")


def test_leftovers_are_swept_when_a_day_old(tmp_path: Path) -> None:
    made(tmp_path)
    old = log_of(tmp_path, "session.jsonl.zstd.0123456789ab.tmp")
    new = log_of(tmp_path, "session.jsonl.zstd.ba9876543210.tmp")
    other = log_of(tmp_path, "notes.tmp")
    for path in (old, new, other):
        path.write_bytes(b"x")
    for path in (old, other):
        os.utime(path, (1, 1))
    open_store(tmp_path).open("s1", "write").close()
    assert not old.exists()
    assert new.exists()
    assert other.exists()


def test_a_root_has_one_daemon_and_names_it(tmp_path: Path) -> None:
    root = tmp_path / "a" / "root"
    lock = lock_root(root, socket="/run/x.sock", since=7, pid=42)
    with pytest.raises(RootLockedError) as caught:
        lock_root(root, socket="/run/y.sock", since=8)
    assert caught.value.facts["holder"] == {"pid": 42, "since": 7, "socket": "/run/x.sock"}
    assert "42" in caught.value.message
    lock.close()
    lock.close()
    again = lock_root(root, socket="/run/y.sock", since=8)
    again.close()


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
