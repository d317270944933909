"""The table of where ours differs from the record on purpose, with reasons: differences.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent / "differences.toml"


def _table() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text("utf-8"))


def our_answers() -> dict[tuple[str, str], str]:
    """Return our answer by case and operation, where it is another one than the recorded."""
    found: dict[tuple[str, str], str] = {}
    for difference in _table()["difference"]:
        assert difference["why"].strip()
        for name, answers in difference["answers"].items():
            for operation, answer in answers.items():
                assert (name, operation) not in found, f"{name}.{operation} stands there twice"
                found[name, operation] = answer
    return found


def same_on_purpose() -> dict[str, str]:
    """Return why our answer is the recorded one, by the weakness that it has."""
    reasons: dict[str, str] = _table()["same"]
    return reasons
