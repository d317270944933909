"""Fuzzes real daemons: `python -m tests.fuzz.run [--cases N] [--seconds S] [--seed X]`; `make fuzz` for a long run.

Several connections at once, and a fresh daemon and root every so many cases, so that a long run is as quick at its end
as at its beginning. The one rule: no input makes the daemon exit, answer INTERNAL, answer a good call twice or never,
stop reading, or keep a descriptor or memory; a failure names its seed.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import select
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.generate import Traffic, encoded
from support.daemon import open_daemon
from support.load import MIB, descriptors, resident_bytes

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

AT_ONCE = 6
CASES_EACH_DAEMON = 25_000
_LINES_EACH = 200
_ROUND = 24
_GRACE_S = 10.0
_PATIENCE_S = 60.0  # for a daemon that shares its processor; one that stands still takes longer
_MOST_GROWN = 64 * MIB
_INTERNAL = (-32603, "INTERNAL")


@dataclass
class Report:
    """What a run came to."""

    cases: int = 0
    answers: int = 0
    connections: int = 0
    daemons: int = 0
    grown: int = 0
    """By how many bytes a daemon's memory grew at most, after its first round of connections."""

    def add(self, other: Report) -> None:
        """Count another's in."""
        self.cases += other.cases
        self.answers += other.answers
        self.connections += other.connections
        self.daemons += other.daemons
        self.grown = max(self.grown, other.grown)


class FuzzFailedError(AssertionError):
    """The daemon did what no input may make it do."""


def fuzz(daemon: DaemonProcess, seed: int, *, cases: int, seconds: float) -> Report:
    """Send traffic until there were so many cases or the time is over; raise at the first failure."""
    document = daemon.call("rpc.discover")
    report = Report(daemons=1)
    deadline = time.monotonic() + seconds
    log = _Log(daemon.log)
    open_before, held_before = descriptors(daemon.pid), 0

    def talk(one_seed: int) -> Report:
        if time.monotonic() > deadline:
            return Report()
        with Talk(daemon.socket, document, one_seed) as one:
            return one.run()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        while report.cases < cases and time.monotonic() < deadline:
            first = seed + report.connections
            for part in pool.map(talk, range(first, first + _ROUND)):
                report.add(part)
            _check(daemon, log, open_before, first)
            held = resident_bytes(daemon.pid)
            held_before = held_before or held
            report.grown = held - held_before
            if report.grown > _MOST_GROWN:
                raise FuzzFailedError(f"seed {seed}: memory grew by {report.grown / MIB:.0f} MiB")
    return report


class Talk:
    """One connection: sends many lines in pieces of any size, and looks at everything that comes back.

    It reads while it sends, as a client must: the daemon stops reading from whom it cannot answer.
    """

    def __init__(self, path: Path, document: dict[str, Any], seed: int) -> None:
        self._seed = seed
        self._choose = _random(seed)
        self._traffic = Traffic(_random(seed), document)
        self._report = Report(connections=1)
        self._waiting = b""
        self._deaf = False  # it takes nothing more
        self._ended = False
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(path))
            self._socket.setblocking(False)  # noqa: FBT003  # the standard library's signature
        except OSError as error:
            self._socket.close()
            raise self._failed(f"no connection: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def run(self) -> Report:
        """Say everything, and return what came of it."""
        for _ in range(_LINES_EACH):
            line = self._traffic.line()
            self._report.cases += 1
            self._send(line + b"\n")
            if self._deaf:
                break
        whole = not self._deaf
        if self._choose.random() < 0.5:
            self._finish()
            self._account(whole=whole)
        return self._report

    def _send(self, data: bytes) -> None:
        among = self._choose.choice((0, 0, 0, 1, 3))
        cuts = sorted(self._choose.randrange(len(data) + 1) for _ in range(among))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            piece = memoryview(data)[start:end]
            while piece and not self._deaf:
                piece = piece[self._exchange(piece) :]

    def _finish(self) -> None:
        """Say that nothing more comes, and read to the end."""
        self._send(encoded({"jsonrpc": "2.0", "id": "last", "method": "session.list"}) + b"\n")
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        while not self._ended:
            self._exchange(memoryview(b""))

    def _exchange(self, piece: memoryview) -> int:
        """Wait until something can be sent or read, and do it; return how much was sent."""
        writers = [self._socket] if piece else []
        readable, writable, _ = select.select([self._socket], writers, [], _PATIENCE_S)
        if not readable and not writable:
            raise self._failed("the daemon neither reads nor answers")
        if readable:
            self._read()
        if not writable or self._deaf:
            return 0
        try:
            return self._socket.send(piece)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            self._deaf = True
            return 0

    def _read(self) -> None:
        """Take what is there."""
        try:
            piece = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionResetError:
            piece = b""
        if not piece:
            self._deaf = self._ended = True
        *lines, self._waiting = (self._waiting + piece).split(b"\n")
        for line in lines:
            self._look(line)

    def _look(self, line: bytes) -> None:
        try:
            found: Any = json.loads(line)
        except ValueError:
            raise self._failed(f"no JSON came back: {line[:200]!r}") from None
        answers: list[dict[str, Any]] = [found] if line.startswith(b"{") else found
        for answer in answers:
            self._report.answers += 1
            error: Any = answer.get("error")
            if error is not None and (
                error["code"] in _INTERNAL or error["data"]["kind"] in _INTERNAL
            ):
                raise self._failed(f"{error}")
            self._traffic.learn(answer)

    def _account(self, *, whole: bool) -> None:
        """Demand one answer for each good call of a connection that was heard to its end."""
        traffic = self._traffic
        twice = [number for number, count in traffic.answered.items() if count > 1]
        if twice:
            raise self._failed(f"answered more than once: {twice[:5]}")
        missing = traffic.expected - set(traffic.answered)
        if whole and traffic.heard_last and missing:
            raise self._failed(f"never answered: {sorted(missing)[:5]}")

    def _failed(self, why: str) -> FuzzFailedError:
        return FuzzFailedError(f"seed {self._seed}: {why}")


class _Log:
    """The daemon's log, read on from where it was read to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def faults(self) -> list[str]:
        """The errors that were logged since the last look."""
        with self._path.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = whole.decode("utf-8", "replace").split("\n")
        return [line for line in lines if '"level":"error"' in line]


def _random(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  # to be replayed, not to be secret


def _check(daemon: DaemonProcess, log: _Log, open_before: int, seed: int) -> None:
    code = daemon.process.poll()
    if code is not None:
        raise FuzzFailedError(
            f"seed {seed}: the daemon ended with {code}:\n{daemon.output()[-3000:]}"
        )
    faults = log.faults()
    if faults:
        raise FuzzFailedError(f"seed {seed}: {faults[-1]}")
    deadline = time.monotonic() + _GRACE_S
    while descriptors(daemon.pid) > open_before + 2:
        if time.monotonic() > deadline:
            raise FuzzFailedError(f"seed {seed}: {descriptors(daemon.pid)} descriptors stay open")
        time.sleep(0.05)  # a real process ends its connections by the real clock


def run(seed: int, *, cases: int, seconds: float) -> Report:
    """Fuzz one daemon after the other, each with a root of its own; raise at the first failure."""
    began = time.monotonic()
    total = Report()
    while total.cases < cases and time.monotonic() - began < seconds:
        most = min(CASES_EACH_DAEMON, cases - total.cases)
        left = seconds - (time.monotonic() - began)
        with tempfile.TemporaryDirectory() as base, open_daemon(Path(base)) as daemon:
            total.add(fuzz(daemon, seed + total.connections, cases=most, seconds=left))
            code = daemon.stop()
            if code:
                raise FuzzFailedError(f"a daemon's end: {code}\n{daemon.output()[-3000:]}")
        rate = total.cases / (time.monotonic() - began)
        _tell(f"{total.cases} cases, {rate:.0f} a second")
    return total


def _tell(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # what a person follows, and needs to replay


def main() -> int:
    """Run for as long as asked, print the figures, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=8 * 3600)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    flags = parser.parse_args()
    _tell(f"seed {flags.seed}")
    began = time.monotonic()
    report = run(flags.seed, cases=flags.cases, seconds=flags.seconds)
    _tell(
        f"{report.cases} cases, {report.answers} answers over {report.connections} connections"
        f" and {report.daemons} daemons in {time.monotonic() - began:.0f} s: no INTERNAL, no exit, no leak;"
        f" memory grew by {report.grown / MIB:.1f} MiB at most"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
