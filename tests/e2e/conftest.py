"""A daemon for the tests that leave it as it was, and its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.daemon import DaemonProcess, open_daemon
from support.rpc import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon for all tests of a module: each uses sessions of its own, and nobody stops it."""
    with open_daemon(tmp_path_factory.mktemp("shared")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def slow_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon on whose disk each sync of a session `slow…` takes long."""
    base = tmp_path_factory.mktemp("slow")
    with open_daemon(base, module="support.misbehaving", env={"SLOW_S": "0.4"}) as daemon:
        yield daemon


@pytest.fixture
def connection(shared_daemon: DaemonProcess) -> Iterator[Connection]:
    """A greeted connection to the shared daemon."""
    with Connection(shared_daemon.socket, name="the test") as connection:
        yield connection


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon that the test may kill."""
    with open_daemon(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def fresh_id(request: pytest.FixtureRequest) -> str:
    """A session id that no other test uses."""
    return str(request.node.name)[:100]
