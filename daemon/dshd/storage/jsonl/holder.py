"""The holder record, `holder.json` beside a log: who has, or last had, the write handle.

The rule that holds here: the record is replaced whole and durable before it counts; one that cannot be read is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dshd.storage.files import READ, replace_file
from dshd.storage.store import HolderRecord

if TYPE_CHECKING:
    from dshd.storage.files import Disk

HOLDER = "holder.json"
_MAX_BYTES = 64 * 1024


def read_holder(disk: Disk, directory: int) -> HolderRecord | None:
    """Return the record in an open session directory; None where there is none that can be read."""
    try:
        fd = disk.open(HOLDER, READ, at=directory)
    except OSError:
        return None
    try:
        return msgspec.json.decode(disk.pread(fd, _MAX_BYTES, 0), type=HolderRecord)
    except (OSError, RecursionError, msgspec.MsgspecError):
        return None
    finally:
        disk.close(fd)


def write_holder(disk: Disk, directory: int, holder: HolderRecord) -> None:
    """Replace the record, durable on return. Raises OSError; then the old record or the new one stands."""
    replace_file(disk, directory, HOLDER, msgspec.json.encode(holder) + b"\n")


def clear_holder(disk: Disk, directory: int) -> None:
    """Remove the record, durable on return; nothing where there is none."""
    try:
        disk.unlink(HOLDER, at=directory)
    except FileNotFoundError:
        return
    disk.fsync(directory)
