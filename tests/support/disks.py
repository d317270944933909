"""Disks that misbehave on request: a tiny one that is full, a folder that cannot be written.

The one rule: what was mounted or made immutable is put right again when the test leaves, however it leaves.
"""

from __future__ import annotations

import errno
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_FILLER = "filler"


class TinyDisk:
    """A mounted tmpfs of a few hundred KiB."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Leave no free page."""
        with (self.path / _FILLER).open("ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Take the filler away."""
        (self.path / _FILLER).unlink()


@contextmanager
def open_tiny_disk(path: Path, kib: int = 1024) -> Generator[TinyDisk, None, None]:
    """Mount a tmpfs, or skip the test where this user may not."""
    path.mkdir(mode=0o700)
    options = f"size={kib}k,mode=700"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    mounted = _run(command)
    if mounted != "":
        pytest.skip(f"no tmpfs can be mounted here: {mounted}")
    try:
        yield TinyDisk(path)
    finally:
        _run(["umount", "--lazy", str(path)])


@contextmanager
def open_immutable(path: Path) -> Generator[None, None, None]:
    """Make a file or a folder immutable (EPERM for root too), or skip the test where that cannot be done."""
    refused = _run(["chattr", "+i", str(path)])
    if refused != "":
        pytest.skip(f"nothing can be made immutable here: {refused}")
    try:
        yield
    finally:
        _run(["chattr", "-i", str(path)])


@contextmanager
def open_read_only(path: Path) -> Generator[None, None, None]:
    """Mount a folder over itself for reading only (EROFS for root too), or skip the test."""
    command = ["mount", "--bind", str(path), str(path)]
    refused = _run(command)
    if refused != "":
        pytest.skip(f"no folder can be mounted over itself here: {refused}")
    try:
        refused = _run(["mount", "-o", "remount,ro,bind", str(path)])
        if refused != "":
            pytest.skip(f"no mount can be made read-only here: {refused}")
        yield
    finally:
        _run(["umount", "--lazy", str(path)])


def _run(command: list[str]) -> str:
    """Run a command; return why it failed, or nothing."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError as error:
        return f"{command[0]}: {os.strerror(error.errno or 0)}"
    return "" if ended.returncode == 0 else ended.stderr.strip() or f"exit {ended.returncode}"
