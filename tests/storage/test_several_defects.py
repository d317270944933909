"""Sessions in odd places and with several things wrong at once: each is dealt with by its own rule."""

from __future__ import annotations

import itertools
import json
import os
import unicodedata
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import zstandard

from dsh_protocol.errors import SessionExistsError
from dsh_protocol.events import Header
from dsh_protocol.jsontext import encode
from dshd.storage.files import RealDisk
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.verify import verify, verify_root
from storage.failing import HastyDisk
from storage.samples import batch, log_of, made, read

if TYPE_CHECKING:
    from pathlib import Path

TAILS = {
    "none": b"",
    "zeros": bytes(700),
    "garbage": b"garbage" * 9,
    "half": b"\x28\xb5\x2f\xfd\4\x58",
}
SIDES = {"whole": None, "empty": b"", "zeros": bytes(300), "half": b"dshd\0drv", "a holder": b"{"}
LOCKS = {"none": None, "stale": b"", "of a program that is gone": b'{"pid":1}\n'}


@pytest.mark.parametrize(("tail", "side", "lock"), [*itertools.product(TAILS, SIDES, LOCKS)])
def test_a_tail_a_damaged_file_beside_and_a_stale_lock_do_not_add_up(
    tmp_path: Path, tail: str, side: str, lock: str
) -> None:
    log = made(tmp_path)
    with log.open("ab") as file:
        file.write(TAILS[tail])
    damage = SIDES[side]
    if damage is not None:
        for name in ("derived.bin", "holder.json"):
            log.with_name(name).write_bytes(damage)
    left = LOCKS[lock]
    log.with_name("session.lock").unlink(missing_ok=True)
    if left is not None:
        log.with_name("session.lock").write_bytes(left)
    store = open_store(tmp_path, disk=HastyDisk())
    assert [found.problem for found in store.list()] == [None]
    assert read(store) == batch(0, 3)
    with closing(store.open("s1", "write")) as handle:
        handle.append(batch(3, 2))
    assert read(store) == batch(0, 5)
    aside = [path.read_bytes() for path in log.parent.glob("torn-*.bin")]
    assert aside == ([TAILS[tail]] if tail != "none" else [])
    assert verify(str(log), tmp_path).whole


def test_ids_that_look_alike_are_sessions_of_their_own(tmp_path: Path) -> None:
    ids = [
        "A",
        "a",
        *(unicodedata.normalize(form, "caf\xe9") for form in ("NFC", "NFD")),
        "a ",
        "a\u200b",
    ]
    store = open_store(tmp_path)
    for number, session_id in enumerate(ids):
        with closing(store.create(Header(id=session_id, created_at=number))) as handle:
            handle.append(batch(0, number + 1))
    assert sorted(found.session_id for found in store.list()) == sorted(ids)
    for number, session_id in enumerate(ids):
        with closing(store.open(session_id, "read")) as handle:
            assert (handle.header.id, handle.next_seq) == (session_id, number + 1)


class FoldingDisk(RealDisk):
    """A disk that takes `A` for `a`."""

    def lstat(self, path: str, *, at: int | None = None) -> os.stat_result:
        return super().lstat(path if at is None else path.lower(), at=at)


def test_where_two_ids_would_be_one_directory_the_second_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, disk=FoldingDisk())
    with closing(store.create(Header(id="a", created_at=1))) as handle:
        handle.append(batch(0, 1))
    with pytest.raises(SessionExistsError):
        store.create(Header(id="A", created_at=2))


class CountingDisk(RealDisk):
    """Notes every path that is opened or looked at."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def open(self, path: str, flags: int, *, at: int | None = None) -> int:
        self.paths.append(path)
        return super().open(path, flags, at=at)

    def lstat(self, path: str, *, at: int | None = None) -> os.stat_result:
        self.paths.append(path)
        return super().lstat(path, at=at)


def test_a_session_is_opened_by_its_id_without_a_look_at_its_neighbours(tmp_path: Path) -> None:
    made(tmp_path)
    for number in range(50):
        place = tmp_path / "--work--" / f"bad{number}"
        place.mkdir()
        (place / "session.jsonl").write_bytes(b"garbage")
    disk = CountingDisk()
    store = open_store(tmp_path, disk=disk)
    for access in ("read", "write"):
        store.open("s1", access).close()
    assert store.stat("s1").problem is None
    assert not [path for path in disk.paths if "bad" in path]


def test_a_log_of_two_names_is_one_like_any_other(tmp_path: Path) -> None:
    log = made(tmp_path)
    os.link(log, tmp_path / "kept")
    with closing(open_store(tmp_path).open("s1", "write")) as handle:
        handle.append(batch(3, 1))
    assert read(open_store(tmp_path)) == batch(0, 4)
    assert (tmp_path / "kept").read_bytes() == log.read_bytes()


COPIES = [
    "session (conflicted copy 2026-01-02).jsonl.zstd",
    "session.sync-conflict-20260102-101112-ABCDEFG.jsonl.zstd",
    "session.jsonl.zstd.orig",
    "session-PC.jsonl",
    "Session.jsonl",
]


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_that_a_program_for_alike_folders_made_is_ignored_and_told(
    tmp_path: Path, name: str
) -> None:
    log = made(tmp_path)
    log.with_name(name).write_bytes(log.read_bytes() + b"otherwise")
    store = open_store(tmp_path)
    assert [found.problem for found in store.list()] == [None]
    with closing(store.open("s1", "write")) as handle:
        handle.append(batch(3, 1))
    assert read(store) == batch(0, 4)
    report = verify("s1", tmp_path)
    assert (report.whole, report.beside) == (True, [name])
    assert name in report.to_text()
    assert json.loads(report.to_json())["beside"] == [name]
    assert name in verify_root(tmp_path).to_text()
    assert log.with_name(name).read_bytes().endswith(b"otherwise")


def test_a_copied_directory_is_ignored_and_told(tmp_path: Path) -> None:
    copy = log_of(tmp_path).parent.with_name("s1 (conflicted copy)")
    log = made(tmp_path)
    copy.mkdir()
    (copy / log.name).write_bytes(log.read_bytes())
    assert [found.session_id for found in open_store(tmp_path).list()] == ["s1"]
    report = verify_root(tmp_path)
    assert (report.whole, report.count, report.strays) == (True, 1, [str(copy)])
    assert str(copy) in report.to_text()
    assert json.loads(report.to_json())["strays"] == [str(copy)]


@pytest.mark.parametrize("checked", [0, 1, 2])
def test_frames_without_a_checksum_are_read_and_counted(tmp_path: Path, checked: int) -> None:
    log = made(tmp_path)
    for number in range(2):
        rows = encode(batch(3 + number, 1)[0]) + b"\n"
        compressor = zstandard.ZstdCompressor(write_checksum=number < checked)
        with log.open("ab") as file:
            file.write(compressor.compress(rows))
    assert read(open_store(tmp_path)) == batch(0, 5)
    report = verify(str(log), tmp_path)
    assert (report.whole, report.frames, report.unchecked_frames) == (True, 3, 2 - checked)
    assert ("no checksum" in report.to_text()) == (checked < 2)
