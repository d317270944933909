"""What a proof is: it tries something at every point it can, and says which promise was held, with a figure.

The one rule: a proof that could not run here says so; nothing is ever counted as passed that was not tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Size(StrEnum):
    """How much a proof tries: minutes for all of them, half an hour, or hours."""

    QUICK = "quick"
    FULL = "full"
    RELEASE = "release"


@dataclass(frozen=True)
class Result:
    """One line of the report.

    Args:
        promise: The number of the promise, from `README.md`.
        what: What was tried, in a few words.
        reached: The figure that was reached.
        promised: The figure that is promised at this size.
        held: Whether it is good enough; None when it could not be tried here.
        why: What went wrong, one line for each; or why it could not be tried.
        timed: It says how long something took. The quick size runs on machines that do other things, too: there such a
            figure can hold, but not fall short.
    """

    promise: int
    what: str
    reached: str
    promised: str
    held: bool | None
    why: tuple[str, ...] = ()
    timed: bool = False


def not_run(promise: int, what: str, promised: str, why: str) -> Result:
    """Return the result of a proof that cannot be made on this machine."""
    return Result(promise, what, "not run", promised, None, (why,))
