from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dsh_protocol.errors import (
    FormatUnsupportedError,
    IdInvalidError,
    LogCorruptError,
    SessionNotFoundError,
    UnsafePathError,
)
from dsh_protocol.events import Header
from dshd.storage.jsonl.lock import lock_root
from dshd.storage.jsonl.store import open_store
from storage.samples import HEADER, HOLDER, batch, log_of, made, read

if TYPE_CHECKING:
    from pathlib import Path


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
    log = made(tmp_path)
    log.with_name("session.v2.jsonl").write_bytes(b'{"type":"session","version":2}\n')
    store = open_store(tmp_path)
    with pytest.raises(FormatUnsupportedError, match=r"session\.v2\.jsonl"):
        store.open("s1", "write")
    problem = store.stat("s1").problem
    assert problem is not None
    assert problem.kind == "FORMAT_UNSUPPORTED"
    assert read(store) == batch(0, 3)


@pytest.mark.parametrize("content", [b"", b"xyz\n", b'{"type":"session"'])
def test_a_stranger_with_the_name_of_a_newer_generation_stops_nobody(
    tmp_path: Path, content: bytes
) -> None:
    log = made(tmp_path)
    log.with_name("session.v2.jsonl").write_bytes(content)
    store = open_store(tmp_path)
    assert store.stat("s1").problem is None
    store.open("s1", "write").close()


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
