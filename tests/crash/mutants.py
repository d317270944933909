"""Promise 36: whether the tests would notice a fault in recovery, framing, scanning and the index.

The rule that holds here: a module's own quick tests must notice, those that take seconds together; `equivalent.toml`
names the few mutants that no test can tell from the original, each with its reason.

    python -m crash.mutants [MODULE…] [--sample N]     prints who survived, and the score of each module
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crash.mutating import UNCHANGED, mutants, unchanged
from crash.proof import Result, Size, not_run
from crash.trying import Trial, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_TESTS = Path(__file__).resolve().parent.parent
_WALKS = tuple(
    f"storage/test_{name}.py"
    for name in ("odd_walks", "walk_edges", "torn", "glued_lines", "several_defects")
)
MODULES: dict[str, tuple[str, ...]] = {
    "dsh_protocol.framing": ("protocol/test_framing.py",),
    "dshd.sessions.closers": tuple(
        f"sessions/test_{name}.py" for name in ("closers", "odd_closers", "unanswered")
    ),
    "dshd.storage.jsonl.index": ("storage/test_index.py",),
    "dshd.storage.jsonl.repair": ("storage/test_setting_aside.py", *_WALKS),
    "dshd.storage.jsonl.derived": tuple(
        f"storage/test_{name}.py"
        for name in ("derived_bytes", "setting_aside", "derived", "odd_walks")
    ),
    "dshd.storage.jsonl.rows": ("storage/test_rows.py", *_WALKS[:1]),
    "dshd.storage.jsonl.frames": (
        *(f"storage/test_{name}.py" for name in ("odd_frames", "good_frames", "small")),
        *_WALKS,
    ),
    "dshd.storage.jsonl.source": _WALKS,
    "dshd.storage.jsonl.scan": ("storage/test_derived.py", *_WALKS),
}
"""The modules that are mutated, and the tests that are meant to notice."""
_LEFT_OUT = " and ".join(
    f"not {name}"
    for name in (
        *("every_bit", "flipped", "any_stream", "every_flip", "at_any_byte"),
        "shorter_than_acknowledged",
    )
)
"""These take long to find what the others find."""
PROMISED = 0.95
SAMPLE = 150


def equivalent() -> dict[str, str]:
    """Return the mutants that behave as the original does: the name, and why."""
    told = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text("utf-8"))
    return {
        f"{module}.{name}": str(why) for module, rows in told.items() for name, why in rows.items()
    }


def is_equivalent(name: str, rows: Collection[str]) -> bool:
    """Whether a row is of this mutant: its name, or the front of it and a star."""
    return any(name == row or (row[-1] == "*" and name.startswith(row[:-1])) for row in rows)


def tried(modules: Sequence[str], sample: int) -> list[Verdict]:
    """Try mutants in this process, which is of no use for anything else afterwards."""
    chosen = [one for module in modules for one in mutants(module)]
    if sample:
        rng = random.Random(36)  # noqa: S311  # the same sample every time
        chosen = rng.sample(chosen, min(sample, len(chosen)))
    known = equivalent()
    chosen = [one for one in chosen if not is_equivalent(one.name, known)]
    meant = {one: [_TESTS / name for name in MODULES[one]] for one in modules}
    trial = Trial([*map(unchanged, modules), *chosen], meant)
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # memory: syncs cost nothing
    with tempfile.TemporaryDirectory(prefix="dshd-mutants-", dir=fast) as scratch:
        words = [
            *("-q", "-s", "-p", "no:cacheprovider", "--assert=plain", "--tb=native"),
            *("--rootdir", str(_TESTS.parent), "--basetemp", f"{scratch}/tests"),
            *("-m", "not slow and not alone", "-k", _LEFT_OUT),
            *sorted({str(path) for paths in meant.values() for path in paths}),
        ]
        code = pytest.main(words, plugins=[trial])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"the tests do not pass without a mutant: {code}")
    for one in trial.verdicts:
        if one.name.endswith(UNCHANGED) and one.killer:
            raise RuntimeError(f"{one.killer} does not pass twice: nothing was changed")
    return [one for one in trial.verdicts if not one.name.endswith(UNCHANGED)]


def main(words: Sequence[str] | None = None) -> int:
    """Try what was asked for; print survivors and the score."""
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("--sample", type=int, default=0, help="this many of all")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="by the last part of its name")
    asked = parser.parse_args(words)
    os.nice(5)
    named = [m for m in MODULES if not asked.modules or m.rpartition(".")[2] in asked.modules]
    verdicts = tried(named, asked.sample)
    every, dead = Counter[str](), Counter[str]()
    for one in verdicts:
        every[one.module] += 1
        dead[one.module] += bool(one.killer)
        if not one.killer:
            sys.stdout.write(f"survived: {one.name} (line {one.line})\n")
    for module in every:
        sys.stdout.write(f"{module}: {_score(dead[module], every[module])}\n")
    of = sum(1 for module in named for _ in mutants(module))
    part = f"; a sample: {every.total()} of {of} that there are" if asked.sample else ""
    sys.stdout.write(f"all: {_score(dead.total(), every.total())}{part}\n")
    judged = [(dead[module], every[module]) for module in every]
    if asked.sample:  # of some modules there are only a few in it
        judged = [(dead.total(), every.total())]
    return 0 if all(died >= PROMISED * of for died, of in judged) else 1


def _score(dead: int, of: int) -> str:
    return f"{dead} of {of} mutants died, {dead / max(1, of):.1%}"


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Yield the score: of all mutants, or of the same sample every time."""
    what, promised = "mutants of recovery, framing, scan and index die", f"{PROMISED:.0%}"
    if size is Size.QUICK:
        yield not_run(36, what, promised, "it takes long; make mutants")
        return
    words = [] if size is Size.RELEASE else ["--sample", str(SAMPLE)]
    done = subprocess.run(
        [sys.executable, "-m", "crash.mutants", *words], stdout=subprocess.PIPE, check=False
    )
    told = done.stdout.decode().rstrip("\n").split("\n")
    why = tuple(line for line in told if line.startswith("survived"))
    yield Result(36, what, told[-1].removeprefix("all: "), promised, done.returncode == 0, why)


if __name__ == "__main__":
    sys.exit(main())
