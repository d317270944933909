"""`dshctl list` as a whole process, and a warm search, on a root of a thousand sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.start import measure

if TYPE_CHECKING:
    from pathlib import Path

LIST_MS = 80
SEARCH_MS = 300
BARE_MS = 14
"""What a bare interpreter takes on the machine for which the figures are meant; a slower one gets more for all."""


@pytest.mark.alone
@pytest.mark.slow
def test_a_thousand_sessions_are_listed_and_searched_in_no_time(tmp_path: Path) -> None:
    found = measure(1000, 15, tmp_path)
    slower = max(1.0, min(found["python"].clock) / BARE_MS)
    told = "\n".join(f"{name}: {one.told()}" for name, one in found.items())
    assert min(found["dshctl list"].clock) <= LIST_MS * slower, told
    assert min(found["dshctl search"].clock) <= SEARCH_MS * slower, told
