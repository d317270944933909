"""No message keeps the event loop from everybody else for long. See tests/support/loop_gap.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.load import tell
from support.loop_gap import GAP_S, LINES, WORKS, Steps, longest_of_line, longest_of_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.rpc import Connection

SLOW_MACHINE = 1.5


@pytest.mark.parametrize("name", LINES)
async def test_no_line_stalls_the_loop(name: str) -> None:
    check(name, await longest_of_line(LINES[name]()))


@pytest.mark.parametrize("work", WORKS)
async def test_no_work_stalls_the_loop(work: Callable[[Connection], None]) -> None:
    check(work.__name__, await longest_of_work(work))


def check(name: str, steps: Steps) -> None:
    tell(f"{name}: {steps.longest * 1000:.0f} ms ({steps.whose.rpartition('.')[2]})")
    assert steps.longest <= GAP_S * SLOW_MACHINE, steps.whose
