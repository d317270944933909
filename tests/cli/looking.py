"""What the tests that look at whole sessions share: recorded logs below a real daemon, and `dshctl` in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsh_client.cli.main import main
from support.vectors import vectors

if TYPE_CHECKING:
    import pytest

    from support.daemon import DaemonProcess

CRASHED = "derived-resumed-after-crash--acp-fs-read-window"
OPEN = "derived-open-after-answered-call--acp-workspace-edit"
LOGS = (
    "web-goal-multi-turn-actions",
    CRASHED,
    OPEN,
    "acp-code-mode-turn",
    "acp-multi-turn",
    "derived-fork-child--acp-multi-turn",
    "derived-crash-in-tool--acp-tool-call-turn",
    "headless-compaction-recovery",
)


def place_logs(daemon: DaemonProcess, names: tuple[str, ...] = LOGS) -> None:
    """Lay recorded logs below the daemon's root, each under its own name."""
    for name in names:
        text = (vectors() / "logs" / f"{name}.jsonl").read_bytes()
        folder = daemon.root / "--fixture--" / name
        folder.mkdir(parents=True, mode=0o700)
        log = folder / "session.jsonl"
        log.write_bytes(text.replace(b'"id":"s"', f'"id":"{name}"'.encode(), 1))
        log.chmod(0o600)


class Dshctl:
    """`dshctl` against one daemon, in this process."""

    def __init__(self, daemon: DaemonProcess, capture: pytest.CaptureFixture[bytes]) -> None:
        self._daemon = daemon
        self._capture = capture
        self.out = ""
        self.err = ""

    def __call__(self, *words: str) -> int:
        """Run it; return the exit code and keep what it printed."""
        self._capture.readouterr()
        try:
            code = main(["--socket", str(self._daemon.socket), *words])
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = self._capture.readouterr()
        self.out, self.err = out.decode(), err.decode()
        return code

    def text(self, *words: str) -> str:
        """Return what a command that must succeed printed."""
        assert self(*words) == 0, self.err
        return self.out

    def document(self, *words: str) -> Any:
        """Return the one JSON document of a command that must succeed."""
        text = self.text("-o", "json", *words)
        assert text.count("\n") == 1
        return json.loads(text)
