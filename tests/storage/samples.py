"""Small sessions for the tests of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_protocol.events import Header

if TYPE_CHECKING:
    from pathlib import Path

HEADER = Header(id="s1", created_at=1000, cwd="/work")


def event(seq: int, kind: str = "llm/retry", **data: Any) -> dict[str, Any]:
    return {"type": kind, "seq": seq, "time": 1000 + seq, "data": {"n": seq, **data}}


def batch(first: int, count: int) -> list[dict[str, Any]]:
    return [event(seq) for seq in range(first, first + count)]


def log_of(root: Path, name: str = "session.jsonl.zstd") -> Path:
    return root / "--work--" / "s1" / name
