"""Promise 23: a sync that does not end costs no more memory than what may be pending, however much is sent meanwhile.

The rule that holds here: the client sends as fast as it is let, and every byte that was taken counts.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from crash.processes import end_on_signal
from crash.proof import Result, Size
from support import events, turns
from support.daemon import open_daemon
from support.load import MIB, resident_bytes
from support.misbehaving import ARMED
from support.rpc import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.daemon import DaemonProcess

_SECONDS = {Size.QUICK: 4, Size.FULL: 60, Size.RELEASE: 60}
_PENDING_MIB = 64


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Prove promise 23, for many events and for large ones."""
    end_on_signal()
    for what, text in {"small events": "x", "large events": "x" * 60_000}.items():
        (scratch / what).mkdir()
        with open_daemon(scratch / what, module="support.misbehaving") as daemon:
            yield _stuck_sync(daemon, what, text, _SECONDS[size])


def _stuck_sync(daemon: DaemonProcess, what: str, text: str, seconds: int) -> Result:
    """A client that appends as fast as it can while its session's sync does not end."""
    with Connection(daemon.socket, name="busy") as one:
        handle = turns.begin_turn(one, "stuck")
        batch = [events.chunk(text)] * max(1, 100_000 // len(text) // 10)
        (daemon.root / ARMED).touch()
        held, most, sent = resident_bytes(daemon.pid), 0, 0
        line = json.dumps(one.request("session.append", **handle, events=batch)).encode() + b"\n"
        one.socket.setblocking(False)  # noqa: FBT003  # the standard library's signature
        left = memoryview(line)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                left = left[one.socket.send(left) :]
            except BlockingIOError:
                with suppress(BlockingIOError):
                    one.socket.recv(1 << 20)
                most = max(most, resident_bytes(daemon.pid) - held)
                time.sleep(0.01)  # the daemon works by the real clock
            if not left:
                left, sent = memoryview(line), sent + len(line)
        (daemon.root / ARMED).unlink()
    return Result(
        23,
        f"a sync that is stuck for {seconds} s under load, {what}",
        f"{most / MIB:.0f} MiB more, {sent / MIB:.0f} MiB taken",
        f"≤ {_PENDING_MIB} MiB",
        held=most <= _PENDING_MIB * MIB,
    )
