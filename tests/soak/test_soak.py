from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest

from soak.run import judge, run
from support.daemon import open_daemon
from support.load import tell

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = float(os.environ.get("DSHD_SOAK_SECONDS", "45"))
AGENTS = int(os.environ.get("DSHD_SOAK_AGENTS", "16"))


@pytest.mark.slow
def test_agents_that_are_killed_and_come_again_lose_nothing_and_leave_nothing(
    tmp_path: Path,
) -> None:
    journals = tmp_path / "journals"
    journals.mkdir()
    with open_daemon(tmp_path) as daemon:
        seed = secrets.randbelow(1 << 32)
        soak = run(daemon, journals, agents=AGENTS, seconds=SECONDS, seed=seed)
        tell(judge(soak))
        assert daemon.stop() == 0
