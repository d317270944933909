"""One daemon for all tests of the wire, and a bystander that must never notice them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from support.daemon import open_daemon
from support.rpc import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from support.daemon import DaemonProcess

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[DaemonProcess, None, None]:
    base = tmp_path_factory.mktemp("wire") / "far" / "below"  # an id that leads up stays in sight
    base.mkdir(parents=True)
    with open_daemon(base, flags=("--batch-window", "0.05")) as process:
        yield process


@pytest.fixture
def connection(daemon: DaemonProcess) -> Generator[Connection, None, None]:
    with Connection(daemon.socket, name="wire") as connected:
        yield connected


@pytest.fixture
def fresh_id() -> Callable[[], str]:
    """Ids that no other test has."""
    return lambda: f"wire-{next(_NUMBERS)}"


@pytest.fixture(scope="package")
def bystander(daemon: DaemonProcess) -> Generator[Bystander, None, None]:
    with Connection(daemon.socket, name="bystander") as connected:
        yield Bystander(connected, daemon)


class Bystander:
    """Another client with an open session, which goes on through all that is done to the daemon."""

    def __init__(self, connection: Connection, daemon: DaemonProcess) -> None:
        self._connection = connection
        self._daemon = daemon
        self._writer = connection.call("session.create", id="bystander")["writer"]
        self._instance = connection.call("daemon.status")["server"]["instanceId"]
        self._seq = 0

    def check(self) -> None:
        """Append and flush as if nothing had happened, in the same daemon."""
        answer = self._connection.call(
            "session.append",
            id="bystander",
            writer=self._writer,
            expectedSeq=self._seq,
            events=[{"type": "feedback/record", "data": {"text": "all well"}}],
        )
        assert answer["nextSeq"] == self._seq + 1
        self._seq += 1
        status = self._connection.call("daemon.status")
        assert status["server"]["instanceId"] == self._instance
        assert self._daemon.process.poll() is None
