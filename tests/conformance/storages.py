"""The storages that the suites are run over here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.memory import MemoryStorage
from dshd.storage.jsonl.store import JsonlStore, open_store
from storage.failing import HastyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.cases import Storage
    from dshd.storage.jsonl.layout import Compression

KINDS = ("zstd", "raw", "memory")
FILE_KINDS = ("zstd", "raw")


@dataclass(frozen=True)
class JsonlStorage:
    """Sessions as files below a root. Nothing waits for the disk: no power is cut here."""

    root: Path
    compression: Compression

    @property
    def log_name(self) -> str:
        """The name of a new log's file."""
        return "session.jsonl.zstd" if self.compression == "zstd" else "session.jsonl"

    def open(self) -> JsonlStore:
        """See `Storage`."""
        return open_store(self.root, compression=self.compression, disk=HastyDisk())


def file_storage(kind: str, root: Path) -> JsonlStorage:
    """Return an empty storage of one of `FILE_KINDS`."""
    return JsonlStorage(root / "root", "zstd" if kind == "zstd" else "none")


def storage(kind: str, root: Path) -> Storage:
    """Return an empty storage of one of `KINDS`."""
    return MemoryStorage() if kind == "memory" else file_storage(kind, root)
