"""A project's directory that cannot be looked into: it hides no session of another, and is named."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dsh_protocol.errors import DshdError, SessionNotFoundError, UnsafePathError, WriteFailedError
from dsh_protocol.events import Header
from dshd.storage.files import RealDisk
from dshd.storage.jsonl.closed import closed_projects
from dshd.storage.jsonl.store import open_store
from storage.samples import HEADER, batch, made, read

if TYPE_CHECKING:
    from pathlib import Path

CLOSED = "--closed--"
NOBODY = 65534


class ClosedDisk(RealDisk):
    """A disk on which nothing inside one project can be looked at."""

    def __init__(self, error: int) -> None:
        self.error = error

    def lstat(self, path: str, *, at: int | None = None) -> os.stat_result:
        if path.startswith(f"{CLOSED}/"):
            raise OSError(self.error, os.strerror(self.error))
        return super().lstat(path, at=at)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ELOOP, errno.ESTALE])
def test_sessions_of_other_projects_are_found_listed_and_continued(
    tmp_path: Path, error: int
) -> None:
    made(tmp_path)
    (tmp_path / CLOSED).mkdir()
    store = open_store(tmp_path, disk=ClosedDisk(error))
    assert read(store) == batch(0, 3)
    assert [found.session_id for found in store.list()] == ["s1"]
    assert store.stat("s1").problem is None
    with closing(store.open("s1", "write")) as handle:
        handle.append(batch(3, 1))


@pytest.mark.parametrize(
    ("error", "kind"), [(errno.EACCES, UnsafePathError), (errno.EIO, WriteFailedError)]
)
def test_what_may_lie_there_is_not_said_to_be_missing_nor_made_anew(
    tmp_path: Path, error: int, kind: type[DshdError]
) -> None:
    (tmp_path / CLOSED).mkdir()
    store = open_store(tmp_path, disk=ClosedDisk(error))
    with pytest.raises(kind, match=CLOSED):
        store.open("s1", "read")
    with pytest.raises(kind, match=CLOSED):
        store.create(HEADER)


def test_another_users_project_hides_nothing_of_this_users(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    (tmp_path / CLOSED).mkdir(mode=0o700)
    os.chown(tmp_path / CLOSED, NOBODY, NOBODY)
    store = open_store(tmp_path, disk=ClosedDisk(errno.EACCES))
    with pytest.raises(SessionNotFoundError):
        store.open("s1", "read")
    store.create(Header(id="s2", created_at=1)).close()
    assert closed_projects(tmp_path) == [str(tmp_path / CLOSED)]


def test_what_no_list_can_show_is_named(tmp_path: Path) -> None:
    made(tmp_path)
    assert closed_projects(tmp_path) == closed_projects(tmp_path / "absent") == []
    (tmp_path / "--linked--").symlink_to(tmp_path / "--work--")
    (tmp_path / "--file--").write_bytes(b"")
    (tmp_path / "notes").write_bytes(b"")
    assert closed_projects(tmp_path) == [str(tmp_path / "--file--"), str(tmp_path / "--linked--")]
