from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from dsh_client.adapters.recorder import Recorder
from dsh_protocol.errors import DshdError
from support.adapters import AGENTS, check_verified
from support.daemon import DaemonProcess, clean_environ, open_daemon
from support.warm import Warm

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[DaemonProcess, None, None]:
    with open_daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running
        check_verified(running)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str], Warm], None, None]:
    """Interpreters with an agent's framework imported, by the name of its script; made when first asked for."""
    made: dict[str, Warm] = {}
    home = tmp_path_factory.mktemp("warm")

    def find(script: str) -> Warm:
        if script not in made:
            made[script] = Warm(AGENTS / script, clean_environ(home))
        return made[script]

    yield find
    for one in made.values():
        one.close()


@pytest.fixture
def recorder(daemon: DaemonProcess) -> Generator[Recorder, None, None]:
    made = Recorder(f"recorded-{uuid4()}", "test", {"socket": str(daemon.socket), "timeout": 20.0})
    yield made
    with suppress(DshdError):  # a session that was taken away
        made.close()
