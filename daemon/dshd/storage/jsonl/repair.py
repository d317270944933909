"""Cutting a torn tail off a log, after setting its bytes aside.

The rule that holds here: no byte is lost. What is cut is first copied to a file of its own beside the log and made
durable. Only opening for writing does this; reading never mends.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from dshd.storage.files import CREATE, write_all

if TYPE_CHECKING:
    from dshd.storage.files import Disk
    from dshd.storage.jsonl.scan import Torn
    from dshd.storage.jsonl.source import Source

_PIECE = 1024 * 1024


def set_aside(directory: int, source: Source, torn: Torn) -> str:
    """Copy a torn tail to `torn-<offset>-<hash>.bin` in the session's directory, durable on return.

    The name is made from the content, so that a repair that was interrupted and is run again leaves one copy.

    Returns:
        The copy's name.
    """
    disk = source.disk
    leftover = f"torn.{secrets.token_hex(6)}.tmp"
    copy = disk.open(leftover, CREATE, at=directory)
    try:
        try:
            digest = _copy(source, torn, copy)
            disk.fsync(copy)
        finally:
            disk.close(copy)
        name = f"torn-{torn.offset}-{digest[:12]}.bin"
        disk.rename(leftover, name, at=directory)
        disk.fsync(directory)
    except BaseException:
        with suppress(OSError):
            disk.unlink(leftover, at=directory)
        raise
    return name


def _copy(source: Source, torn: Torn, copy: int) -> str:
    """Copy the tail's bytes, its holes as holes, and return their hash."""
    digest = hashlib.sha256()
    at, end = torn.offset, torn.offset + torn.size
    while at < end:
        stored = min(source.next_data(at) or end, end)
        if stored > at:
            digest.update(b"%d zeros" % (stored - at))
            source.disk.truncate(copy, stored - torn.offset)
            at = stored
            continue
        piece = source.pread(min(_PIECE, end - at), at)
        if not piece:
            break
        digest.update(piece)
        write_all(source.disk, copy, piece)
        at += len(piece)
    return digest.hexdigest()


def cut(source: Source, torn: Torn) -> None:
    """Cut the tail off, durable on return."""
    source.disk.truncate(source.fd, torn.offset)
    source.disk.fsync(source.fd)


def settle(disk: Disk, fd: int) -> None:
    """See to it that what is read next is what the disk holds.

    After a failed sync the page cache shows bytes that the disk never got, also to a program started later. A sync
    followed by dropping the clean pages makes the next read tell the truth. An error of that sync is an old one's: the
    reads after it are right all the same.
    """
    with suppress(OSError):
        disk.fdatasync(fd)
    with suppress(OSError):
        disk.drop_cache(fd)


def sweep(disk: Disk, directory: int, *, older_than: float, names: list[str]) -> None:
    """Remove temporary files that no living writer can still want. Failures are left for the next time."""
    for name in names:
        with suppress(OSError):
            if disk.lstat(name, at=directory).st_mtime < older_than:
                disk.unlink(name, at=directory)
