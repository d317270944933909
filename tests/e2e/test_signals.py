"""Signals, and daemons that stand still."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from support import events, turns
from support.rpc import Connection
from support.verdicts import read_all

if TYPE_CHECKING:
    from support.daemon import DaemonProcess


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_stop_ends_it_cleanly_however_often_it_comes(
    daemon: DaemonProcess, fresh_id: str, number: signal.Signals
) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(Connection(daemon.socket)) for _ in range(50)]
        idle[0].socket.sendall(b'{"jsonrpc":"2.0","id":1,"meth')
        one = stack.enter_context(Connection(daemon.socket, name="busy"))
        handle = turns.begin_turn(one, fresh_id)
        one.call("session.append", **handle, events=[events.chunk("x" * 100_000)] * 20)
        began = time.monotonic()
        while daemon.process.poll() is None and time.monotonic() - began < 20:
            daemon.process.send_signal(number)
            time.sleep(0.001)  # one after the other until it has ended, not a flood of them
        assert daemon.process.returncode == 0
        assert time.monotonic() - began < 8
    daemon.start()
    with Connection(daemon.socket) as again:
        assert len(read_all(again, fresh_id)) == 24


def test_other_signals_change_nothing(daemon: DaemonProcess) -> None:
    with Connection(daemon.socket, name="here") as one:
        daemon.process.send_signal(signal.SIGUSR1)
        assert one.call("daemon.status")
        daemon.process.send_signal(signal.SIGPIPE)
        assert one.call("daemon.status")


def test_a_daemon_that_stood_still_gives_nobody_up_when_it_goes_on(
    daemon: DaemonProcess, fresh_id: str
) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(Connection(daemon.socket, name="patient"))
        handle = turns.begin_turn(one, fresh_id)
        fresh = stack.enter_context(Connection(daemon.socket))
        daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(
            6
        )  # longer than the hello deadline; a real process stands still by the real clock
        call_id = fresh.send("session.stat", id=fresh_id)
        waiting = one.send("checkpoint.request", **handle, events=[events.chunk()])
        daemon.process.send_signal(signal.SIGCONT)
        assert fresh.result(call_id)["session"]["nextSeq"] >= 4
        assert one.result(waiting)["durableSeq"] == 5
