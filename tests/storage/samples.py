"""Small sessions for the tests of the store."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from dsh_protocol.events import Header
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import HolderRecord

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.jsonl.store import JsonlStore

HEADER = Header(id="s1", created_at=1000, cwd="/work")
HOLDER = HolderRecord("ab" * 32, 12, 34, "boot", "tests", 56, 0)


def event(seq: int, kind: str = "llm/retry", **data: Any) -> dict[str, Any]:
    return {"type": kind, "seq": seq, "time": 1000 + seq, "data": {"n": seq, **data}}


def batch(first: int, count: int) -> list[dict[str, Any]]:
    return [event(seq) for seq in range(first, first + count)]


def log_of(root: Path, name: str = "session.jsonl.zstd") -> Path:
    return root / "--work--" / "s1" / name


def made(root: Path, count: int = 3, compression: Compression = "zstd") -> Path:
    handle = open_store(root, compression=compression).create(HEADER)
    handle.append(batch(0, count))
    handle.close()
    return log_of(root, "session.jsonl.zstd" if compression == "zstd" else "session.jsonl")


def read(store: JsonlStore) -> list[Any]:
    with closing(store.open("s1", "read")) as handle:
        return list(handle.read())
