from __future__ import annotations

import errno
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.errors import (
    RootLockedError,
    SessionBusyError,
    SessionExistsError,
)
from dsh_protocol.events import Header
from dshd.storage.files import RealDisk
from dshd.storage.jsonl.lock import lock_root
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import HolderRecord
from storage.samples import HEADER, HOLDER, batch, log_of, made

if TYPE_CHECKING:
    from pathlib import Path


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


class FullDisk(RealDisk):
    """A disk on which files can be made and nothing can be written."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        raise OSError(errno.ENOSPC, "no space")


def test_a_root_is_locked_on_a_full_disk_too_though_nobody_is_named(tmp_path: Path) -> None:
    lock = lock_root(tmp_path / "root", socket="/run/x.sock", since=7, disk=FullDisk())
    with pytest.raises(RootLockedError) as caught:
        lock_root(tmp_path / "root", socket="/run/y.sock", since=8)
    assert caught.value.facts["holder"] is None
    assert "another daemon" in caught.value.message
    lock.close()


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


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid":"x"}', b"\xff", b'{"a":' * 9000])
def test_a_holder_record_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    made(tmp_path)
    log_of(tmp_path, "holder.json").write_bytes(content)
    assert open_store(tmp_path).read_holder("s1") is None
