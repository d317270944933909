"""Mixed load on one daemon: `python -m tests.soak.run [--agents N] [--seconds S] [--seed X]`.

`make soak` is 64 agents for 30 minutes, `make soak-quick` 64 for two. Agents are processes that play turns, fork, are
killed and come again; clients connect and leave, and readers read too slowly. The one rule: at the end every
acknowledged event is in the logs, in order and once; the daemon's figures agree with the logs; and its memory and
descriptors are what they were in the second quarter.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.daemon import open_daemon
from support.figures import figure
from support.load import MIB, descriptors, resident_bytes
from support.rpc import Connection
from support.verdicts import read_all

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

AGENT = Path(__file__).with_name("agent.py")
GROWTH_BYTES = 48 * MIB
_LEAST_MEASURED = 8


@dataclass
class Soak:
    """One run: the daemon, its agents, and what was measured."""

    daemon: DaemonProcess
    journals: Path
    choose: random.Random
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])
    slow: list[socket.socket] = field(default_factory=list[socket.socket])
    kills: int = 0
    memory: list[int] = field(default_factory=list[int])
    open_files: list[int] = field(default_factory=list[int])

    def start_agent(self, number: int) -> subprocess.Popen[bytes]:
        """Start the agent of a number; it goes on with its session, or makes it."""
        words = [str(self.daemon.socket), str(self.journals / f"{number}.jsonl"), f"agent-{number}"]
        return subprocess.Popen(
            [sys.executable, str(AGENT), *words], env=self.daemon.env, stderr=subprocess.DEVNULL
        )

    def disturb(self) -> None:
        """Kill an agent and start it again, come and go, and read too slowly."""
        number = self.choose.randrange(len(self.agents))
        agent = self.agents[number]
        if agent.poll() is None:
            agent.send_signal(self.choose.choice((signal.SIGKILL, signal.SIGTERM)))
            agent.wait()
            self.kills += 1
        self.agents[number] = self.start_agent(number)
        with Connection(self.daemon.socket, name="passer-by") as one:
            one.call("session.list", limit=20)
        self._read_slowly(f"agent-{number}")

    def _read_slowly(self, name: str) -> None:
        """Follow a session from its beginning, and take a little of it now and then."""
        for one in self.slow:
            with suppress(OSError):  # nothing there, or given up by the daemon
                one.recv(2000, socket.MSG_DONTWAIT)
        if len(self.slow) >= 8:
            self.slow.pop(0).close()
        one = socket.socket(socket.AF_UNIX)
        one.connect(str(self.daemon.socket))
        line = {"jsonrpc": "2.0", "id": 1, "method": "session.subscribe"}
        one.sendall(json.dumps(line | {"params": {"id": name, "fromSeq": 0}}).encode() + b"\n")
        self.slow.append(one)

    def measure(self) -> None:
        """Note memory and descriptors."""
        self.memory.append(resident_bytes(self.daemon.pid))
        self.open_files.append(descriptors(self.daemon.pid))

    def end(self) -> None:
        """Stop everybody but the daemon."""
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for one in self.slow:
            one.close()


def run(daemon: DaemonProcess, journals: Path, *, agents: int, seconds: float, seed: int) -> Soak:
    """Put the daemon under load for so long, and return what was measured."""
    soak = Soak(daemon, journals, random.Random(seed))  # noqa: S311  # to be replayed, not secret
    soak.agents = [soak.start_agent(number) for number in range(agents)]
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline or len(soak.memory) < _LEAST_MEASURED:
            time.sleep(max(0.2, seconds / 600))  # processes live by the real clock
            soak.disturb()
            soak.measure()
            assert daemon.process.poll() is None, daemon.output()[-3000:]
    finally:
        soak.end()
    return soak


def judge(soak: Soak) -> str:
    """Demand what the run must show; return its figures."""
    daemon = soak.daemon
    acknowledged = stored = 0
    wait_settled(daemon)
    with Connection(daemon.socket, name="judge") as one:
        views = _all_sessions(one)
        for view in views:
            assert view["problem"] is None, view
        for journal in sorted(soak.journals.glob("*.jsonl")):
            name = f"agent-{journal.stem}"
            found = one.call("session.stat", id=name)["session"] if name in _ids(views) else None
            acknowledged += _judge_session(one, found, journal)
            stored += 0 if found is None else found["nextSeq"]
    counted = figure(daemon, "dshd_events_total")
    assert counted == stored, f"{counted} events were counted as durable, {stored} are in the logs"
    assert '"level":"error"' not in daemon.output()
    assert 'kind="INTERNAL"' not in daemon.call("daemon.metrics")["text"]
    warm = len(soak.memory) // 4
    grown = max(soak.memory[-warm:]) - max(soak.memory[warm : 2 * warm])
    files = max(soak.open_files[-warm:]) - max(soak.open_files[warm : 2 * warm])
    assert grown < GROWTH_BYTES, f"memory grew by {grown / MIB:.1f} MiB"
    assert files < 64, f"{files} descriptors more than at the beginning"
    return (
        f"{len(soak.agents)} agents, {soak.kills} kills: {stored} events stored, {acknowledged} acknowledged,"
        f" 0 lost; memory {grown / MIB:+.1f} MiB, descriptors {files:+d} between the second and the last quarter"
    )


def wait_settled(daemon: DaemonProcess) -> None:
    """Wait until the handles of the killed agents have ended and nothing is pending."""
    deadline = time.monotonic() + 30
    while figure(daemon, "dshd_pending_events") or figure(daemon, "dshd_connections") > 1:
        assert time.monotonic() < deadline, "what the killed agents left does not end"
        time.sleep(0.1)  # a real process ends its connections by the real clock


def _ids(views: list[Any]) -> set[str]:
    return {view["id"] for view in views}


def _all_sessions(one: Connection) -> list[Any]:
    views: list[Any] = []
    cursor = None
    while True:
        page = one.call("session.list", limit=500, cursor=cursor)
        views += page["sessions"]
        cursor = page["nextCursor"]
        if cursor is None:
            return views


def _judge_session(one: Connection, view: Any, journal: Path) -> int:
    """Compare a session with what its agent was told; return how many events that was."""
    lines = journal.read_text("utf-8").split("\n")
    told: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}")]
    least = max((note["durableSeq"] for note in told), default=0)
    if view is None:
        assert least == 0, (
            f"{journal.stem}: {least} events were acknowledged and the session is gone"
        )
        return 0
    name = view["id"]
    stored = read_all(one, name, page_events=500)
    assert [event["seq"] for event in stored] == list(range(len(stored)))
    assert len(stored) >= least, f"{name}: {least} were acknowledged, {len(stored)} are stored"
    for note in told:
        if "text" in note:
            assert stored[note["seq"]]["data"]["chunk"]["text"] == note["text"], (
                f"{name}: seq {note['seq']} is another event"
            )
    return int(least)


def main() -> int:
    """Run for as long as asked, print the figures, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    flags = parser.parse_args()
    print(f"seed {flags.seed}")  # noqa: T201  # what a person needs to repeat it
    with tempfile.TemporaryDirectory() as base, open_daemon(Path(base)) as daemon:
        journals = Path(base) / "journals"
        journals.mkdir()
        soak = run(daemon, journals, agents=flags.agents, seconds=flags.seconds, seed=flags.seed)
        print(judge(soak))  # noqa: T201  # the figures of a run
        return daemon.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
