"""Small files of ours beside a log, each one JSON object.

The rule that holds here: a record is replaced whole and durable before it counts; one that cannot be read is none, and
costs a session nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from dshd.storage.files import READ, replace_file

if TYPE_CHECKING:
    from dshd.storage.files import Disk

T = TypeVar("T")

_MAX_BYTES = 64 * 1024


def read_record(disk: Disk, directory: int, name: str, shape: type[T]) -> T | None:
    """Return the record of that name in an open directory; None where there is none that can be read."""
    try:
        fd = disk.open(name, READ, at=directory)
    except OSError:
        return None
    try:
        return msgspec.json.decode(disk.pread(fd, _MAX_BYTES, 0), type=shape)
    except (OSError, RecursionError, msgspec.MsgspecError):
        return None
    finally:
        disk.close(fd)


def write_record(disk: Disk, directory: int, name: str, record: object) -> None:
    """Replace a record, durable on return. Raises OSError; then the old one or the new one stands."""
    replace_file(disk, directory, name, msgspec.json.encode(record) + b"\n")
