"""The trash and the labels on a disk that fails at any call: a session is whole, and in one place."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from dsh_protocol.errors import (
    DshdError,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    WriteFailedError,
)
from dshd.storage.files import RealDisk
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Labels
from storage.failing import FailingDisk
from storage.samples import batch, made, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dshd.storage.jsonl.store import JsonlStore

    Step = Callable[[JsonlStore], None]


def delete(store: JsonlStore) -> None:
    store.delete("s1")


def undelete(store: JsonlStore) -> None:
    store.undelete("s1")


def label(store: JsonlStore) -> None:
    store.write_labels("s1", Labels(title="after"))


def prepared(root: Path, step: Step) -> None:
    """A session with labels; in the trash, where it is to be brought back."""
    made(root)
    store = open_store(root)
    store.write_labels("s1", Labels(title="before"))
    if step is undelete:
        store.delete("s1")


def places(store: JsonlStore) -> tuple[int, int]:
    """How many sessions there are, and how many lie in the trash."""
    return len(list(store.list())), len(list(store.list_deleted()))


def purge(store: JsonlStore) -> None:
    for lying in store.list_deleted():
        store.purge("s1", lying.deleted_at or 0)


def open_to_write(store: JsonlStore) -> None:
    store.open("s1", "write").close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    ("step", "path"),
    [
        (label, "/s1/labels.json'"),
        (delete, "/s1'"),
        (undelete, "/.trash'"),
        (purge, "/.trash'"),
        (open_to_write, "/s1/session.jsonl.zstd'"),
    ],
)
def test_what_is_no_batch_names_its_own_path_and_is_not_to_be_flushed(
    tmp_path: Path, step: Step, path: str, number: int
) -> None:
    told: list[str] = []
    at = 0
    while True:
        at += 1
        root = tmp_path / str(at)
        prepared(root, undelete if step is purge else step)
        disk = FailingDisk(at, number)
        try:
            step(open_store(root, disk=disk))
        except DshdError as error:
            if "cannot write" in error.message:
                told.append(error.message)
        if len(disk.calls) < at:
            break
    assert told
    for text in told:
        assert path in text
        assert "the same call again" in text
        assert "of the batch" not in text
        assert "flush again" not in text


@pytest.mark.parametrize("step", [delete, undelete, label])
@pytest.mark.parametrize("sticky", [False, True])
def test_a_failure_at_any_call_leaves_a_session_whole_in_one_place(
    tmp_path: Path, step: Step, *, sticky: bool
) -> None:
    counting = FailingDisk()
    prepared(tmp_path / "whole", step)
    step(open_store(tmp_path / "whole", disk=counting))
    assert len(counting.calls) > 5
    for at in range(1, len(counting.calls) + 1):
        root = tmp_path / f"at-{at}"
        prepared(root, step)
        failing = FailingDisk(at, errno.EIO, sticky=sticky)
        with suppress(WriteFailedError, SessionNotFoundError):
            step(open_store(root, disk=failing))
        store = open_store(root)
        here, away = places(store)
        assert (here, away) in {(1, 0), (0, 1)}, (at, failing.calls)
        if away:
            store.undelete("s1")
        assert read(store) == batch(0, 3)
        labels = store.read_labels("s1")
        assert labels is not None
        assert labels.title in ({"before", "after"} if step is label else {"before"})
        step_again = delete if step is undelete else step
        step_again(store)


@pytest.mark.parametrize("sticky", [False, True])
def test_what_is_removed_for_good_is_whole_or_gone_wherever_it_fails(
    tmp_path: Path, *, sticky: bool
) -> None:
    def purge(store: JsonlStore) -> None:
        (one,) = store.list_deleted()
        assert one.deleted_at is not None
        store.purge("s1", one.deleted_at)

    counting = FailingDisk()
    prepared(tmp_path / "whole", undelete)
    purge(open_store(tmp_path / "whole", disk=counting))
    assert not list((tmp_path / "whole" / ".trash").iterdir())
    for at in range(1, len(counting.calls) + 1):
        root = tmp_path / f"at-{at}"
        prepared(root, undelete)
        with suppress(WriteFailedError, SessionNotFoundError, ValueError):
            purge(open_store(root, disk=FailingDisk(at, errno.EIO, sticky=sticky)))
        store = open_store(root)
        assert places(store) in {(0, 1), (0, 0)}
        if places(store) == (0, 1):
            store.undelete("s1")
            assert read(store) == batch(0, 3)
            continue
        made(root)  # what is left of the first goes with the next one
        store.delete("s1")
        purge(store)
        assert not list((root / ".trash").glob("gone-*"))
        assert places(store) == (0, 0)


def test_a_link_in_a_session_is_removed_and_not_followed(tmp_path: Path) -> None:
    log = made(tmp_path / "root")
    others = tmp_path / "others"
    others.mkdir()
    (others / "file").write_text("mine", "utf-8")
    (log.parent / "folder").mkdir()
    (log.parent / "folder" / "link").symlink_to(others)
    (log.parent / "link").symlink_to(others / "file")
    store = open_store(tmp_path / "root")
    store.delete("s1")
    (one,) = store.list_deleted()
    assert one.deleted_at is not None
    with pytest.raises(SessionNotFoundError):
        store.purge("s1", one.deleted_at + 1)
    with pytest.raises(SessionNotFoundError):
        store.purge("s2", one.deleted_at)
    store.purge("s1", one.deleted_at)
    assert places(store) == (0, 0)
    assert (others / "file").read_text("utf-8") == "mine"


def test_where_it_goes_is_durable_before_where_it_was(tmp_path: Path) -> None:
    made(tmp_path)

    class Noting(RealDisk):
        """Notes what is renamed and which directories are synced, by their inodes."""

        def __init__(self) -> None:
            self.notes: list[object] = []

        def rename(self, path: str, new: str, *, at: int) -> None:
            super().rename(path, new, at=at)
            self.notes.append("renamed")

        def fsync(self, fd: int) -> None:
            super().fsync(fd)
            self.notes.append(self.fstat(fd).st_ino)

    disk = Noting()
    open_store(tmp_path, disk=disk).delete("s1")
    (target,) = tmp_path.glob(".trash/*/--work--")
    at = disk.notes.index("renamed")
    trash = tmp_path / ".trash"
    assert disk.notes[:at] == [path.stat().st_ino for path in (tmp_path, trash, target.parent)]
    assert disk.notes[at + 1 :] == [path.stat().st_ino for path in (target, tmp_path / "--work--")]


def test_a_session_that_another_handle_or_program_writes_to_stays(tmp_path: Path) -> None:
    made(tmp_path)
    store = open_store(tmp_path)
    handle = store.open("s1", "write")
    for other in (store, open_store(tmp_path)):
        with pytest.raises(SessionBusyError):
            other.delete("s1")
    assert places(store) == (1, 0)
    handle.close()
    store.delete("s1")
    assert places(store) == (0, 1)
    with pytest.raises(SessionNotFoundError):
        store.delete("s1")


def test_a_session_that_lies_in_two_projects_goes_and_comes_back_as_it_was(tmp_path: Path) -> None:
    log = made(tmp_path)
    twin = tmp_path / "--other--" / "s1"
    twin.mkdir(parents=True, mode=0o700)
    (twin / log.name).write_bytes(log.read_bytes())
    store = open_store(tmp_path)
    store.delete("s1")
    assert list(store.list()) == []
    store.undelete("s1")
    assert log.exists()
    assert (twin / log.name).exists()
    assert not list((tmp_path / ".trash").iterdir())


def test_what_stands_in_its_place_is_not_written_over(tmp_path: Path) -> None:
    log = made(tmp_path)
    store = open_store(tmp_path)
    store.delete("s1")
    log.parent.mkdir()
    (log.parent / "of-a-person").write_text("mine", "utf-8")
    with pytest.raises(SessionExistsError, match="move it away"):
        store.undelete("s1")
    assert (log.parent / "of-a-person").read_text("utf-8") == "mine"
    (log.parent / "of-a-person").unlink()
    store.undelete("s1")
    assert read(store) == batch(0, 3)


def test_what_a_person_put_into_the_trash_is_no_session(tmp_path: Path) -> None:
    made(tmp_path)
    store = open_store(tmp_path)
    store.delete("s1")
    trash = tmp_path / ".trash"
    (trash / "notes.txt").write_text("x", "utf-8")
    (trash / "1234").mkdir()
    (trash / "1700000000000-abcdef").symlink_to(tmp_path)
    (trash / "1700000000001-abcdef" / "--work--" / "empty").mkdir(parents=True)
    assert [one.session_id for one in store.list_deleted()] == ["s1"]
    store.undelete("s1")
    assert places(store) == (1, 0)
