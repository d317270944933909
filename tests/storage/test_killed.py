"""The process ends at any call of the disk: what it acknowledged is there, once, and the log goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dsh_protocol.errors import SessionNotFoundError
from dshd.storage.jsonl.store import open_store
from storage.failing import HastyDisk
from storage.samples import HEADER, batch

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_killed_at_any_call_nothing_acknowledged_is_missing(
    tmp_path: Path, compression: str
) -> None:
    program = [sys.executable, str(TESTS / "storage" / "dying.py"), str(tmp_path), compression]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    ended = subprocess.run(program, env=environment, check=True, capture_output=True, text=True)
    deaths = [line.rsplit(" ", 2) for line in ended.stdout.strip().split("\n")]
    assert {"link", "rename", "fdatasync", "truncate"} <= {
        name.split("/")[0] for _, name, _ in deaths
    }
    for root, name, said in deaths:
        acknowledged = int(said)
        store = open_store(Path(root), disk=HastyDisk())
        try:
            handle = store.open("s1", "write")
        except SessionNotFoundError:
            assert acknowledged == 0, (root, name)
            handle = store.create(HEADER)
        with closing(handle):
            events = list(handle.read())
            assert events == batch(0, len(events)), (root, name)
            assert len(events) >= acknowledged, (root, name)
            handle.append(batch(len(events), 2))
            assert list(handle.read()) == batch(0, len(events) + 2), (root, name)
