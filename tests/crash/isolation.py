"""Promises 18 to 21: what is wrong with one session or client costs the others next to nothing.

Every comparison is made in turns with its opposite, on one daemon, in one run: the same clients on healthy sessions and
on bad ones, or greedy clients that are there and that are not. The one rule: what is judged is a client that did
nothing wrong. What the bad ones get is judged elsewhere.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from crash.processes import end_on_signal, end_with_parent, kill
from crash.proof import Result, Size
from support import events, turns
from support.daemon import open_daemon
from support.load import MIB, descriptors, resident_bytes
from support.loop_gap import GAP_S, LINES, WORKS, longest_of_line, longest_of_work
from support.misbehaving import ARMED
from support.rpc import CallRefusedError, Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from support.daemon import DaemonProcess

_TURNS = (3, 5, 40)
_CHECKPOINTS = 60
_FLOOR_S = 0.002
"""Below this a checkpoint is as quick as the clock of a busy machine can tell."""
_NEVER_READ, _GROWTH_MIB, _BACK_S = 100, 150, 15
_LONG, _BATCH = 5000, 25
_SLOW, _SERVED_S = 500, 0.1
_PAUSE_S = 0.005


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Try each kind of bad neighbour; see the module."""
    end_on_signal()
    rounds = _TURNS[list(Size).index(size)]
    with _daemon(scratch / "sessions") as daemon:
        yield _bad_sessions(daemon, rounds)
    for pages, page in {"pages": None, "the largest pages": 16 * MIB}.items():
        with _daemon(scratch / pages) as daemon:
            yield from _never_read(daemon, rounds, pages, page)
    with _daemon(scratch / "slow") as daemon:
        yield _slow_writers(daemon)
    yield _loop_gaps()


@contextmanager
def _daemon(base: Path) -> Generator[DaemonProcess, None, None]:
    base.mkdir()
    with open_daemon(base, module="support.misbehaving") as daemon:
        yield daemon


# ---------------------------------------------------------------------- sessions


def _bad_sessions(daemon: DaemonProcess, rounds: int) -> Result:
    """Three clients at work on a sealed, a corrupt and a slow session, or on three healthy ones."""
    bad = [_sealed(daemon), _corrupt(daemon), "slow"]
    with Connection(daemon.socket) as one:
        turns.write_session(one, "slow")
        for number in range(3):
            turns.write_session(one, f"healthy {number}")
    (daemon.root / ARMED).touch()
    healthy: list[float] = []
    beside: list[float] = []
    with Connection(daemon.socket, name="bystander") as one:
        bystander = turns.begin_turn(one, "bystander")
        for _ in range(rounds):
            for names, waits in ((["healthy 0", "healthy 1", "healthy 2"], healthy), (bad, beside)):
                with _at_work(daemon, names):
                    waits.extend(_checkpoints(one, bystander))
    return _compared(18, "checkpoints beside sealed, corrupt and slow sessions", healthy, beside)


def _sealed(daemon: DaemonProcess) -> str:
    """Make a session whose log cannot be written, nor mended."""
    armed = daemon.root / ARMED
    with Connection(daemon.socket) as one:
        handle = turns.begin_turn(one, "sealed")
        armed.touch()
        with suppress(CallRefusedError):
            one.call("checkpoint.request", **handle, events=[events.chunk()])
        kind = one.refusal("checkpoint.request", **handle, events=[events.chunk()]).kind
        assert kind == "SESSION_SEALED", kind
    armed.unlink()
    return "sealed"


def _corrupt(daemon: DaemonProcess) -> str:
    """Make a session in whose log a byte of what is acknowledged is another one."""
    with Connection(daemon.socket) as one:
        turns.write_session(one, "corrupt")
    (log,) = daemon.root.glob("**/corrupt/session.jsonl*")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    return "corrupt"


@contextmanager
def _at_work(daemon: DaemonProcess, sessions: list[str]) -> Generator[None, None, None]:
    """A process for each session that opens it, writes a turn and closes it, again and again."""
    pids = [_forked(partial(_work, daemon, name)) for name in sessions]
    time.sleep(0.1)  # they have begun, by the real clock
    try:
        yield
    finally:
        for pid in pids:
            kill(pid)


def _work(daemon: DaemonProcess, session_id: str) -> None:
    with Connection(daemon.socket, name=session_id, limit_s=60) as one:
        while True:
            with suppress(CallRefusedError):
                opened = one.call("session.open", id=session_id, access="write", takeover=True)
                handle = {"id": session_id, "writer": opened["writer"]}
                if opened["recovery"] is not None:
                    one.call("session.recover", **handle)
                one.call("session.append", **handle, events=[events.title()])
                one.call("session.flush", **handle)
                one.call("session.close", **handle)
            time.sleep(_PAUSE_S)


def _checkpoints(one: Connection, handle: dict[str, Any]) -> list[float]:
    waits: list[float] = []
    for _ in range(_CHECKPOINTS):
        began = time.monotonic()
        one.call("checkpoint.request", **handle, events=[events.chunk()])
        waits.append(time.monotonic() - began)
        time.sleep(0.001)  # others have a turn, too
    return waits


def _compared(promise: int, what: str, alone: list[float], beside: list[float]) -> Result:
    before, after = _p99(alone), _p99(beside)
    return Result(
        promise,
        what,
        f"p99 {after * 1000:.1f} ms, {before * 1000:.1f} ms otherwise, of {len(beside)} each",
        "within twice",
        held=after <= 2 * max(before, _FLOOR_S),
        timed=True,
    )


def _p99(waits: list[float]) -> float:
    return sorted(waits)[len(waits) * 99 // 100]


# ---------------------------------------------------------------------- clients


def _never_read(
    daemon: DaemonProcess, rounds: int, pages: str, page: int | None
) -> Iterator[Result]:
    """Clients that ask for pages of a long session and take none of the answers; or as many that take them."""
    with Connection(daemon.socket) as one:
        asked = _long_session(one, page)
        bystander = turns.begin_turn(one, "bystander")
        reading: list[float] = []
        beside: list[float] = []
        most, slowest_end = 0, 0.0
        for _ in range((rounds + 2) // 3):
            pid = _forked(lambda: _read_once(daemon, asked))
            reading += [wait for _ in range(3) for wait in _checkpoints(one, bystander)]
            kill(pid)
            time.sleep(0.5)  # the daemon sees them leave by the real clock
            fds, held = descriptors(daemon.pid), resident_bytes(daemon.pid)
            with ExitStack() as stack:
                began = time.monotonic()
                for _ in range(_NEVER_READ):
                    _connect(stack, daemon).sendall(asked * 300)
                while descriptors(daemon.pid) < fds + _NEVER_READ // 2:
                    assert time.monotonic() - began < _BACK_S, "they are not accepted"
                while descriptors(daemon.pid) > fds + 2 and time.monotonic() - began < 60:
                    if len(beside) < len(reading):
                        beside += _checkpoints(one, bystander)
                    most = max(most, resident_bytes(daemon.pid) - held)
                    time.sleep(0.05)  # a real process ends its connections by the real clock
                slowest_end = max(slowest_end, time.monotonic() - began)
    what = f"{_NEVER_READ} clients that never read {pages}"
    yield _compared(19, f"checkpoints beside {what}, and beside as many that do", reading, beside)
    yield Result(
        19,
        f"memory for {what}",
        f"{most / MIB:.0f} MiB more",
        f"≤ {_GROWTH_MIB} MiB",
        held=most <= _GROWTH_MIB * MIB,
    )
    yield Result(
        19,
        f"the end of {what}",
        f"descriptors back after {slowest_end:.1f} s",
        f"≤ {_BACK_S * (1 if page is None else 2)} s",
        held=slowest_end <= _BACK_S * (1 if page is None else 2),
        timed=True,
    )


def _long_session(one: Connection, page: int | None) -> bytes:
    """Make a session of some megabytes; return the line that asks for a page of it."""
    handle = turns.begin_turn(one, "large")
    for _ in range(_LONG // _BATCH):  # as an agent writes it, a little at a time
        batch = [events.chunk("x" * 1000)] * _BATCH
        one.call("checkpoint.request", **handle, events=batch)
    params: dict[str, Any] = {"id": "large", "offset": 4}
    if page is not None:
        params["maxBytes"] = page
    one.call("session.read", **params)
    return json.dumps(one.request("session.read", **params)).encode() + b"\n"


def _read_once(daemon: DaemonProcess, asked: bytes) -> None:
    """Be a hundred clients that ask for a page each, and read it."""
    with ExitStack() as stack:
        readers = [_connect(stack, daemon) for _ in range(_NEVER_READ)]
        for one in readers:
            one.sendall(asked)
        for one in readers:
            with one.makefile("rb") as lines:
                lines.readline()
        time.sleep(60)  # until it is killed


def _slow_writers(daemon: DaemonProcess) -> Result:
    """Clients that send one byte a second, and a new one that comes meanwhile."""
    places = daemon.call("daemon.status")["limits"]["maxConnections"]
    with ExitStack() as stack:
        slow = [_connect(stack, daemon) for _ in range(min(_SLOW, places - 8))]
        for one in slow:
            one.sendall(b"{")
        waits: list[float] = []
        held = resident_bytes(daemon.pid)
        for _ in range(4):
            for one in slow:
                one.sendall(b" ")
            for _ in range(5):
                began = time.monotonic()
                with Connection(daemon.socket, name="new") as new:
                    new.call("session.list")
                waits.append(time.monotonic() - began)
                time.sleep(0.2)  # one byte a second is sent by the real clock
        each = (resident_bytes(daemon.pid) - held) / len(slow)
    served = sorted(waits)[len(waits) * 9 // 10]
    return Result(
        20,
        f"{len(slow)} clients that send one byte a second",
        f"nine in ten new ones served within {served * 1000:.1f} ms, {each / 1024:.1f} KiB each",
        f"< {_SERVED_S * 1000:.0f} ms, ≤ 64 KiB",
        held=served < _SERVED_S and each <= 64 * 1024,
        timed=True,
    )


def _connect(stack: ExitStack, daemon: DaemonProcess) -> socket.socket:
    one = stack.enter_context(socket.socket(socket.AF_UNIX))
    one.settimeout(20)
    one.connect(str(daemon.socket))
    return one


def _forked(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        with suppress(BaseException):
            run()
        os._exit(1)
    return pid


# ---------------------------------------------------------------------- the loop


def _loop_gaps() -> Result:
    """Every line and every work that is meant to keep the loop; see support/loop_gap.py."""
    found = {name: trio.run(longest_of_line, line()) for name, line in LINES.items()}
    found |= {work.__name__: trio.run(longest_of_work, work) for work in WORKS}
    worst = max(found, key=lambda name: found[name].longest)
    over = [
        f"{name}: {steps.longest * 1000:.0f} ms in {steps.whose}"
        for name, steps in found.items()
        if steps.longest > GAP_S
    ]
    return Result(
        21,
        f"the longest step of the loop over {len(found)} kinds of work",
        f"{found[worst].longest * 1000:.0f} ms ({worst})",
        f"≤ {GAP_S * 1000:.0f} ms",
        held=not over,
        why=tuple(over),
        timed=True,
    )
