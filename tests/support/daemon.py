"""A real `dshd serve` for tests: its own socket, root and state folder, started, stopped and killed at will.

The one rule: nothing of the machine's own daemon or environment gets in, and nothing outlives the test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.rpc import Connection, call

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

START_LIMIT_S = 20.0
STOP_LIMIT_S = 20.0
_FOREIGN = (
    "DSHD_",
    "XDG_",
    "LISTEN_",
    "NOTIFY_SOCKET",
    "WATCHDOG_",
    "JOURNAL_STREAM",
    "INVOCATION_ID",
)


class DaemonProcess:
    """One daemon after the other on the same socket, root and state folder.

    Args:
        base: A folder for root, state and log; `root` and `state` are made in it.
        flags: More flags of `dshd serve`.
        env: More environment, on top of a clean one.
        prefix: Put in front of the command, for a tracer or a wrapper.
        module: What is run: the program itself, or the tests' own start of it.
    """

    def __init__(
        self,
        base: Path,
        *,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        module: str = "dshd.main",
    ) -> None:
        # Apart from `base`: a socket's path has at most 107 bytes, and pytest's folders are long.
        self._sockets = Path(tempfile.mkdtemp(prefix="dshd-"))
        self.socket = self._sockets / "s"
        self.root = base / "root"
        self.state_dir = base / "state"
        self.log = base / "dshd.log"
        self.env = clean_environ(base) | {"DSHD_STATE_DIR": str(self.state_dir)} | dict(env or {})
        if module.startswith("support."):
            self.env["PYTHONPATH"] = str(Path(__file__).parents[1])
        self.command = [
            *prefix,
            *(sys.executable, "-m", module, "serve"),
            *("--socket", str(self.socket), "--root", str(self.root)),
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        assert self._process is not None, "the daemon was never started"
        return self._process

    @property
    def pid(self) -> int:
        """Its pid (that of the prefix's program, where there is one)."""
        return self.process.pid

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it and return at once."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                start_new_session=True,
            )
        return self._process

    def start(self) -> DaemonProcess:
        """Start it and return when it answers."""
        self.launch()
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self.call("daemon.status")
            except (FileNotFoundError, ConnectionRefusedError):
                code = self.process.poll()
                if code is not None:
                    raise AssertionError(f"dshd ended with {code}:\n{self.output()}") from None
                if time.monotonic() > deadline:
                    raise AssertionError(f"dshd does not answer:\n{self.output()}") from None
                time.sleep(0.01)  # a real process starts by the real clock
            else:
                return self

    def call(self, method: str, /, **params: Any) -> Any:
        """Make one call over a connection of its own and return the result.

        Raises:
            CallRefusedError: The answer is an error.
        """
        return call(self.socket, method, **params)

    def connect(self) -> Connection:
        """Open a connection to it."""
        return Connection(self.socket)

    def kill(self) -> None:
        """SIGKILL it and everything it started; nothing where it does not run."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_LIMIT_S)

    def stop(self, limit: float = STOP_LIMIT_S) -> int:
        """SIGTERM it, wait, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit)

    def output(self) -> str:
        """What it wrote to standard output and standard error, over all its lives."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def remove(self) -> None:
        """Kill it and remove its socket's folder."""
        self.kill()
        shutil.rmtree(self._sockets, ignore_errors=True)


@contextmanager
def open_daemon(base: Path, **options: Any) -> Generator[DaemonProcess, None, None]:
    """Start a daemon (see `DaemonProcess`), and kill whatever of it runs on leaving."""
    daemon = DaemonProcess(base, **options)
    try:
        yield daemon.start()
    finally:
        daemon.remove()


def clean_environ(home: Path) -> dict[str, str]:
    """The environment without what would lead to another daemon's files, and with `home` as HOME."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return kept | {"HOME": str(home)}
