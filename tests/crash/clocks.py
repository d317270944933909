"""Wall clocks that are wrong.

The one rule: only what Python code sees of the wall clock is wrong; the clock that runs by itself is left alone, as it
is on a machine whose date is set.
"""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_YEARS_NS = 10 * 365 * 24 * 3600 * 10**9
_HOUR_NS = 3600 * 10**9


def _clocks() -> dict[str, Callable[[int], int]]:
    """Return the plans: from the number of a look at the clock to how far off it is then."""
    return {
        "ten years ahead": lambda _: _YEARS_NS,
        "ten years back from the middle on": lambda look: -_YEARS_NS if look > 40 else 0,
        "ten years to and fro": lambda look: _YEARS_NS if look % 2 else -_YEARS_NS,
        "an hour back at every look": lambda look: -look * _HOUR_NS,
        "in the first moments of 1970": lambda look: -6 * _YEARS_NS - look,
    }


CLOCKS = _clocks()


def set_clock(off: Callable[[int], int]) -> None:
    """Have the wall clock of this process be wrong, for Python code."""
    looks, real = count(), time.time_ns

    def time_ns() -> int:
        return max(0, real() + off(next(looks)))

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
