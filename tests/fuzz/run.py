"""Fuzzes a real daemon: `python -m tests.fuzz.run [--cases N] [--seconds S] [--seed X]`; `make fuzz` for a long run.

The one rule: no input makes the daemon exit, answer INTERNAL, answer a good call twice or never, or keep a
descriptor; a failure names its seed.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.generate import Traffic, encoded
from support.daemon import open_daemon
from support.load import MIB, descriptors, resident_bytes

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

_LINES_EACH = 200
_ROUND = 20
_GRACE_S = 10.0


@dataclass
class Report:
    """What a run came to."""

    cases: int = 0
    answers: int = 0
    rounds: int = 0
    grown: int = 0


class FuzzFailedError(AssertionError):
    """The daemon did what no input may make it do."""


def fuzz(daemon: DaemonProcess, seed: int, *, cases: int, seconds: float) -> Report:
    """Send traffic until there were so many cases or the time is over; raise at the first failure."""
    document = daemon.call("rpc.discover")
    report = Report()
    deadline = time.monotonic() + seconds
    open_before, held_before = descriptors(daemon.pid), 0
    while report.cases < cases and time.monotonic() < deadline:
        run_seed = seed + report.rounds
        try:
            _talk(daemon, Traffic(_random(run_seed), document), report, run_seed)
        except FuzzFailedError as error:
            raise FuzzFailedError(f"seed {run_seed}: {error}") from None
        report.rounds += 1
        if report.rounds % _ROUND == 0:
            _check(daemon, open_before, run_seed)
            held_before = held_before or resident_bytes(daemon.pid)
            report.grown = resident_bytes(daemon.pid) - held_before
    _check(daemon, open_before, seed + report.rounds)
    return report


def _random(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  # to be replayed, not to be secret


def _talk(daemon: DaemonProcess, traffic: Traffic, report: Report, seed: int) -> None:
    """One connection: send many lines in pieces of any size, and look at everything that comes back."""
    choose = _random(seed)
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(30)
        one.connect(str(daemon.socket))
        waiting = b""
        whole = True
        for _ in range(_LINES_EACH):
            line = traffic.line()
            report.cases += 1
            whole = _send(one, line + b"\n", choose)
            if not whole:
                break
            waiting = _read(one, waiting, traffic, report, seed)
        if choose.random() < 0.5:
            _finish(one, waiting, traffic, report, seed)
            _account(traffic, whole=whole)


def _send(one: socket.socket, data: bytes, choose: random.Random) -> bool:
    cuts = sorted(choose.randrange(len(data) + 1) for _ in range(choose.choice((0, 0, 0, 1, 3))))
    try:
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            one.sendall(data[start:end])
    except (BrokenPipeError, ConnectionResetError):
        return False
    except TimeoutError:
        raise FuzzFailedError("the daemon has stopped reading") from None
    return True


def _read(one: socket.socket, waiting: bytes, traffic: Traffic, report: Report, seed: int) -> bytes:
    """Take what is there, without waiting."""
    one.setblocking(False)  # noqa: FBT003  # the standard library's signature
    try:
        while piece := one.recv(1 << 16):
            waiting += piece
    except (BlockingIOError, ConnectionResetError):
        pass
    finally:
        one.settimeout(30)
    *lines, rest = waiting.split(b"\n")
    for line in lines:
        _look(line, traffic, report, seed)
    return rest


def _finish(
    one: socket.socket, waiting: bytes, traffic: Traffic, report: Report, seed: int
) -> None:
    """Say that nothing more comes, and read to the end."""
    try:
        one.sendall(encoded({"jsonrpc": "2.0", "id": "last", "method": "session.list"}) + b"\n")
        one.shutdown(socket.SHUT_WR)
        while piece := one.recv(1 << 16):
            waiting += piece
    except (BrokenPipeError, ConnectionResetError):
        pass
    except TimeoutError:
        raise FuzzFailedError("a call was never answered") from None
    for line in waiting.split(b"\n")[:-1]:
        _look(line, traffic, report, seed)


def _look(line: bytes, traffic: Traffic, report: Report, seed: int) -> None:
    try:
        found: Any = json.loads(line)
        answers: list[dict[str, Any]] = [found] if line.startswith(b"{") else found
    except ValueError:
        raise FuzzFailedError(f"no JSON came back: {line[:200]!r}") from None
    for answer in answers:
        report.answers += 1
        error: Any = answer.get("error")
        if error is not None and (error["code"] == -32603 or error["data"]["kind"] == "INTERNAL"):
            raise FuzzFailedError(f"{error}")
        traffic.learn(answer)


def _account(traffic: Traffic, *, whole: bool) -> None:
    """Demand one answer for each good call of a connection that was heard to its end."""
    twice = [number for number, count in traffic.answered.items() if count > 1]
    if twice:
        raise FuzzFailedError(f"answered more than once: {twice[:5]}")
    missing = traffic.expected - set(traffic.answered)
    if whole and traffic.heard_last and missing:
        raise FuzzFailedError(f"never answered: {sorted(missing)[:5]}")


def _check(daemon: DaemonProcess, open_before: int, seed: int) -> None:
    code = daemon.process.poll()
    if code is not None:
        raise FuzzFailedError(
            f"seed {seed}: the daemon ended with {code}:\n{daemon.output()[-3000:]}"
        )
    faults = [line for line in daemon.output().split("\n") if '"level":"error"' in line]
    if faults:
        raise FuzzFailedError(f"seed {seed}: {faults[-1]}")
    deadline = time.monotonic() + _GRACE_S
    while descriptors(daemon.pid) > open_before + 2:
        if time.monotonic() > deadline:
            raise FuzzFailedError(f"seed {seed}: {descriptors(daemon.pid)} descriptors stay open")
        time.sleep(0.05)  # a real process ends its connections by the real clock


def main() -> int:
    """Run for as long as asked, print the figures, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=8 * 3600)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    flags = parser.parse_args()
    print(f"seed {flags.seed}")  # noqa: T201  # what a person needs to replay
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as base, open_daemon(Path(base)) as daemon:
        report = fuzz(daemon, flags.seed, cases=flags.cases, seconds=flags.seconds)
    spent = time.monotonic() - began
    print(  # noqa: T201  # the figures of a run
        f"{report.cases} cases, {report.answers} answers over {report.rounds} connections in {spent:.0f} s:"
        f" no INTERNAL, no exit, no leak; memory grew by {report.grown / MIB:.1f} MiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
