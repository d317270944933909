"""The door's power cut: what no sync saved is gone, names too, and what a killed process left is known to the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from crash.door import Door, Fault
from dshd.storage.files import CREATE, DIRECTORY, replace_file, write_all

CUT = Fault(cut=True)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
KILLED = """
import os, sys
from pathlib import Path
from crash.door import Door, Fault
door = Door(Fault(1, frozenset({"fdatasync"}), kill="before"))
door.inherit(Path(sys.argv[2]))
fd = door.open(sys.argv[1], os.O_RDWR | os.O_APPEND)
door.write(fd, b"fresh")
door.fdatasync(fd)
"""


def make(door: Door, at: int, name: str, data: bytes) -> None:
    """Make a file and sync what is in it, and not its name."""
    fd = door.open(name, CREATE, at=at)
    write_all(door, fd, data)
    door.fdatasync(fd)
    door.close(fd)


def test_names_whose_directory_was_not_synced_are_gone_after_a_cut(tmp_path: Path) -> None:
    door = Door(CUT)
    door.mkdir(str(tmp_path / "synced"))
    door.fsync(door.open(str(tmp_path), DIRECTORY))
    at = door.open(str(tmp_path / "synced"), DIRECTORY)
    make(door, at, "kept", b"kept")
    replace_file(door, at, "replaced", b"old")
    make(door, at, "new", b"new")
    door.link("kept", "second", at=at)
    make(door, at, "other", b"instead")
    door.rename("other", "replaced", at=at)
    door.mkdir(str(tmp_path / "lost"))
    make(door, door.open(str(tmp_path / "lost"), DIRECTORY), "inside", b"inside")
    door.lose()
    left = {path.name: path.read_bytes() for path in (tmp_path / "synced").iterdir()}
    assert left == {"kept": b"kept", "replaced": b"old"}
    assert not (tmp_path / "lost").exists()


def test_what_a_killed_process_had_in_memory_only_is_gone_unless_the_next_one_syncs_it(
    tmp_path: Path,
) -> None:
    will = tmp_path / "will"
    for name, syncs in (("lost", False), ("saved", True)):
        log = tmp_path / name
        log.write_bytes(b"synced")
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, log, will], check=False, env=ENVIRONMENT
        )
        assert killed.returncode == -signal.SIGKILL
        door = Door(CUT)
        door.inherit(will)
        fd = door.open(str(log), os.O_RDWR)
        if syncs:
            door.fdatasync(fd)
        door.lose()
        will.unlink()
    assert (tmp_path / "lost").read_bytes() == b"synced" + bytes(5)
    assert (tmp_path / "saved").read_bytes() == b"syncedfresh"
