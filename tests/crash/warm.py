"""A daemon that is forked from the proof's warm process: it has its imports, and nothing else of it.

Where a proof starts hundreds of daemons, most of its time would go into imports. The one rule: what runs after the fork
is what `dshd serve` runs, with its own environment, streams, session and signals.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from crash.processes import Forked
from dshd import main
from support.daemon import DaemonProcess

import_module("dshd.lifecycle")  # so that it is there: `main` loads it when it serves


class WarmDaemon(DaemonProcess):
    """Handled as the one that it stands for; it ends with the proof, whatever its prefix says."""

    def launch(self) -> Any:
        """Fork it and return at once."""
        self._process = cast("Any", Forked(self._run))
        return self._process

    def serve(self) -> int:
        """Be the daemon; return its exit code."""
        return main.main(self.command[self.command.index("serve") :])

    def _run(self) -> int:
        for fd, flags, path in (
            (0, os.O_RDONLY, Path(os.devnull)),
            (1, os.O_WRONLY | os.O_CREAT | os.O_APPEND, self.log),
            (2, os.O_WRONLY | os.O_CREAT | os.O_APPEND, self.log),
        ):
            os.dup2(os.open(path, flags | os.O_CLOEXEC, 0o600), fd)
        os.environ.clear()
        os.environ.update(self.env)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.argv = self.command[1:]
        return self.serve()
