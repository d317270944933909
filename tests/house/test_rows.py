from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
TABLE: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("rows.toml").read_text("utf-8")
)
ROWS = {f"{part}: {row}": shown for part, rows in TABLE.items() for row, shown in rows.items()}
EXPECTED = {
    "protocol": 28,
    "start": 12,
    "socket": 7,
    "life": 6,
    "greed": 5,
    "secrets": 2,
    "damage": 11,
    "text": 11,
    "size": 8,
    "versions": 9,
    "gone": 8,
    "clocks": 3,
    "filesystems": 4,
    "sessions": 11,
    "files": 20,
}


def names(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_its_tests_or_a_reason(row: str) -> None:
    shown = ROWS[row]
    if isinstance(shown, str):
        assert len(shown.split()) > 5, "a reason is a sentence"
        return
    assert shown
    for one in shown:
        file, _, name = one.partition("::")
        assert name in names(TESTS / file), f"{one} does not exist"


def test_no_row_was_dropped() -> None:
    assert {part: len(rows) for part, rows in TABLE.items()} == EXPECTED
