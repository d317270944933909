"""On what file system a path lies, and whether this machine alone decides about locks there.

The one rule: what cannot be told is not guessed: a path of which no mount is known lies on nothing remarkable.
"""

from __future__ import annotations

import re
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "fuse.sshfs"})
_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system(path: Path, table: Path = TABLE) -> str | None:
    """Return the type of the mount that a path lies on, by the longest mount point that leads to it."""
    try:
        lines = table.read_text("utf-8", "replace").split("\n")
    except OSError:
        return None
    resolved = path.resolve()
    best, kind = -1, None
    for fields in map(str.split, lines):
        if "-" not in fields[5:]:
            continue
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
        if resolved.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), fields[fields.index("-", 5) + 1]
    return kind


def network_warning(path: Path, table: Path = TABLE) -> str | None:
    """Return why sessions should not lie there, where a lock of one machine may mean nothing to another."""
    kind = file_system(path, table)
    if kind not in _NETWORK:
        return None
    return f"{str(path)!r} lies on {kind}: locks may not hold between machines; keep sessions on a local disk"
