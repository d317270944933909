"""Runs the proofs and prints one line for each promise: `python -m crash.run --size quick|full|release [NAME…]`.

Every proof runs in a process of its own, two at a time and the longest first, those that only wait beside them; those
that measure time run alone, after the others. A result is told on standard error as soon as it is there, so that a run
that is broken off keeps what it has; the report follows at the end. Exits with 1 when a promise was not held, and names
what could not be tried here.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crash.proof import Result, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOGETHER = 2
_HERE = (sys.executable, "-m", "crash.run")
_RUNNING: set[int] = set()
"""The proofs' processes, each at the head of its group."""


@dataclass(frozen=True)
class Proof:
    """One entry of the table: a module of this folder with `prove(size, scratch)`, which yields results.

    Args:
        name: The module.
        takes_s: Seconds that it took at the sizes quick and full, on two cores that do nothing else: the longest first.
        limit_s: Seconds it may take at each size: quick, full, release.
        alone: It measures time, so that nothing may run beside it.
        waits: It does next to nothing but wait, so that it takes no other's place.
        promises: It owes a line for each; one that it did not come to is not held.
    """

    name: str
    takes_s: tuple[int, int]
    limit_s: tuple[int, int, int]
    alone: bool = False
    waits: bool = False
    promises: tuple[int, ...] = ()

    def takes(self, size: Size) -> int:
        """How long it took; the release size is ordered like the full one."""
        return self.takes_s[size is not Size.QUICK]


PROOFS: tuple[Proof, ...] = (
    Proof("daemon", (20, 67), (400, 1800, 7200), promises=(1, 2, 5, 12, 34)),
    Proof("bugs", (60, 28), (300, 900, 900), promises=(34,)),
    Proof("errors", (20, 209), (300, 1800, 3600), promises=(5,)),
    Proof("kills", (40, 80), (300, 1800, 3600), promises=(1,)),
    Proof("doubles", (15, 71), (300, 1800, 3600), promises=(2,)),
    Proof("mending", (12, 46), (300, 900, 900), promises=(9,)),
    Proof("traced", (5, 2), (120, 120, 120), promises=(7,)),
    Proof("tame", (10, 4), (300, 600, 600), promises=(7, 12, 14, 30, 32)),
    Proof("bitflips", (20, 404), (120, 3600, 7200), promises=(10,)),
    Proof("repairs", (10, 166), (120, 1800, 1800), promises=(11,)),
    Proof("branches", (60, 39), (600, 900, 900), promises=(36,)),
    Proof("cuts", (20, 144), (180, 900, 7200), promises=(4,)),
    Proof("blocks", (20, 12), (180, 900, 7200), promises=(4,)),
    Proof("gate", (25, 20), (180, 900, 7200), promises=(6,)),
    Proof("states", (50, 144), (300, 1500, 14400), promises=(3, 8, 17)),
    Proof("mutants", (1, 34), (10, 1800, 14400), promises=(36,)),
    Proof("full_disk", (5, 12), (180, 900, 7200), promises=(13,)),
    Proof("races", (5, 28), (180, 900, 7200), promises=(15,)),
    Proof("limits", (20, 30), (180, 900, 7200), promises=(33,)),
    Proof("cancellations", (10, 151), (300, 3600, 3600), promises=(22, 23)),
    Proof("worlds", (30, 938), (200, 3600, 90_000), promises=(35,)),
    Proof("activation", (10, 43), (180, 900, 7200), alone=True, promises=(16,)),
    Proof("isolation", (20, 95), (300, 900, 3600), alone=True, promises=(18, 19, 20, 21)),
    Proof("stuck", (10, 122), (120, 300, 300), waits=True, promises=(23,)),
)


def main(words: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="crash", description="Prove the promises on durability.")
    parser.add_argument("--size", type=Size, choices=tuple(Size), default=Size.QUICK)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    asked = parser.parse_args(words)
    if asked.scratch is not None:
        return _prove_here(asked.names[0], asked.size, asked.scratch)
    if unknown := set(asked.names) - set(_names()):
        parser.error(
            f"no such proof: {', '.join(sorted(unknown))}; there are {', '.join(_names())}"
        )
    chosen = [proof for proof in PROOFS if not asked.names or proof.name in asked.names]
    chosen.sort(key=lambda proof: -proof.takes(asked.size))
    began = time.monotonic()
    results: list[Result] = []
    prove = partial(_run, size=asked.size)
    with ThreadPoolExecutor(TOGETHER) as pool, ThreadPoolExecutor() as waiting:
        try:
            begun = waiting.map(prove, [proof for proof in chosen if proof.waits])
            busy = [proof for proof in chosen if not (proof.alone or proof.waits)]
            for found in chain(pool.map(prove, busy), begun):
                results += found
        except KeyboardInterrupt:  # whose proofs have sessions of their own and do not hear it
            pool.shutdown(wait=False, cancel_futures=True)
            for pid in list(_RUNNING):
                _end_group(pid)
            raise
    for proof in chosen:
        if proof.alone:
            results += _run(proof, asked.size)
    return _report(results, time.monotonic() - began)


def _names() -> list[str]:
    return [proof.name for proof in PROOFS]


def _run(proof: Proof, size: Size) -> list[Result]:
    """Run one proof in a process group of its own; whatever keeps it from its lines is a promise not held."""
    found: list[Result] = []

    def hear(one: Result) -> None:
        if size is Size.QUICK and one.timed and one.held is False:
            one = _unjudged(one)
        found.append(one)
        _tell(one)

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dshd-crash-", dir=_memory()) as scratch:
        words = [*_HERE, "--size", size, "--scratch", scratch, proof.name]
        fell, computed = _ended(words, proof.limit_s[list(Size).index(size)], hear)
    sys.stderr.write(
        f"# {proof.name}: {time.monotonic() - began:.0f} s, computing {computed:.0f}\n"
    )
    missing = set(proof.promises) - {one.promise for one in found}
    fell = fell or ("" if found else "said nothing")
    fallen = [_fallen(proof, promise, fell or "no line") for promise in sorted(missing)]
    if fell and not missing:
        fallen.append(_fallen(proof, 0, fell))
    for one in fallen:
        _tell(one)
    return found + fallen


def _ended(command: list[str], limit_s: int, hear: Callable[[Result], None]) -> tuple[str, float]:
    """Run a command and hear each result when it comes.

    Returns:
        How it failed, nothing where it did not; and the computing time, with that of all that it waited for.
    """
    late: list[str] = []

    def end() -> None:
        late.append(f"not ended after {limit_s} s")
        _end_group(process.pid)

    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        _RUNNING.add(process.pid)
        limit = threading.Timer(limit_s, end)
        limit.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(b"{"):
                    hear(msgspec.json.decode(line, type=Result))
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        except KeyboardInterrupt:
            _end_group(process.pid)
            raise
        finally:
            limit.cancel()
            _RUNNING.discard(process.pid)
    fell = f"ended with {process.returncode}" if process.returncode else ""
    return (late[0] if late else fell), used.ru_utime + used.ru_stime


def _end_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _fallen(proof: Proof, promise: int, why: str) -> Result:
    return Result(promise, f"the proof '{proof.name}'", why, "an end, with a line", held=False)


def _unjudged(one: Result) -> Result:
    why = "that is too slow, but only a machine that does nothing else can judge it: make crash"
    return replace(one, held=None, why=(*one.why, why))


def _prove_here(name: str, size: Size, scratch: Path) -> int:
    """Run one proof in this process; one JSON object per result on standard output."""
    for result in import_module(f"crash.{name}").prove(size, scratch):
        _say(msgspec.json.encode(result).decode())
    return 0


def _memory() -> str | None:
    """Return a folder in memory where there is one: the proofs ask what was called, not how fast a disk is."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # a file system, not a file


def _report(results: list[Result], seconds: float) -> int:
    for one in sorted(results, key=lambda one: one.promise):
        for line in _lines(one):
            _say(line)
    fallen = sum(one.held is False for one in results)
    missing = sum(one.held is None for one in results)
    tried = f"{len(results)} figures in {seconds:.0f} s"
    _say(f"{tried}: {fallen} fell short, {missing} could not be tried here")
    return 1 if fallen else 0


def _lines(one: Result) -> list[str]:
    mark = {True: "ok", False: "NOT HELD", None: "not run"}[one.held]
    line = f"{one.promise:>3}  {mark:<8}  {one.what}: {one.reached} (promised: {one.promised})"
    return [line, *(f"       {why}" for why in one.why[:10])]


def _tell(one: Result) -> None:
    """Tell a result before its turn in the report."""
    sys.stderr.write("".join(f"# {line}\n" for line in _lines(one)))
    sys.stderr.flush()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
