"""The holder record, `holder.json` beside a log: who has, or last had, the write handle.

The rule that holds here: it says who is meant, and proves nothing; who may write is decided by the lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dshd.storage.records import read_record, write_record
from dshd.storage.store import HolderRecord

if TYPE_CHECKING:
    from dshd.storage.files import Disk

HOLDER = "holder.json"


def read_holder(disk: Disk, directory: int) -> HolderRecord | None:
    """Return the record in an open session directory; None where there is none that can be read."""
    return read_record(disk, directory, HOLDER, HolderRecord)


def write_holder(disk: Disk, directory: int, holder: HolderRecord) -> None:
    """Replace the record, durable on return. Raises OSError; then the old record or the new one stands."""
    write_record(disk, directory, HOLDER, holder)


def clear_holder(disk: Disk, directory: int) -> None:
    """Remove the record, durable on return; nothing where there is none."""
    try:
        disk.unlink(HOLDER, at=directory)
    except FileNotFoundError:
        return
    disk.fsync(directory)


def told(holder: HolderRecord | None) -> dict[str, object] | None:
    """Return what a refusal says of a holder whose connection is not known here."""
    if holder is None:
        return None
    return {"pid": holder.pid, "client": holder.client, "since": holder.since, "connected": False}
