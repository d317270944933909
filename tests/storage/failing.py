"""A disk that fails: at one call or from one call on, with one error, after half of a write where asked to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dshd.storage.files import RealDisk

if TYPE_CHECKING:
    from collections.abc import Callable

FAILING = (
    "open",
    "open_root",
    "mkdir",
    "fstat",
    "lstat",
    "listdir",
    "pread",
    "write",
    "copy",
    "truncate",
    "fdatasync",
    "fsync",
    "drop_cache",
    "link",
    "rename",
    "unlink",
    "rmdir",
    "lock",
)
"""Every call of the disk, but for close."""


class FailingDisk(RealDisk):
    """The real disk, but for the call number `at` (from 1), and without waiting for syncs that do not fail.

    Attributes:
        calls: The names of the calls made so far.
    """

    def __init__(
        self, at: int = 0, error: int = 0, *, sticky: bool = False, half: bool = False
    ) -> None:
        self.at = at
        self.error = error
        self.sticky = sticky
        self.half = half
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._watched(name, found) if name in FAILING else found

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            number = len(self.calls)
            if self.at and (number == self.at or (self.sticky and number > self.at)):
                if name == "write" and self.half:
                    call(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise OSError(self.error, os.strerror(self.error))
            return None if name in {"fsync", "fdatasync"} else call(*args, **options)

        return watched


class HastyDisk(RealDisk):
    """The real disk without its syncs, for tests that make a thousand logs."""

    def fsync(self, fd: int) -> None:
        pass

    def fdatasync(self, fd: int) -> None:
        pass


class ShortDisk(RealDisk):
    """Takes one byte a write."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        return super().write(fd, data[:1])
