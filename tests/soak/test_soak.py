"""The soak in small, and that it finds what is lost. `make soak-quick` and `make soak` are the real ones."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from soak.run import judge, run
from support.daemon import open_daemon
from support.load import tell

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_agents_that_are_killed_and_come_again_lose_nothing_and_a_loss_would_be_found(
    tmp_path: Path,
) -> None:
    journals = tmp_path / "journals"
    journals.mkdir()
    with open_daemon(tmp_path) as daemon:
        soak = run(daemon, journals, agents=3, seconds=3, seed=secrets.randbelow(1 << 32))
        tell(judge(soak))
        journal = max(journals.glob("*.jsonl"), key=lambda one: one.stat().st_size)
        honest = journal.read_text("utf-8")
        notes: list[dict[str, Any]] = [json.loads(line) for line in honest.split("\n")[:-1]]
        true = next(note for note in notes if "text" in note)
        for false, found in (
            ({"durableSeq": 10**6}, "1000000 were acknowledged"),
            (true | {"text": "never said"}, f"seq {true['seq']} is another event"),
        ):
            _note(journal, honest, false)
            with pytest.raises(AssertionError, match=found):
                judge(soak)
        journal.write_text(honest, "utf-8")
        assert daemon.stop() == 0


def _note(journal: Path, honest: str, note: dict[str, Any]) -> None:
    """Have an agent say that it was told something else."""
    whole = honest[: honest.rfind("\n") + 1]  # the last note may be cut off
    journal.write_text(whole + json.dumps(note) + "\n", "utf-8")
