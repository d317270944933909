"""What a person means who names a path or an id: one session's log, or the sessions of a root or of a project in it.

The rule that holds here: what stands in the file system and holds sessions is meant before an id is. What holds none is
refused, so that nobody takes for whole what nobody looked into.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from dsh_protocol.errors import IdInvalidError, SessionNotFoundError
from dshd.storage.files import RealDisk
from dshd.storage.jsonl.faults import corrupt
from dshd.storage.jsonl.layout import LOG_NAMES, check_id, is_project
from dshd.storage.jsonl.lock import ROOT_LOCK
from dshd.storage.jsonl.root import Root

_ENDINGS = (".jsonl", ".jsonl.zstd")


class Sessions(NamedTuple):
    """Those of a root, or of one project's folder in it."""

    root: Path
    project: Path | None = None


def sessions_of(target: str, root: Path) -> Sessions | None:
    """Return what a folder of many sessions is; None where a path or an id names one session, or nothing.

    Args:
        target: As a person typed it.
        root: Where ids are looked for.
    """
    path = Path(target)
    try:
        if not path.is_dir() or _logs_in(path):
            return None
        names = [one.name for one in path.iterdir()]
    except OSError:
        return None
    real = Path(os.path.realpath(path))
    if is_project(real.name) and ROOT_LOCK not in names:
        return Sessions(real.parent, real)
    is_root = ROOT_LOCK in names or any(map(is_project, names)) or _is_same(path, root)
    if is_root or not (names or is_project(real.parent.name) or _logs_of_id(target, root)):
        return Sessions(path)
    return None


def path_of(target: str, root: Path) -> str:
    """Return the path of the log that is meant.

    Raises:
        SessionNotFoundError: Nothing is meant.
        LogCorruptError: There are several.
    """
    path, stands = Path(target), os.path.lexists(target)
    if stands and not path.is_dir() and target.endswith(_ENDINGS):
        return target
    paths = _logs_in(path) if path.is_dir() else []
    paths = paths or _logs_of_id(target, root)
    if len(paths) > 1:
        raise corrupt(paths[0], 0, f"the session has several logs: {', '.join(paths)}")
    if paths:
        return paths[0]
    if path.is_dir():
        raise SessionNotFoundError(
            f"{target!r} is no root's folder, no project's in one and no session's: nothing in it was looked at"
        )
    if stands:
        return target
    if os.sep in target:
        raise SessionNotFoundError(
            f"there is no {target!r}, and no session of that id under {str(root)!r}"
        )
    raise SessionNotFoundError(f"no session {target!r} under {str(root)!r}")


def _logs_in(folder: Path) -> list[str]:
    return [str(folder / name) for name in LOG_NAMES if os.path.lexists(folder / name)]


def _logs_of_id(target: str, root: Path) -> list[str]:
    try:
        segment = check_id(target)
    except IdInvalidError:
        if os.sep in target or os.path.lexists(target):
            return []  # it was no id that was meant
        raise
    places = Root(os.fspath(root), RealDisk()).find(segment)
    return [f"{Path(root).absolute()}/{place.log}" for place in places]


def _is_same(path: Path, root: Path) -> bool:
    try:
        return path.samefile(root)
    except OSError:
        return False
