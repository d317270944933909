"""Clients that take and give nothing: each costs its budget and no more, and nobody else notices."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from support import events, turns
from support.figures import figure, wait_figure
from support.load import (
    MIB,
    checkpoint_seconds,
    cpu_seconds,
    descriptors,
    resident_bytes,
    tell,
    wait_descriptors,
)
from support.rpc import Connection

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

pytestmark = pytest.mark.alone

NOISE_S = 0.3  # of a busy machine, on top of twice the time that it takes alone


def connect(stack: ExitStack, daemon: DaemonProcess) -> socket.socket:
    one = stack.enter_context(socket.socket(socket.AF_UNIX))
    one.settimeout(20)
    one.connect(str(daemon.socket))
    return one


@pytest.mark.slow
def test_a_hundred_clients_that_never_read_cost_their_budget_and_then_their_connection(
    daemon: DaemonProcess,
) -> None:
    with Connection(daemon.socket) as one:
        handle = turns.begin_turn(one, "large")
        for _ in range(4):
            one.call("session.append", **handle, events=[events.chunk("x" * 1000)] * 1000)
        one.call("session.flush", **handle)
    alone = checkpoint_seconds(daemon, "before", 30)
    open_before, held_before = descriptors(daemon.pid), resident_bytes(daemon.pid)
    line = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "session.read",
        "params": {"id": "large", "offset": 4},
    }
    asked = (json.dumps(line).encode() + b"\n") * 300
    with ExitStack() as stack:
        for _ in range(100):
            connect(stack, daemon).sendall(asked)
        most = 0
        beside = checkpoint_seconds(daemon, "meanwhile", 30)
        began = time.monotonic()
        while time.monotonic() - began < 15:
            most = max(most, resident_bytes(daemon.pid))
            time.sleep(0.2)
        wait_descriptors(daemon.pid, open_before + 2, 15)
        wait_figure(daemon, "dshd_connections_overdue_total", 100, 15)
    grown = (most - held_before) / MIB
    tell(
        f"100 that never read: {grown:.0f} MiB; checkpoint {alone:.4f} s alone, {beside:.4f} s",
    )
    assert grown <= 150
    assert beside <= 2 * alone + NOISE_S


@pytest.mark.slow
def test_five_hundred_slow_writers_delay_nobody_and_are_given_up_in_the_end(
    daemon: DaemonProcess,
) -> None:
    places = daemon.call("daemon.status")["limits"]["maxConnections"]
    open_before = descriptors(daemon.pid)
    with ExitStack() as stack:
        slow = [connect(stack, daemon) for _ in range(min(500, places - 8))]
        for one in slow:
            one.sendall(b"{")
        held_before, spent_before = resident_bytes(daemon.pid), cpu_seconds(daemon.pid)
        waits: list[float] = []
        for _ in range(5):
            for one in slow:
                one.sendall(b" ")
            began = time.monotonic()
            with Connection(daemon.socket, name="new") as new:
                new.call("session.list")
            waits.append(time.monotonic() - began)
            time.sleep(1)
        spent = cpu_seconds(daemon.pid) - spent_before
        each = (resident_bytes(daemon.pid) - held_before) / len(slow)
        tell(f"{len(slow)} slow: served in {sorted(waits)[2]:.4f} s; {each:.0f} bytes each")
        assert sorted(waits)[2] < 0.1 + NOISE_S
        assert each <= 64 * 1024
        assert spent < 4, "idle connections keep the daemon busy"
        wait_descriptors(daemon.pid, open_before + 2, 60)


def test_one_that_says_nothing_is_closed_at_the_hello_deadline_and_one_that_did_is_not(
    daemon: DaemonProcess,
) -> None:
    with ExitStack() as stack:
        began = time.monotonic()
        silent = connect(stack, daemon)
        spoke = stack.enter_context(Connection(daemon.socket, name="spoke once"))
        assert silent.recv(1) == b""
        assert 4 < time.monotonic() - began < 15
        assert spoke.call("daemon.status")
        assert figure(daemon, "dshd_connections_overdue_total") == 1


def test_a_line_of_four_gigabytes_is_refused_at_the_cap(daemon: DaemonProcess) -> None:
    before = resident_bytes(daemon.pid)
    piece, sent = b"x" * MIB, 0
    with Connection(daemon.socket) as one:
        with suppress(BrokenPipeError, ConnectionResetError):
            while sent < 4096 * MIB:
                one.socket.sendall(piece)
                sent += len(piece)
        assert one.read_message()["error"]["data"]["kind"] == "FRAME_TOO_LARGE"
        assert one.ends()
    assert sent <= 18 * MIB
    assert daemon.call("daemon.status")
    assert resident_bytes(daemon.pid) - before <= 4 * MIB
