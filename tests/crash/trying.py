"""Trying mutants: tests are warmed up once, and every mutant meets those that run its line, in a child of its own.

The rule that holds here: a mutant is dead when a test fails, takes many times the computing time that it took without
it, or stands still, in a process that was forked from a warm one and differs from it in one place alone. What counts is
computing time: how busy the machine is changes nothing.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coverage
import pytest
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crash.mutating import Mutant

AT_ONCE = 2
"""Children at work, one for each core."""
_LEAST_S = 1
"""Computing time that every test of a mutant may take, on top of five times what it took without it."""
_STILL_S = 20
"""A child that has not computed for as long stands still."""
_SPARE_BYTES = 2 * 1024**3
_LARGEST_BYTES = 512 * 1024**2
_SLOWEST = 40
"""So many tests are named that cost the most."""
_WAIT_S = 0.005
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant.

    Attributes:
        module: The module's name.
        name: See `Mutant`.
        line: Of the module.
        killer: The test that failed, or that it did not end; empty where it survived.
    """

    module: str
    name: str
    line: int
    killer: str


@dataclass
class _Test:
    """A test, and what is known of it.

    Attributes:
        item: The test.
        seconds: Its computing time without a mutant.
        kills: How many mutants of a function died of it.
        met: How many mutants of a function it met.
    """

    item: pytest.Item
    seconds: float
    kills: Counter[str] = field(default_factory=Counter[str])
    met: Counter[str] = field(default_factory=Counter[str])

    def worth(self, where: str) -> float:
        """Return how many mutants of a function it is likely to kill in a second."""
        return (self.kills[where] + 0.1) / (self.met[where] + 1) / (self.seconds + 0.01)


@dataclass
class _Child:
    """A mutant under trial.

    Attributes:
        mutant: Which.
        tests: What it meets, in order.
        pid: Of its process.
        says: Where it says which tests it passed.
        ticks: The computing time that it was last seen to have taken.
        since: When that was first seen.
    """

    mutant: Mutant
    tests: list[_Test]
    pid: int
    says: int
    ticks: int = 0
    since: float = field(default_factory=time.monotonic)

    def stands_still(self) -> bool:
        """Whether it has computed nothing for long."""
        with suppress(OSError):
            words = Path(f"/proc/{self.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            ticks = int(words[11]) + int(words[12])
            if ticks != self.ticks:
                self.ticks, self.since = ticks, time.monotonic()
        return time.monotonic() - self.since > _STILL_S


class Trial:
    """A pytest plugin: in place of running the tests once, it runs them for every mutant in a child."""

    def __init__(self, mutants: list[Mutant], meant: dict[str, list[Path]]) -> None:
        """Take the mutants that are tried, and the files of tests that each module's mutants meet."""
        self.verdicts: list[Verdict] = []
        self._mutants = mutants
        self._meant = meant
        self._by_line: dict[tuple[str, int], list[_Test]] = defaultdict(list)
        self._temporary: set[Path] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let property tests stop at the first example that fails: a smaller one is of no use here."""
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings(), phases=phases)
        settings.load_profile("mutants")

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Remember what the test wrote, to remove it."""
        written = getattr(item, "funcargs", {}).get("tmp_path")
        if written is not None:
            self._temporary.add(written)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out who runs what, then try every mutant."""
        self._warm_up(session)
        if session.testsfailed:
            raise session.Failed("the tests fail without a mutant")
        gc.collect()
        gc.freeze()
        waiting, running = iter(self._mutants), dict[int, _Child]()
        while True:
            while len(running) < AT_ONCE:
                mutant = next(waiting, None)
                if mutant is None:
                    break
                child = self._begin(session, mutant)
                running[child.pid] = child
            if not running:
                return True
            self._end_of_some(running)

    def _warm_up(self, session: pytest.Session) -> None:
        """Run the tests as they are and note which lines they run."""
        files = {
            str(import_module(module).__file__): module
            for module in {one.module for one in self._mutants}
        }
        watch = coverage.Coverage(data_file=None, include=[*files], config_file=False)
        watch.set_option("run:disable_warnings", ["already-imported", "module-not-measured"])
        tests: dict[str, _Test] = {}
        watch.start()
        for item in session.items:
            watch.switch_context(item.nodeid)
            began = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            tests[item.nodeid] = _Test(item, time.process_time() - began)
            self._clean()
        watch.stop()
        data = watch.get_data()
        for path, module in files.items():
            for line, contexts in data.contexts_by_lineno(path).items():
                found = [tests[one] for one in contexts if one]
                meant = self._meant[module]
                self._by_line[module, line] += [one for one in found if one.item.path in meant]
        total = sum(test.seconds for test in tests.values())
        for test in sorted(tests.values(), key=lambda one: -one.seconds)[:40]:
            sys.stderr.write(f"# {test.seconds:.1f} s {test.item.nodeid}\n")
        sys.stderr.write(f"# {len(tests)} tests, {total:.0f} s; {len(self._mutants)} mutants\n")

    def _clean(self) -> None:
        for path in self._temporary:
            shutil.rmtree(path, ignore_errors=True)
        self._temporary.clear()

    def _begin(self, session: pytest.Session, mutant: Mutant) -> _Child:
        found = {
            test.item.nodeid: test
            for line in mutant.lines
            for test in self._by_line[mutant.module, line]
        }
        tests = sorted(found.values(), key=lambda one: -one.worth(mutant.where))
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                os.close(reads)
                self._in_child(session, mutant, tests, writes)
            os._exit(1)
        os.close(writes)
        return _Child(mutant, tests, pid, reads)

    def _in_child(
        self, session: pytest.Session, mutant: Mutant, tests: list[_Test], writes: int
    ) -> None:
        """Say the number of every test that is passed, then that all are, or that one is not."""
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        size = int(Path("/proc/self/statm").read_text("utf-8").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _SPARE_BYTES, size + _SPARE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_BYTES, _LARGEST_BYTES))
        mutant.enter()
        session.testsfailed = 0
        for number, test in enumerate(tests):
            os.write(writes, json.dumps(number).encode() + b"\n")
            limit = ceil(time.process_time() + _LEAST_S + 5 * test.seconds)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            test.item.config.hook.pytest_runtest_protocol(item=test.item, nextitem=None)
            self._clean()
            if session.testsfailed:
                os.write(writes, b'"failed"\n')
                os._exit(0)
        os.write(writes, b'"passed"\n')
        os._exit(0)

    def _end_of_some(self, running: dict[int, _Child]) -> None:
        """Wait until a child has come to its end, or is given up."""
        while True:
            for child in running.values():
                ended, _ = os.waitpid(child.pid, os.WNOHANG)
                if ended or child.stands_still():
                    with suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)
                    if not ended:
                        os.waitpid(child.pid, 0)
                    del running[child.pid]
                    self._judge(child)
                    return
            time.sleep(_WAIT_S)  # two children and their computing time are looked at

    def _judge(self, child: _Child) -> None:
        os.set_blocking(child.says, False)  # a process that it left behind may hold the other end
        with os.fdopen(child.says, "rb") as pipe:
            told: list[Any] = [json.loads(line) for line in _lines(pipe.read() or b"")]
        if not told:
            raise RuntimeError(f"this mutant could not be made: {child.mutant.name}")
        mutant, end = child.mutant, told[-1]
        met = child.tests[: 1 + max((one for one in told if isinstance(one, int)), default=-1)]
        for test in met:
            test.met[mutant.where] += 1
        killer = ""
        if end != "passed":
            killer = met[-1].item.name + ("" if end == "failed" else " did not end")
            for test in met[-1:]:
                test.kills[mutant.where] += 1
        self.verdicts.append(Verdict(mutant.module, mutant.name, mutant.line, killer))
        told_of = killer or f"SURVIVED {len(child.tests)} tests"
        sys.stderr.write(f"# {mutant.line:4} {told_of}: {mutant.name}\n")


def _lines(said: bytes) -> Iterator[bytes]:
    yield from said.split(b"\n")[:-1]
