"""Directories of projects that nobody can look into: their sessions are in no list, and that must be said somewhere."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from dshd.storage.jsonl.layout import is_project

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def closed_projects(root: Path) -> list[str]:
    """Return the paths under a root that a project has and that are no directory of this user's that can be read."""
    with suppress(OSError):
        return [
            str(path)
            for path in sorted(root.iterdir())
            if is_project(path.name) and _is_closed(path)
        ]
    return []


def _is_closed(path: Path) -> bool:
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return os.fstat(fd).st_uid != os.geteuid()
    finally:
        os.close(fd)
