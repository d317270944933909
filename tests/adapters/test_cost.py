"""What an adapter adds to each step of its framework's own loop, with and without it in turns: `make adapters-cost`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.adapters import AGENTS
from support.daemon import DaemonProcess, open_daemon
from support.frameworks import case

if TYPE_CHECKING:
    from collections.abc import Generator

RUNS, STEPS = 15, 20
MEASURED = ("langgraph", "pydantic_ai", "openai_agents")
MEMORY = Path("/dev/shm")  # noqa: S108  a disk in memory is what is wanted
OWN_MS = 1.0
"""What an adapter may add to a step in the median beyond its checkpoints taken by hand, on a slow machine too."""


class Cost(NamedTuple):
    """Milliseconds per step in the median: the framework alone, and what comes on top.

    Attributes:
        without: The framework alone.
        empty: What hooks in the adapter's places add that do nothing.
        added: What the adapter adds.
        by_hand: The same checkpoints without a framework.
        added_to_run: What the adapter adds to a run, its beginning and end included, divided by its steps.
    """

    without: float
    empty: float
    added: float
    by_hand: float
    added_to_run: float


@pytest.fixture(params=["memory", "disk"])
def placed(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Generator[tuple[str, DaemonProcess], None, None]:
    place: str = request.param
    if place == "memory" and not MEMORY.is_dir():
        pytest.skip(f"this machine has no {MEMORY}")
    base = Path(tempfile.mkdtemp(dir=MEMORY)) if place == "memory" else tmp_path
    try:
        with open_daemon(base) as daemon:
            yield place, daemon
    finally:
        shutil.rmtree(base, ignore_errors=True)


def measured(framework: str, daemon: DaemonProcess) -> Cost:
    argv = [sys.executable, str(AGENTS / "cost_agent.py"), framework, str(daemon.socket)]
    done = subprocess.run(
        [*argv, str(RUNS), str(STEPS)],
        capture_output=True,
        text=True,
        env=daemon.env | {"OPENAI_AGENTS_DISABLE_TRACING": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    taken: dict[str, dict[str, list[float]]] = json.loads(done.stdout)
    step, run = (
        {way: median(times) for way, times in taken[what].items()} for what in ("steps", "runs")
    )
    alone = step["without"]
    return Cost(
        without=alone,
        empty=step["empty"] - alone,
        added=step["with"] - alone,
        by_hand=step["by hand"],
        added_to_run=run["with"] - run["without"],
    )


@pytest.mark.alone
@pytest.mark.parametrize("framework", [case(framework) for framework in MEASURED])
def test_a_step_costs_little_more_than_its_checkpoints(
    placed: tuple[str, DaemonProcess], framework: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, daemon = placed
    cost = measured(framework, daemon)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{framework}, root in {place}: {cost.without:.2f} ms a step alone, "
            f"the adapter adds {cost.added:.2f} ms; empty hooks add {cost.empty:.2f} ms, and the same checkpoints "
            f"by hand take {cost.by_hand:.2f} ms; with a run's beginning and end {cost.added_to_run:.2f} ms\n"
        )
    assert cost.added <= cost.by_hand + OWN_MS
