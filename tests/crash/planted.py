"""Ten bugs that a store can have, each put into the product's own code on purpose. Never imported by the product.

The one rule: a planted bug changes one thing, in this process and for good. Where the thing is a call of the disk, a
disk stands between the store and its own that does it wrong; where it is the store's, one function is replaced.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dshd.sessions.session import Session
from dshd.storage.files import RealDisk
from dshd.storage.jsonl import forking, frames, opening, scan
from dshd.storage.jsonl.faults import write_error
from dshd.storage.jsonl.frames import Frame
from dshd.storage.jsonl.log import LogFile
from dshd.storage.jsonl.store import JsonlStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_protocol.errors import DshdError
    from dshd.storage.files import Disk


class Careless(RealDisk):
    """A disk over another one, that passes everything on."""

    def __init__(self, under: Disk) -> None:
        self._under: Any = under

    def __getattribute__(self, name: str) -> Any:
        own = name.startswith("_") or name in type(self).__dict__
        return object.__getattribute__(self, name) if own else getattr(self._under, name)


class NoSync(Careless):
    """Says that a file is synced, and does nothing."""

    def fdatasync(self, fd: int) -> None:
        pass


class NoDirectorySync(Careless):
    """Syncs files, and no names."""

    def fsync(self, fd: int) -> None:
        if not stat.S_ISDIR(self._under.fstat(fd).st_mode):
            self._under.fsync(fd)


class NoTruncate(Careless):
    """Cuts nothing off."""

    def truncate(self, fd: int, length: int) -> None:
        pass


class ShortWriteIgnored(Careless):
    """Takes a write for done, however much of it was taken."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._under.write(fd, data)
        return len(data)


class RetriedSync(Careless):
    """Syncs again where a sync failed, and believes the second answer."""

    def fdatasync(self, fd: int) -> None:
        try:
            self._under.fdatasync(fd)
        except OSError:
            self._under.fdatasync(fd)


class IgnoredSync(Careless):
    """Takes a failed sync for none."""

    def fdatasync(self, fd: int) -> None:
        with suppress(OSError):
            self._under.fdatasync(fd)


def _replace(holder: object, **functions: Any) -> None:
    for name, function in functions.items():
        setattr(holder, name, function)


def _disk(kind: type[Careless]) -> Callable[[], None]:
    """Return what puts a disk under every store that is made from now on."""

    def plant() -> None:
        real = JsonlStore.__init__

        def over(self: JsonlStore, *args: Any, disk: Disk, **options: Any) -> None:
            real(self, *args, disk=kind(disk), **options)

        _replace(JsonlStore, __init__=over)

    return plant


def _acknowledge_first() -> None:
    async def wait_durable(self: Session, *_: object, **__: object) -> None:
        """Believe that what was admitted is as good as written."""

    _replace(Session, wait_durable=wait_durable)


def _check_nothing() -> None:
    real = frames.decode_frame

    def decode_frame(frame: Frame) -> bytes:
        content = frame.content
        if frame.checksummed:
            content = content[:4] + bytes([content[4] & ~0x04]) + content[5:-4]
        return real(Frame(frame.offset, content, frame.blocks))

    _replace(scan, decode_frame=decode_frame)
    _replace(forking, decode_frame=decode_frame)


def _believe_the_cache() -> None:
    def settle(*_: object) -> None:
        """Take what is in memory for what the disk has."""

    _replace(opening, settle=settle)


def _keep_the_tail() -> None:
    def _undone(self: Any, error: OSError, *, sync_failed: bool) -> DshdError:
        self.size = self._disk.fstat(self._fd).st_size
        return write_error(error, self.path)

    _replace(LogFile, _undone=_undone)


@dataclass(frozen=True)
class Bug:
    """A bug.

    Args:
        what: It does.
        plant: Puts it into this process.
    """

    what: str
    plant: Callable[[], None]


BUGS = {
    "ack-first": Bug("acknowledges before it writes and syncs", _acknowledge_first),
    "no-sync": Bug("does not sync what it appends", _disk(NoSync)),
    "no-directory-sync": Bug("does not sync directories", _disk(NoDirectorySync)),
    "no-truncate": Bug("cuts no torn tail off", _disk(NoTruncate)),
    "no-checksum": Bug("does not check checksums", _check_nothing),
    "no-sync-at-open": Bug("shows what is in memory as what is durable", _believe_the_cache),
    "short-write-ignored": Bug("ignores how much a write took", _disk(ShortWriteIgnored)),
    "kept-tail": Bug("goes on behind what a failed write left", _keep_the_tail),
    "retried-sync": Bug("syncs again after a failed sync", _disk(RetriedSync)),
    "ignored-sync": Bug("ignores a failed sync", _disk(IgnoredSync)),
}
