"""Promise 11: repairing twice is repairing once, and two machines repair to the same bytes.

Ten thousand random sessions live (`properties.lives`), and each ends torn and is repaired from every side; in each,
after every batch, crash, cut, fork and reopening, what is read is compared with the list. The rule that holds here: a
life that went wrong is named by its seed, which replays it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crash.proof import Result, Size
from properties.lives import live_many

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOGS = {Size.QUICK: 300, Size.FULL: 10_000, Size.RELEASE: 10_000}


def prove(size: Size, _scratch: Path) -> Iterator[Result]:
    """Prove promise 11."""
    did, wrong = live_many(range(_LOGS[size]))
    figures = ", ".join(f"{did[name]} {name}" for name in ("repaired", "killed", "cut", "fork"))
    yield Result(
        11,
        "random sessions, repaired twice, on two machines and after killed repairs",
        f"{did['logs']} logs ({figures}), {len(wrong)} wrong",
        f"{_LOGS[size]} logs, 0 wrong",
        held=did["repaired"] > _LOGS[size] * 0.9 and not wrong,
        why=tuple(wrong),
    )
