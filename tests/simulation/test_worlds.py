"""A few worlds of the simulation, that a seed is a world, and that the judge of worlds sees what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simulation.cancelling import Deed, Way, count_awaits, play_cancelled
from simulation.flood import flood
from simulation.oracle import BrokenPromiseError, Oracle
from simulation.world import play

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.machine import Machine

SEEDS = range(12)


def test_worlds_hold_and_a_seed_is_the_same_world_every_time() -> None:
    lives = acknowledged = 0
    for seed in SEEDS:
        once = play(seed)
        assert once.broken is None, f"PYTHONPATH=tests python -m simulation.world {seed}: {once}"
        lives += once.lives
        acknowledged += once.acknowledged
        if seed % 6 == 0:
            assert play(seed) == once
    assert lives > 2 * len(SEEDS)
    assert acknowledged > 5 * len(SEEDS)


def test_a_fork_of_which_nobody_heard_is_judged_as_one() -> None:
    oracle, event = Oracle(lambda _: None), {"type": "turn/start", "data": {"turn": 1}}
    stored = [{**event, "seq": 0, "time": 1}]
    sent = {"id": "s", "writer": "w", "events": [event]}
    oracle.asked(1, {"id": 1, "method": "session.append", "params": sent})
    with pytest.raises(BrokenPromiseError, match="nobody sent"):
        oracle.check("f", stored)
    oracle.asked(1, {"id": 2, "method": "session.fork", "params": {"id": "s", "newId": "f"}})
    oracle.check("f", stored)


def forget_files(machine: Machine) -> None:
    machine.disk.lies_of_files = True


def forget_names(machine: Machine) -> None:
    machine.disk.lies_of_folders = True


@pytest.mark.parametrize("prepare", [forget_files, forget_names])
def test_a_disk_whose_syncs_do_nothing_is_found_out(
    prepare: Callable[[Machine], None],
) -> None:
    assert any(play(seed, prepare=prepare).broken for seed in range(10))


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("deed", Deed)
def test_a_workload_that_is_cut_short_at_an_await_leaves_nothing_half_done(
    deed: Deed, way: Way
) -> None:
    done = 0
    with way.taken():
        awaits = count_awaits()
        assert awaits > 200
        for place in range(17, awaits, 23):
            canceller, outcome = play_cancelled(place, deed)
            assert outcome.broken is None, f"{place}: {outcome.broken}"
            done += canceller.done
            if done == 2:  # some of the awaits are nobody's whom the deed is done to
                return
    assert done


def test_a_process_that_is_forked_at_an_await_comes_to_what_a_replay_of_it_comes_to() -> None:
    program = """
from simulation.cancelling import Deed, cancel_everywhere, play_cancelled
found = {}
def wanted(place):
    return [Deed.STOP, Deed.CALL, Deed.CUT] if place % 79 == 20 else []
def tell(place, deed, *what):
    found[place, deed] = what
cancel_everywhere(wanted, tell)
for (place, deed), what in found.items():
    canceller, outcome = play_cancelled(place, deed)
    assert what == (canceller.done, outcome.trace, outcome.broken), (place, deed, what, outcome)
print(len(found))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= 6


@pytest.mark.parametrize("event_bytes", [100, 200_000])
def test_what_waits_for_a_disk_that_stands_still_is_bounded_and_all_of_it_is_written_later(
    event_bytes: int,
) -> None:
    held = flood(1, event_bytes, 1 if event_bytes > 1000 else 100)
    assert held.pending <= 16 * 2**20
    assert held.sent < 24 * 2**20
    assert held.late == 0
    assert held.durable > 50
