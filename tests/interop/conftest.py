"""One daemon for all recorded logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.daemon import open_daemon

if TYPE_CHECKING:
    from collections.abc import Generator

    from support.daemon import DaemonProcess

# Nothing is written by the clock in these tests: a batch is what was admitted up to a flush or a checkpoint.
BATCH_WINDOW = "60"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[DaemonProcess, None, None]:
    base = tmp_path_factory.mktemp("interop")
    with open_daemon(base, flags=("--batch-window", BATCH_WINDOW)) as process:
        yield process
