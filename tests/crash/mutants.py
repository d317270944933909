"""Promise 36: whether the tests would notice a fault in recovery, framing, scanning and the index.

The rule that holds here: a mutant is dead when a test fails, or does not come to an end, in a process that was forked
from a warm one and differs from it in one function alone. The tests are those that call that function, the quick ones
first; `EQUIVALENT` names the few mutants that no test can tell from the original, each with its reason.

    python -m crash.mutants [MODULE…] [--sample N]     prints who survived
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crash.mutating import function_of, marked, mutant, places
from crash.proof import Result, Size, not_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TESTS = Path(__file__).resolve().parent.parent
_STORAGE = tuple(
    f"storage/test_{name}.py"
    for name in (
        *("index", "rows", "small", "odd_frames", "odd_walks", "several_defects", "glued_lines"),
        *("torn", "store", "faults", "derived", "verify", "forking", "mutants"),
    )
)
MODULES: dict[str, tuple[str, ...]] = {
    "dshd.storage.jsonl.frames": _STORAGE,
    "dshd.storage.jsonl.scan": _STORAGE,
    "dshd.storage.jsonl.index": _STORAGE,
    "dshd.storage.jsonl.rows": _STORAGE,
    "dshd.storage.jsonl.repair": _STORAGE,
    "dshd.storage.jsonl.derived": _STORAGE,
    "dshd.sessions.closers": tuple(
        f"sessions/test_{name}.py" for name in ("closers", "odd_closers", "unanswered")
    ),
    "dsh_protocol.framing": ("protocol/test_framing.py",),
}
"""The modules that are mutated, and their tests."""
_QUICK = "not every_bit and not flipped and not any_stream and not every_flip"
"""The rest is tried for each mutant; these would take minutes to find what the others find."""
EQUIVALENT: dict[str, str] = {}
"""Mutants that behave as the original does: the name, and why."""
PROMISED = 0.95
SAMPLE = 150
_LIMIT_S = 20
"""How long the tests of a mutant may take, on top of thrice the time that they took without it."""
_SPARE_BYTES = 2 * 1024**3


@dataclass
class Verdict:
    """What became of one mutant.

    Attributes:
        name: See `Mutant`.
        line: Of the module.
        killer: The test that failed, or that it did not end; empty where it survived.
    """

    name: str
    line: int
    killer: str


@dataclass
class Trial:
    """A pytest plugin: in place of running the tests once, it runs them for every mutant in a child.

    Attributes:
        chosen: What is tried: module, function, place, variant.
        verdicts: What became of them.
    """

    chosen: list[tuple[str, str, int, int]]
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    _callers: dict[tuple[str, str], list[tuple[float, pytest.Item]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out who calls what, then try every mutant."""
        for module in {one[0] for one in self.chosen}:
            self._watch(session, module)
        if session.testsfailed:
            raise session.Failed("the tests fail without a mutant")
        for one in self.chosen:
            verdict = self._try(session, *one)
            if verdict is not None:
                self.verdicts.append(verdict)
                sys.stderr.write(
                    f"# {verdict.line:4} {verdict.killer or 'SURVIVED'}: {verdict.name}\n"
                )
        return True

    def _watch(self, session: pytest.Session, module: str) -> None:
        """Run the tests as they are and note what they call."""
        functions = {one[1]: function_of(*one[:2]) for one in self.chosen if one[0] == module}
        before = {name: function.__code__ for name, function in functions.items()}
        called: set[str] = set()
        vars(import_module(module))["_called_"] = called
        for name, function in functions.items():
            function.__code__ = marked(module, name)
        for item in session.items:
            called.clear()
            began = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            for name in called:
                self._callers[module, name].append((time.monotonic() - began, item))
        for name, function in functions.items():
            function.__code__ = before[name]

    def _try(
        self, session: pytest.Session, module: str, function: str, place: int, variant: int
    ) -> Verdict | None:
        items = sorted(self._callers[module, function], key=lambda one: one[0])
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                _in_child(session, items, (module, place, variant), writes)
            os._exit(1)
        os.close(writes)
        limit = _LIMIT_S + 3 * sum(seconds for seconds, _ in items)
        said = _all_of(reads, child, limit)
        os.waitpid(child, 0)
        if not said.strip():
            return None
        told: list[Any] = [json.loads(line) for line in said.strip().split("\n")]
        name, line = told[0]
        return Verdict(name, line, told[1] if len(told) > 1 else "it did not end")


def _in_child(
    session: pytest.Session,
    items: list[tuple[float, pytest.Item]],
    which: tuple[str, int, int],
    writes: int,
) -> None:
    found = mutant(*which)
    if found is None:
        os._exit(0)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    _say(writes, [found.name, found.line])
    found.enter()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _SPARE_BYTES, size + _SPARE_BYTES))
    session.testsfailed = 0
    for _, item in items:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        if session.testsfailed:
            _say(writes, item.name)
            os._exit(0)
    _say(writes, "")
    os._exit(0)


def _say(fd: int, value: Any) -> None:
    os.write(fd, json.dumps(value).encode() + b"\n")


def _all_of(fd: int, child: int, limit: float) -> str:
    """Return what a child says until it ends; it is killed when it takes too long over it."""
    said, until = b"", time.monotonic() + limit
    with os.fdopen(fd, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                os.kill(child, signal.SIGKILL)
                return said.decode()
            piece = pipe.read(65536)
            if not piece:
                return said.decode()
            said += piece


def chosen_of(module: str, rng: random.Random, sample: int) -> list[tuple[str, str, int, int]]:
    """Return the mutants of a module that are tried: all, or some."""
    every = [(module, function, at, v) for function, at in places(module) for v in range(2)]
    return every if not sample else sorted(rng.sample(every, min(sample, len(every))))


def tried(module: str, sample: int) -> list[Verdict]:
    """Try the mutants of one module in this process, which is of no use for anything else afterwards."""
    trial = Trial(chosen_of(module, random.Random(36), sample))  # noqa: S311  # the same sample every time
    files = [str(_TESTS / name) for name in MODULES[module] if (_TESTS / name).exists()]
    words = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not alone", "-k", _QUICK, *files]
    code = pytest.main(["--rootdir", str(_TESTS.parent), *words], plugins=[trial])
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        raise RuntimeError(f"the tests of {module} do not pass without a mutant: {code}")
    return trial.verdicts


def main(words: Sequence[str] | None = None) -> int:
    """Try what was asked for; print survivors and the score."""
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("--sample", type=int, default=0, help="this many of each module")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="by the last part of its name")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    named = [m for m in MODULES if not asked.modules or m.rpartition(".")[2] in asked.modules]
    if asked.here:
        told = [[one.name, one.line, one.killer] for one in tried(named[0], asked.sample)]
        sys.stdout.write("\n" + json.dumps(told) + "\n")
        return 0
    dead, survivors = _counted(named, asked.sample)
    sys.stdout.write("".join(f"survived: {one.name} (line {one.line})\n" for one in survivors))
    sys.stdout.write(f"{dead} of {dead + len(survivors)} mutants died\n")
    return 1 if dead < PROMISED * (dead + len(survivors)) else 0


def _counted(modules: list[str], sample: int) -> tuple[int, list[Verdict]]:
    """Try each module in a process of its own; return how many died, and who did not."""
    verdicts: list[Verdict] = []
    for module in modules:
        command = [sys.executable, "-m", "crash.mutants", "--here", "--sample", str(sample)]
        done = subprocess.run(
            [*command, module.rpartition(".")[2]], stdout=subprocess.PIPE, check=True
        )
        verdicts += [Verdict(*one) for one in json.loads(done.stdout.decode().split("\n")[-2])]
    counted = [one for one in verdicts if one.name not in EQUIVALENT]
    survivors = [one for one in counted if not one.killer]
    return len(counted) - len(survivors), survivors


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Yield the score: of all mutants, or of the same sample every time."""
    what, promised = "mutants of recovery, framing, scan and index die", f"{PROMISED:.0%}"
    if size is Size.QUICK:
        yield not_run(36, what, promised, "it takes an hour; make mutants")
        return
    each = 0 if size is Size.RELEASE else SAMPLE // len(MODULES)
    dead, survivors = _counted(list(MODULES), each)
    share = dead / max(1, dead + len(survivors))
    reached = f"{dead} of {dead + len(survivors)}, {share:.1%}"
    why = tuple(f"survived: {one.name} (line {one.line})" for one in survivors)
    yield Result(36, what, reached, promised, share >= PROMISED, why)


if __name__ == "__main__":
    sys.exit(main())
