"""What a running daemon costs, as the kernel counts it, and how quickly it serves somebody else meanwhile."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support import events, turns
from support.rpc import Connection

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

MIB = 1024 * 1024


def resident_bytes(pid: int) -> int:
    """Memory that the process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def descriptors(pid: int) -> int:
    """How many descriptors it has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def cpu_seconds(pid: int) -> float:
    """What it has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 0.01


def checkpoint_seconds(daemon: DaemonProcess, session_id: str, count: int) -> float:
    """The time that nine in ten of `count` checkpoints of a fresh client stay below."""
    with Connection(daemon.socket, name="bystander") as one:
        handle = turns.begin_turn(one, session_id)
        waits: list[float] = []
        for _ in range(count):
            began = time.monotonic()
            one.call("checkpoint.request", **handle, events=[events.chunk()])
            waits.append(time.monotonic() - began)
    return sorted(waits)[count * 9 // 10]


def wait_descriptors(pid: int, most: int, limit_s: float) -> float:
    """Wait until the process has no more than `most` descriptors; return the seconds it took."""
    began = time.monotonic()
    while descriptors(pid) > most:
        assert time.monotonic() - began < limit_s, f"{descriptors(pid)} descriptors are still open"
        time.sleep(0.1)  # a real process ends its connections by the real clock
    return time.monotonic() - began


def tell(figure: str) -> None:
    """Show a measured figure; pytest lets it through with `-s`."""
    print(figure)  # noqa: T201  # a figure is for people, not for the test
