"""The labels, `labels.json` beside a log: the title a person gave, and whether it is archived or pinned.

The rule that holds here: the file is replaced whole and durable; one that cannot be read is none, and costs no session
anything else. The log and its header know nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dshd.storage.files import READ, replace_file
from dshd.storage.store import Labels

if TYPE_CHECKING:
    from dshd.storage.files import Disk

LABELS = "labels.json"
_MAX_BYTES = 64 * 1024


def read_labels(disk: Disk, directory: int) -> Labels | None:
    """Return the labels in an open session directory; None where there are none that can be read."""
    try:
        fd = disk.open(LABELS, READ, at=directory)
    except OSError:
        return None
    try:
        found = msgspec.json.decode(disk.pread(fd, _MAX_BYTES, 0), type=Labels)
    except (OSError, RecursionError, msgspec.MsgspecError):
        return None
    finally:
        disk.close(fd)
    return None if found == Labels() else found


def write_labels(disk: Disk, directory: int, labels: Labels) -> None:
    """Replace the labels, durable on return. Raises OSError."""
    replace_file(disk, directory, LABELS, msgspec.json.encode(labels) + b"\n")
