"""The power is cut at any moment: every disk that can be left opens, with what was acknowledged and no more.

The model, the workload and the judge are those of the proofs in `crash`, here with few cuts of each write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from crash import sweeps
from crash.pending import COARSE, Grain
from crash.recording import RecordingDisk, run
from crash.reference import HALF_A_FRAME, SHORT, Plan, sent
from crash.verdict import Judge
from dshd.storage.jsonl.root import Root

if TYPE_CHECKING:
    from dshd.storage.store import Access
    from support.memory_tree import Stored, Tree

FEW = Grain(cuts=1, names=3)


def watched(plans: tuple[Plan, ...], grain: Grain = FEW) -> tuple[RecordingDisk, Judge]:
    judge = Judge(sent(plans))
    return run(plans, RecordingDisk(judge, grain, 1)), judge


@pytest.mark.parametrize("plan", SHORT, ids=lambda plan: plan.name)
def test_every_state_after_a_power_cut_opens_with_all_that_was_acknowledged(plan: Plan) -> None:
    disk, judge = watched((plan,))
    assert not disk.problems, f"{len(disk.problems)} of {len(judge.disks)}: {disk.problems[:3]}"
    assert len(judge.disks) >= 150, "too few states to prove anything"
    assert judge.missing, "the first materialisation was never cut"


def test_a_raw_batch_in_which_a_turn_ends_is_never_taken_for_corrupt() -> None:
    plan = Plan("raw", 6, 20, raw=True, keep_every=99)
    ends = [event["seq"] for event in sent((plan,))["raw"] if event["type"] == "turn/end"]
    disk, _ = watched((plan,), Grain(cuts=10, names=2))
    assert ends
    assert ends[0] < disk.told.acknowledged["raw"]
    assert not disk.problems


@pytest.mark.parametrize("access", ["read", "write"])
def test_what_a_restart_shows_after_a_kill_outlives_a_power_cut(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, problems, careless = Judge(sent(SHORT)), list[str](), list[str]()
    for at in range(1, 26):  # up to and behind the first log's name
        disk = sweeps.killed(judge, at)
        sweeps.restarted(disk, access)
        problems += disk.problems
        with monkeypatch.context() as patch:
            patch.setattr(Root, "settle", forget)
            disk = sweeps.killed(Judge(sent(SHORT)), at)
            sweeps.restarted(disk, access)
            careless += disk.problems
    assert not problems
    assert any(map(sweeps.is_loss, careless)), "a store that syncs no names should lose some here"


@pytest.mark.parametrize("sweep", [sweeps.sync_sweep, sweeps.cache_sweep])
def test_a_sync_that_failed_is_never_believed(sweep: sweeps.Sweep) -> None:
    assert not list(sweep(Judge(sent(SHORT)), 16))


@pytest.mark.parametrize("kind", sweeps.LIES)
def test_a_disk_that_lies_is_caught(kind: str) -> None:
    found = sweeps.lying(frozenset(sweeps.LIES[kind]), 1)
    assert any(map(sweeps.is_loss, found))


def test_a_repair_that_is_cut_off_anywhere_loses_no_byte() -> None:
    plan = Plan("gamma", 4, 40, torn=3, keep_every=9)
    kept: list[bool] = []

    class Keeping(RecordingDisk):
        def look(self) -> None:
            if any(HALF_A_FRAME in one.data for one in files_of(self.stored())):
                trees = [moment.tree for moment in self.moments(COARSE, self.rng)]
                whole = [any(one.data.endswith(HALF_A_FRAME) for one in files_of(t)) for t in trees]
                kept.append(all(whole) or not self.was_settled)
                self.was_settled |= all(whole)

        was_settled = False

    run((plan,), Keeping(Judge(sent((plan,))), COARSE, 1))
    assert len(kept) >= 3
    assert all(kept), "once the torn bytes were synced they are in every state"


def forget(*_: object) -> None:
    """Sync nothing."""


def files_of(tree: Tree) -> list[Stored]:
    return [stored for stored in tree.values() if stored is not None]
