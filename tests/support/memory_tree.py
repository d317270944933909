"""The files and directories of a disk in memory.

The rule that holds here: a node is what it is under every name that leads to it, and has one time: of its bytes or
names and of its status.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import NamedTuple

_FOLDER_BYTES = 4096
_FOLDER_MODE = stat.S_IFDIR | 0o700
_FILE_MODE = stat.S_IFREG | 0o600
_UID = os.geteuid()


@dataclass(eq=False, slots=True)
class File:
    """A regular file."""

    ino: int
    time_ns: int
    data: bytearray = field(default_factory=bytearray)


@dataclass(eq=False, slots=True)
class Folder:
    """A directory."""

    ino: int
    time_ns: int
    entries: dict[str, Node] = field(default_factory=dict[str, "Node"])


Node = File | Folder


class Stored(NamedTuple):
    """What a tree says of a file."""

    data: bytes
    time_ns: int
    ino: int = 0


Tree = dict[str, Stored | None]
"""Paths from `/`, without it: a file, or None for a directory. Directories stand before what is in them."""

Names = list[tuple[Folder, str, Node | None]]
"""Changes of names: (directory, name, what it names from now on)."""


def status_of(node: Node) -> os.stat_result:
    """Return what the kernel says of a node."""
    mode, size, ns = _FOLDER_MODE, _FOLDER_BYTES, node.time_ns
    if isinstance(node, File):
        mode, size = _FILE_MODE, len(node.data)
    seconds, exact = ns // 10**9, ns / 10**9
    times = (seconds, seconds, seconds, exact, exact, exact, ns, ns, ns)  # access, bytes, status
    return os.stat_result((mode, node.ino, 1, 1, _UID, 0, size, *times))


def holds(folder: Folder, inner: Folder) -> bool:
    """Whether a directory is another or lies above it."""
    return folder is inner or any(
        isinstance(node, Folder) and holds(node, inner) for node in folder.entries.values()
    )


def collect(folder: Folder, prefix: str, found: Tree) -> None:
    """Find everything below a directory."""
    for name, node in folder.entries.items():
        path = f"{prefix}{name}"
        if isinstance(node, File):
            found[path] = Stored(bytes(node.data), node.time_ns, node.ino)
        else:
            found[path] = None
            collect(node, f"{path}/", found)
