"""One daemon for all cases that need one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.daemon import open_daemon

if TYPE_CHECKING:
    from collections.abc import Generator

    from support.daemon import DaemonProcess

_DEEP = 10_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[DaemonProcess, None, None]:
    """A daemon of this module; each test uses ids of its own."""
    with open_daemon(tmp_path_factory.mktemp("conformance")) as process:
        process.root.mkdir(exist_ok=True)
        yield process


@pytest.fixture
def deep_json() -> Generator[None, None, None]:
    """Let the tests' own reader and printer of JSON follow values nested some thousand deep."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEEP)
    yield
    sys.setrecursionlimit(before)
