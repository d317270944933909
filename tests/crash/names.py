"""Names that no sync of their directory has made durable yet: a power cut may take every one of them away.

The one rule: what is taken away is what was made since the last sync of that very directory, the last first. A name
that was removed stays removed: a cut may bring it back, and need not.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAKING = frozenset({"create", "mkdir", "link", "rename"})
"""The calls that make a name."""


class _Made(NamedTuple):
    """A name that was made in an open directory: by which call, from which other name, instead of which content."""

    call: str
    directory: int
    name: str
    source: str
    before: bytes | None


class Names:
    """What was made by calls of the disk, and is not durable."""

    def __init__(self) -> None:
        self._made: list[_Made] = []

    def watch(
        self, kind: str, call: Callable[..., Any], args: tuple[Any, ...], at: int | None
    ) -> Any:
        """Make a call that makes a name, and note it."""
        path = str(args[1] if kind in {"link", "rename"} else args[0])
        name, directory = Path(path).name, os.open(Path(path).parent, os.O_PATH, dir_fd=at)
        before = _content(name, directory)
        try:
            done = call(*args, at=at)
        except BaseException:
            os.close(directory)
            raise
        if kind == "create" and before is not None:
            os.close(directory)  # it was there
        else:
            source = str(args[0]) if kind == "rename" else ""
            self._made.append(_Made(kind, directory, name, source, before))
        return done

    def synced(self, fd: int) -> None:
        """A directory was synced: its names are durable."""
        synced = os.fstat(fd)
        kept: list[_Made] = []
        for one in self._made:
            if os.path.samestat(os.fstat(one.directory), synced):
                os.close(one.directory)
            else:
                kept.append(one)
        self._made = kept

    def lose(self) -> int:
        """Take every one away; return how many there were."""
        for one in reversed(self._made):
            with suppress(FileNotFoundError):  # gone already, with what it was in
                _take_away(one)
            os.close(one.directory)
        lost = len(self._made)
        self._made.clear()
        return lost


def _content(name: str, directory: int) -> bytes | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
    except FileNotFoundError:
        return None
    with suppress(IsADirectoryError), os.fdopen(fd, "rb") as file:
        return file.read()
    return b""


def _take_away(made: _Made) -> None:
    if made.call == "mkdir":
        shutil.rmtree(made.name, dir_fd=made.directory)
        return
    if made.call != "rename":
        os.unlink(made.name, dir_fd=made.directory)
        return
    os.rename(made.name, made.source, src_dir_fd=made.directory, dst_dir_fd=made.directory)
    if made.before is not None:
        fd = os.open(made.name, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=made.directory)
        with os.fdopen(fd, "wb") as file:
            file.write(made.before)
