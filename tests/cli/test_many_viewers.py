"""Ten viewers of one session that grows beyond what a connection may hold: memory stays flat, nobody misses one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dsh_client.cli.following import Follower
from support import events, turns
from support.daemon import open_daemon

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

VIEWERS = 10
MEGABYTES = int(os.environ.get("DSHD_VIEWED_MB", "150"))
SIZE = 20_000
PER_CALL = 50
PEAK_MIB = 96
"""At any moment, above an idle daemon: what is not durable yet, a batch that is written, what waits for viewers."""
GROWTH_MIB = 32
"""Between a quarter of the events and all of them, when everybody who reads has read."""
PATIENCE_S = 120 + MEGABYTES


def resident_mib(daemon: DaemonProcess) -> float:
    status = Path(f"/proc/{daemon.pid}/status").read_text("ascii")
    (line,) = [line for line in status.split("\n") if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


class Viewer(threading.Thread):
    """Reads to a given seq and checks the order; a stopped one begins only when it is released."""

    def __init__(self, daemon: DaemonProcess, stop: int, *, stopped: bool) -> None:
        super().__init__(daemon=True)
        self.follower = Follower(str(daemon.socket), "big", 0, 60.0)
        self.seen = 0
        self.in_order = True
        self.released = threading.Event()
        self._stop_at = stop
        self._more = threading.Condition()
        if not stopped:
            self.released.set()

    def wait_for(self, seen: int) -> None:
        """Wait until it has seen so many."""
        with self._more:
            assert self._more.wait_for(lambda: self.seen >= seen, PATIENCE_S), self.seen

    def run(self) -> None:
        batches = self.follower.batches()
        for batch in batches:
            for event in batch:
                self.in_order &= event["seq"] == self.seen
                self.seen += 1
            with self._more:
                self._more.notify_all()
            if self.seen >= self._stop_at:
                break
            self.released.wait()
        batches.close()  # type: ignore[attr-defined]  # a generator is closed with its connection


def settled_mib(daemon: DaemonProcess, viewers: list[Viewer], end: int) -> float:
    """The daemon's memory once everybody who reads has everything."""
    for viewer in viewers:
        viewer.wait_for(end)
    return resident_mib(daemon)


@pytest.mark.slow
@pytest.mark.alone
def test_ten_viewers_of_a_session_that_grows(tmp_path: Path) -> None:
    calls = MEGABYTES * 1_000_000 // (SIZE * PER_CALL)
    with open_daemon(tmp_path) as daemon, daemon.connect() as agent:
        handle = turns.begin_turn(agent, "big", "a")
        total = 5 + calls * PER_CALL
        viewers = [Viewer(daemon, total, stopped=number == 0) for number in range(VIEWERS)]
        for viewer in viewers:
            viewer.start()
        before = most = resident_mib(daemon)
        settled: list[float] = []
        # Text that does not pack well, so that what is stored is really as large as it is.
        text = os.urandom(SIZE // 2).hex()
        for call in range(1, calls + 1):
            agent.call("session.append", **handle, events=[events.chunk(text)] * PER_CALL)
            most = max(most, resident_mib(daemon))
            if call in {calls // 4, calls}:
                agent.call("session.flush", **handle)
                settled.append(settled_mib(daemon, viewers[1:], 5 + call * PER_CALL))
        viewers[0].released.set()
        for viewer in viewers:
            viewer.join(PATIENCE_S)
            most = max(most, resident_mib(daemon))
    assert [viewer.seen for viewer in viewers] == [total] * VIEWERS
    assert all(viewer.in_order for viewer in viewers)
    assert most - before < PEAK_MIB, (before, settled, most)
    assert settled[1] - settled[0] < GROWTH_MIB, (before, settled, most)
