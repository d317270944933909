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
ALLOWED_MIB = 200


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
        if not stopped:
            self.released.set()

    def run(self) -> None:
        batches = self.follower.batches()
        for batch in batches:
            for event in batch:
                self.in_order &= event["seq"] == self.seen
                self.seen += 1
            if self.seen >= self._stop_at:
                break
            self.released.wait()
        batches.close()  # type: ignore[attr-defined]  # a generator is closed with its connection


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
        before = resident_mib(daemon)
        most = before
        # Text that does not pack well, so that what is stored is really as large as it is.
        text = os.urandom(SIZE // 2).hex()
        for _ in range(calls):
            agent.call("session.append", **handle, events=[events.chunk(text)] * PER_CALL)
            most = max(most, resident_mib(daemon))
        agent.call("session.flush", **handle)
        most = max(most, resident_mib(daemon))
        viewers[0].released.set()
        for viewer in viewers:
            viewer.join(120)
            most = max(most, resident_mib(daemon))
    assert [viewer.seen for viewer in viewers] == [total] * VIEWERS
    assert all(viewer.in_order for viewer in viewers)
    assert most - before < ALLOWED_MIB, (before, most)
