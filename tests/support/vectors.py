"""Where the golden vectors lie, if they lie anywhere.

They are not part of the project: they are looked for beside it. Absent, a test that needs them is skipped with the
reason; with DSHD_REQUIRE_VECTORS=1 it fails instead, so that a gate cannot pass by not looking.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "vectors"


def vectors() -> Path:
    """Return the folder of the golden vectors, or skip (fail, where they are required) the calling test."""
    if (_BESIDE / "README.md").is_file():
        return _BESIDE
    reason = f"golden vectors are not at {_BESIDE}"
    if os.environ.get("DSHD_REQUIRE_VECTORS") == "1":
        pytest.fail(f"{reason}, and DSHD_REQUIRE_VECTORS=1 requires them")
    pytest.skip(reason)


def vectors_present() -> bool:
    """Whether the vectors can be used for parametrising at collection."""
    return (_BESIDE / "README.md").is_file()
