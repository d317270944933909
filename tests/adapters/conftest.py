from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.daemon import DaemonProcess, open_daemon

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[DaemonProcess, None, None]:
    with open_daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running
