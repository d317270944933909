"""What an adapter adds to each step of its framework's own loop, with and without it in turns: `make adapters-cost`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.adapters import AGENTS
from support.daemon import DaemonProcess, open_daemon
from support.frameworks import case

if TYPE_CHECKING:
    from collections.abc import Generator

RUNS, STEPS = 25, 20
AGENT, DAEMON = 0, -1
"""Which of the cores each has, where it has one: so the scheduler moves neither into the other's way."""
MEASURED = ("langgraph", "pydantic_ai", "openai_agents")
MEMORY = Path("/dev/shm")  # noqa: S108  a disk in memory is what is wanted
OWN_MS = 1.5
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


class Placed(NamedTuple):
    """Where a measured daemon has its root, and whether it and the agent keep to a core each."""

    root: str
    cores: str
    daemon: DaemonProcess


@pytest.fixture(params=product(["memory", "disk"], ["any cores", "a core each"]), ids=", ".join)
def placed(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Placed, None, None]:
    root, cores = request.param
    if root == "memory" and not MEMORY.is_dir():
        pytest.skip(f"this machine has no {MEMORY}")
    if cores == "a core each" and len(os.sched_getaffinity(0)) < len((AGENT, DAEMON)):
        pytest.skip("this machine has one core")
    base = Path(tempfile.mkdtemp(dir=MEMORY)) if root == "memory" else tmp_path
    try:
        with open_daemon(base, prefix=on(DAEMON) if cores == "a core each" else ()) as daemon:
            yield Placed(root, cores, daemon)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def on(which: int) -> list[str]:
    """Return what runs a program on one core, the first or the last that this process may use."""
    core = sorted(os.sched_getaffinity(0))[which]
    code = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execv(sys.argv[2], sys.argv[2:])"
    return [sys.executable, "-c", code, str(core)]


def measured(framework: str, placed: Placed) -> Cost:
    prefix = on(AGENT) if placed.cores == "a core each" else []
    argv = [sys.executable, str(AGENTS / "cost_agent.py"), framework, str(placed.daemon.socket)]
    done = subprocess.run(
        [*prefix, *argv, str(RUNS), str(STEPS)],
        capture_output=True,
        text=True,
        env=placed.daemon.env | {"OPENAI_AGENTS_DISABLE_TRACING": "1"},
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
    placed: Placed, framework: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = measured(framework, placed)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{framework}, root in {placed.root}, {placed.cores}: {cost.without:.2f} ms a step alone, "
            f"the adapter adds {cost.added:.2f} ms; empty hooks add {cost.empty:.2f} ms, and the same checkpoints "
            f"by hand take {cost.by_hand:.2f} ms; with a run's beginning and end {cost.added_to_run:.2f} ms\n"
        )
    assert cost.added <= cost.by_hand + OWN_MS
