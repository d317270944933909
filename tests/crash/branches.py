"""Promise 36, its second half: every branch of what reads, frames and repairs a log is taken by a test.

The rule that holds here: the tests named below take them all by themselves, in seconds; what only a long run reaches
does not count. A branch that nothing can reach is deleted, not excused.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crash.proof import Result, Size

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parents[2]
_MODULES = (
    *(f"daemon/dshd/storage/jsonl/{name}.py" for name in ("frames", "scan", "index", "rows")),
    *(f"daemon/dshd/storage/jsonl/{name}.py" for name in ("repair", "derived")),
    "protocol/dsh_protocol/framing.py",
)
_TESTS = (
    *(f"tests/storage/test_{name}.py" for name in ("odd_frames", "odd_walks", "torn", "rows")),
    *(f"tests/storage/test_{name}.py" for name in ("derived", "small", "index", "good_frames")),
    "tests/protocol/test_framing.py",
)


def prove(_size: Size, scratch: Path) -> Iterator[Result]:
    """Prove promise 36's figure for branches."""
    missing, count = _missing(scratch)
    yield Result(
        36,
        f"branches of {len(_MODULES)} modules that frame, read and repair",
        f"{count - len(missing)} of {count} taken",
        "all",
        held=count > 200 and not missing,
        why=tuple(missing),
    )


def _missing(scratch: Path) -> tuple[list[str], int]:
    """Run the tests. Returns the branches that none took, and how many there are."""
    data, report = scratch / "coverage", scratch / "coverage.json"
    include = f"--include={','.join(str(_ROOT / module) for module in _MODULES)}"
    common = [f"--data-file={data}", include]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not alone"]
    _coverage("run", "--branch", "--rcfile=/dev/null", *common, *pytest, *_TESTS)
    _coverage("json", "--rcfile=/dev/null", *common, "-o", str(report))
    told: dict[str, Any] = json.loads(report.read_bytes())
    missing = [
        f"{path}: from line {start} to {end}"
        for path, found in told["files"].items()
        for start, end in found["missing_branches"]
    ]
    return missing, told["totals"]["num_branches"]


def _coverage(*words: str) -> None:
    command = [sys.executable, "-m", "coverage", *words]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"coverage {words[0]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
