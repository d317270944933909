"""A clock that stands still while anything can be done, and then jumps to when something is due.

trio's own mock clock does the same and asks for the statistics of the whole loop at every jump; here it is one look.
The rule that holds here: time passes only when every task waits, because only then does the loop ask how long to sleep.
"""

from __future__ import annotations

import math

import trio


class JumpingClock(trio.abc.Clock):
    """See the module. Only for a loop that waits for nothing outside of it."""

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """Begin at zero."""

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if deadline > self._now and not math.isinf(deadline):
            self._now = deadline
        return 0
