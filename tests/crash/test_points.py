"""The harness on a few points, so that it works on the day when it is needed; `make crash` has all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from crash.traced import judged

TESTS = Path(__file__).resolve().parents[1]


def run_apart(program: str) -> str:
    """Run in a process of its own: one that forks must not have pytest's threads and frozen garbage."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_a_few_kills_and_errors_are_judged_good_and_every_one_struck(tmp_path: Path) -> None:
    said = run_apart(f"""
import errno, json
from pathlib import Path
from crash import errors, kills, workload
from crash.bench import Bench, Tally
bench, killed, failed = Bench(Path({str(tmp_path)!r}), workload.small(), "zstd"), Tally(), Tally()
kills.kill_everywhere(bench, killed, 31)
plan = errors.Plan(errors.PERSISTENT, errno.EIO, sticky=True)
errors.fail_everywhere(bench, failed, plan, range(3, 1 << 30, 19))
print(json.dumps([killed.tried, killed.missed, killed.wrong, failed.tried, failed.wrong]))
""")
    killed, missed, wrong, failed, bad = json.loads(said)
    assert killed >= 7
    assert failed >= 5
    assert missed == 0
    assert wrong == bad == []


def test_a_planted_bug_is_caught(tmp_path: Path) -> None:
    said = run_apart(f"""
from pathlib import Path
from crash import bugs
print(bugs.judged("short-write-ignored", bugs.shortened, Path({str(tmp_path)!r})).first)
print(bugs.judged("", bugs.shortened, Path({str(tmp_path)!r})).first)
""")
    caught, good, _ = said.split("\n")
    assert "LOG_CHANGED" in caught
    assert good == ""


def test_the_workload_is_as_large_as_is_promised(tmp_path: Path) -> None:
    said = run_apart(f"""
from pathlib import Path
from crash import workload
from crash.bench import Bench
bench = Bench(Path({str(tmp_path)!r}), workload.whole(), "zstd")
print(workload.batches_of(bench.steps), len(bench.names), len(bench.reference), len(set(bench.names)))
""")
    batches, operations, sessions, kinds = map(int, said.split())
    assert batches >= 60
    assert operations >= 300
    assert sessions == 4
    assert kinds >= 10


def test_a_trace_tells_appending_from_writing_over() -> None:
    log = "</r/--w--/a/session.jsonl.zstd>"
    good = [
        '1 openat(5</r/--w--/a>, "session.jsonl.zstd", O_RDWR|O_APPEND|O_NOFOLLOW|O_CLOEXEC) = 7',
        f'1 write(7{log}, "x", 1) = 1',
        '1 pwrite64(8</r/--w--/a/derived.bin>, "x", 1, 0) = 1',
    ]
    over = [
        '1 openat(5</r/--w--/a>, "session.jsonl.zstd", O_RDWR|O_CLOEXEC) = 7',
        f'1 pwrite64(7{log}, "x", 1, 0) = 1',
        f"1 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 7{log}, 0) = 0x7f",
    ]
    assert judged("\n".join(good + over)) == (1, over)
