"""The disk with its figures: how long each sync took, and how much was written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dshd.storage.files import RealDisk

if TYPE_CHECKING:
    from dshd.metrics import Metrics


class MeasuredDisk(RealDisk):
    """A real disk that counts. Used from many threads at a time."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write as the kernel takes it, and count that."""
        written = super().write(fd, data)
        self._metrics.inc("dshd_written_bytes", written)
        return written

    def fdatasync(self, fd: int) -> None:
        """Sync, and note how long it took, failed or not."""
        began = time.monotonic()
        try:
            super().fdatasync(fd)
        finally:
            self._metrics.observe("dshd_fsync_seconds", time.monotonic() - began)

    def fsync(self, fd: int) -> None:
        """Sync, and note how long it took, failed or not."""
        began = time.monotonic()
        try:
            super().fsync(fd)
        finally:
            self._metrics.observe("dshd_fsync_seconds", time.monotonic() - began)
