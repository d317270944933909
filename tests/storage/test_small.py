"""The bytes on disk, held by a small session of our own: any change of the format shows up here as a difference."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from dsh_protocol.events import Header
from dshd.storage.jsonl.frames import decode_frame, frames
from dshd.storage.jsonl.store import open_store

if TYPE_CHECKING:
    from dshd.storage.jsonl.layout import Compression

DATA = Path(__file__).parent / "data"
PLACE = "--a~0020b-c--/S~00E4s~002F1"
HEADER = Header(
    id="Säs/1",
    created_at=1700000000000,
    cwd="/a b/c",
    parent_session="p",
    delegation_depth=1,
    origin="subagent",
    agent_preset="x",
)


def batches() -> list[list[dict[str, Any]]]:
    recorded: list[list[dict[str, Any]]] = json.loads((DATA / "small.json").read_bytes())["batches"]
    return recorded


def plain(content: bytes) -> list[bytes]:
    def pread(size: int, offset: int) -> bytes:
        return content[offset : offset + size]

    return [decode_frame(frame) for frame in frames(pread, 0, len(content))]


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_the_small_session_is_written_as_it_always_was(
    tmp_path: Path, compression: Compression
) -> None:
    with closing(open_store(tmp_path, compression=compression).create(HEADER)) as handle:
        for events in batches():
            handle.append(events)
    suffix = ".jsonl.zstd" if compression == "zstd" else ".jsonl"
    written = (tmp_path / PLACE / f"session{suffix}").read_bytes()
    recorded = (DATA / f"small{suffix}").read_bytes()
    if compression == "none" or zstandard.ZSTD_VERSION == (1, 5, 7):
        assert written == recorded
    if compression == "zstd":
        assert plain(written) == plain(recorded)
        assert b"".join(plain(written)) == (DATA / "small.jsonl").read_bytes()
        assert len(plain(written)) == 1 + len(batches())


@pytest.mark.parametrize("suffix", [".jsonl.zstd", ".jsonl"])
def test_the_small_session_is_read_as_it_always_was(tmp_path: Path, suffix: str) -> None:
    (tmp_path / PLACE).mkdir(parents=True)
    shutil.copy(DATA / f"small{suffix}", tmp_path / PLACE / f"session{suffix}")
    with closing(open_store(tmp_path).open("Säs/1", "write")) as handle:
        assert handle.header == HEADER
        assert list(handle.read()) == [event for events in batches() for event in events]
