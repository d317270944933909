from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from fuzz.run import fuzz
from support.daemon import open_daemon

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = float(os.environ.get("DSHD_FUZZ_SECONDS", "15"))


def test_no_traffic_ends_the_daemon_or_meets_a_defect_of_its_own(tmp_path: Path) -> None:
    seed = secrets.randbelow(1 << 32)
    with open_daemon(tmp_path) as daemon:
        report = fuzz(daemon, seed, cases=1_000_000, seconds=SECONDS)
    assert report.cases > 500
    assert report.answers > report.cases / 3
