"""A stop ends in time whatever the disk does, and nobody is told that all is durable when it is not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from dsh_protocol.errors import EXIT_FAILURE
from support import events, turns
from support.daemon import open_daemon
from support.misbehaving import ARMED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.daemon import DaemonProcess

_ENDS_WITHIN_S = 6.5
"""Five seconds by the clock of a machine that does other things, too."""


@pytest.fixture
def misbehaving(tmp_path: Path) -> Iterator[DaemonProcess]:
    """Return a daemon for whose sessions `stuck…` and `sealed…` the disk misbehaves once it is armed."""
    with open_daemon(tmp_path, module="support.misbehaving") as daemon:
        yield daemon


@pytest.mark.slow
@pytest.mark.parametrize("waits", ["nobody waits", "a flush waits"])
def test_a_sync_that_never_ends_delays_a_stop_by_five_seconds_in_all(
    misbehaving: DaemonProcess, waits: str
) -> None:
    with misbehaving.connect() as one, misbehaving.connect() as other:
        turns.begin_turn(other, "quiet", "x")
        handle = turns.begin_turn(one, "stuck")
        (misbehaving.root / ARMED).touch()
        one.call("session.append", **handle, events=[events.chunk()], expectedSeq=4)
        if waits == "a flush waits":
            one.send("session.flush", **handle)
        time.sleep(0.3)  # the sync has begun, by the real clock
        began = time.monotonic()
        assert misbehaving.stop(limit=30) == EXIT_FAILURE
        assert time.monotonic() - began < _ENDS_WITHIN_S
    lost = [line for line in misbehaving.output().split("\n") if "events_lost" in line]
    assert len(lost) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("session_id", "kind"), [("stuck", "WRITE_FAILED"), ("sealed", "SESSION_SEALED")]
)
def test_a_shutdown_that_gives_events_up_says_so_and_stops_all_the_same(
    misbehaving: DaemonProcess, session_id: str, kind: str
) -> None:
    with misbehaving.connect() as one, misbehaving.connect() as other:
        turns.begin_turn(other, "quiet", "x")
        handle = turns.begin_turn(one, session_id)
        (misbehaving.root / ARMED).touch()
        one.call("session.append", **handle, events=[events.chunk()], expectedSeq=4)
        began = time.monotonic()
        refused = other.refusal("daemon.shutdown")
        assert refused.kind == kind
        assert refused.facts["sessions"] == [{"id": session_id, "firstSeq": 4, "nextSeq": 5}]
        assert misbehaving.process.wait(20) == EXIT_FAILURE
        assert time.monotonic() - began < 2 * _ENDS_WITHIN_S


def test_a_shutdown_that_writes_everything_says_nothing_else(misbehaving: DaemonProcess) -> None:
    with misbehaving.connect() as one:
        handle = turns.begin_turn(one, "s")
        one.call("session.append", **handle, events=[events.chunk()], expectedSeq=4)
        assert one.call("daemon.shutdown") == {}
        assert misbehaving.process.wait(20) == 0
