"""What reads a session from disk, fuzzed with the same cases every time; `make fuzz` tries a million others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dshd.storage.jsonl import rows
from fuzz import storage

if TYPE_CHECKING:
    from collections import Counter

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_no_bytes_on_disk_meet_a_defect_of_ours_or_take_memory() -> None:
    program = [sys.executable, "-m", "fuzz.storage", "--cases", "1600", "--seed", "3"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    ended = subprocess.run(program, env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1600 cases" in ended.stdout


def test_an_error_that_is_not_ours_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(line: bytes) -> object:
        return rows.unpack(line) if len(line) < 200 else 1 // 0

    monkeypatch.setattr(storage, "unpack", careless)
    report = storage.run(range(100))
    assert report.wrong
    assert "ZeroDivisionError" in report.wrong[0]
    assert report.wrong[0].startswith("seed ")


def test_a_case_is_made_from_its_seed_alone() -> None:
    def counted(seeds: range) -> Counter[str]:
        return storage.run(seeds).cases

    assert counted(range(7, 27)) == counted(range(7, 17)) + counted(range(17, 27))
