from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cli.scripted import ScriptedDaemon
from dsh_client.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    made = ScriptedDaemon(tmp_path / "s")
    yield made
    made.stop()


@pytest.fixture
def dshctl(
    daemon: ScriptedDaemon, capsysbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Ended]:
    """Run `dshctl` in this process against the scripted daemon."""

    def run(*words: str) -> Ended:
        try:
            code = main(["--socket", str(daemon.path), *words])
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsysbinary.readouterr()
        return Ended(code, out.decode(), err.decode())

    return run
