"""A real `dshd serve` for tests: its own socket, root and state folder, started, stopped and killed at will.

The one rule: nothing of the machine's own daemon or environment gets in, and nothing outlives the test.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

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


class CallRefusedError(Exception):
    """The daemon answered with an error; `error` is the JSON-RPC error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('data', {}).get('kind')}: {error.get('message')}")
        self.error = error

    @property
    def kind(self) -> str:
        """The error's kind."""
        return str(self.error["data"]["kind"])


class DaemonProcess:
    """One daemon after the other on the same socket, root and state folder.

    Args:
        base: A folder for root, state and log; `root` and `state` are made in it.
        flags: More flags of `dshd serve`.
        env: More environment, on top of a clean one.
        prefix: Put in front of the command, for a tracer or a wrapper.
    """

    def __init__(
        self,
        base: Path,
        *,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        # Apart from `base`: a socket's path has at most 107 bytes, and pytest's folders are long.
        self._sockets = Path(tempfile.mkdtemp(prefix="dshd-"))
        self.socket = self._sockets / "s"
        self.root = base / "root"
        self.state_dir = base / "state"
        self.log = base / "dshd.log"
        self.env = clean_environ(base) | {"DSHD_STATE_DIR": str(self.state_dir)} | dict(env or {})
        self._argv = [
            *prefix,
            *(sys.executable, "-m", "dshd.main", "serve"),
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
                self._argv,
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

    def call(self, method: str, **params: Any) -> Any:
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


class Connection:
    """One connection by the standard library alone, so that no client of ours hides a fault of the daemon.

    A write handle that it opens ends with it. A context manager.
    """

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(START_LIMIT_S)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._received = b""
        self._last_id = 0
        self._kept: dict[Any, dict[str, Any]] = {}
        self.notifications: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, method: str, **params: Any) -> Any:
        """Send a call, wait for its answer, and return the result.

        Raises:
            CallRefusedError: The answer is an error.
            ConnectionRefusedError: The connection ended before the answer.
        """
        return self.result(self.send(method, **params))

    def send(self, method: str, **params: Any) -> int:
        """Send a call and return its id, for `result`."""
        self._last_id += 1
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        self.send_line(json.dumps(request).encode())
        return self._last_id

    def send_line(self, line: bytes) -> None:
        """Send any bytes as one line."""
        self.socket.sendall(line + b"\n")

    def result(self, call_id: int) -> Any:
        """Return the result of a call that was sent; other answers and notifications are kept meanwhile."""
        while call_id not in self._kept:
            message = self.read_message()
            if "id" in message:
                self._kept[message["id"]] = message
            else:
                self.notifications.append(message)
        answer = self._kept.pop(call_id)
        if "error" in answer:
            raise CallRefusedError(answer["error"])
        return answer["result"]

    def read_message(self) -> dict[str, Any]:
        """Return the next line, whatever it is."""
        while b"\n" not in self._received:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise ConnectionRefusedError("the connection ended before the answer")
            self._received += piece
        line, self._received = self._received.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message


def call(path: Path, method: str, **params: Any) -> Any:
    """Make one call over a connection of its own. See `Connection.call`."""
    with Connection(path) as connection:
        return connection.call(method, **params)
