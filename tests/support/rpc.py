"""One connection to a daemon by the standard library alone, so that no client of ours hides a fault of the daemon.

The one rule: nothing is done on the caller's behalf. What is sent is what the test said, and every line that comes
back is kept until somebody asks for it.
"""

from __future__ import annotations

import json
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

WAIT_LIMIT_S = 20.0

Message = dict[str, Any]


class CallRefusedError(Exception):
    """The daemon answered with an error; `error` is the JSON-RPC error object."""

    def __init__(self, error: Message) -> None:
        super().__init__(f"{error.get('data', {}).get('kind')}: {error.get('message')}")
        self.error = error

    @property
    def kind(self) -> str:
        """The error's kind."""
        return str(self.error["data"]["kind"])

    @property
    def facts(self) -> Message:
        """The error's data: kind, retryable and its facts."""
        facts: Message = self.error["data"]
        return facts


class Connection:
    """A connection; calls may be pipelined, and answers asked for in any order. A context manager.

    A write handle that it opens ends with it.

    Args:
        path: The socket.
        name: Greet the daemon under this name; None for no greeting.
        limit_s: Seconds after which a wait for the daemon fails.
    """

    def __init__(
        self, path: Path | str, *, name: str | None = None, limit_s: float = WAIT_LIMIT_S
    ) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        # The kernel waits while the queue of connections is full; a time limit of Python would make it refuse.
        limit = struct.pack("@ll", int(limit_s), 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            self.socket.connect(str(path))
            self.socket.settimeout(limit_s)
        except OSError:
            self.socket.close()
            raise
        self.notifications: deque[Message] = deque()
        self._received = b""
        self._last_id = 0
        self._kept: dict[Any, Message] = {}
        if name is not None:
            client = {"name": name, "version": "1"}
            self.call("initialize", protocolVersion=1, client=client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; nothing where it is closed."""
        self.socket.close()

    # ------------------------------------------------------------------ out

    def call(self, method: str, /, **params: Any) -> Any:
        """Send a call, wait for its answer, and return the result.

        Raises:
            CallRefusedError: The answer is an error.
            ConnectionRefusedError: The connection ended before the answer.
        """
        return self.result(self.send(method, **params))

    def refusal(self, method: str, /, **params: Any) -> CallRefusedError:
        """Make a call that must be refused, and return the refusal."""
        return self.failure(self.send(method, **params))

    def send(self, method: str, /, **params: Any) -> int:
        """Send a call and return its id, for `result`."""
        request = self.request(method, **params)
        self.send_line(_encoded(request))
        return int(request["id"])

    def send_together(self, *requests: Message) -> list[Any]:
        """Send several messages, each a line, in one piece, and return their ids."""
        self.socket.sendall(b"".join(_encoded(request) + b"\n" for request in requests))
        return [request.get("id") for request in requests]

    def send_batch(self, *requests: Message) -> list[Any]:
        """Send several messages as one batch, and return their ids."""
        self.send_line(_encoded(list(requests)))
        return [request.get("id") for request in requests]

    def notify(self, method: str, /, **params: Any) -> None:
        """Send a notification."""
        self.send_line(_encoded(notification(method, **params)))

    def request(self, method: str, /, **params: Any) -> Message:
        """Return a call under the next id, to be sent with others."""
        self._last_id += 1
        return {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}

    def send_line(self, line: bytes) -> None:
        """Send any bytes as one line."""
        self.socket.sendall(line + b"\n")

    def half_close(self) -> None:
        """Tell the daemon that nothing more will be sent; answers can still be read."""
        self.socket.shutdown(socket.SHUT_WR)

    # ------------------------------------------------------------------ in

    def result(self, call_id: Any) -> Any:
        """Return the result of a call that was sent; what else comes meanwhile is kept.

        Raises:
            CallRefusedError: The answer is an error.
            ConnectionRefusedError: The connection ended before the answer.
        """
        answer = self.answer(call_id)
        if "error" in answer:
            raise CallRefusedError(answer["error"])
        return answer["result"]

    def failure(self, call_id: Any) -> CallRefusedError:
        """Return the refusal of a call that was sent and must not succeed."""
        answer = self.answer(call_id)
        assert "error" in answer, f"not refused: {answer}"
        return CallRefusedError(answer["error"])

    def answer(self, call_id: Any) -> Message:
        """Return the whole answer to a call that was sent."""
        while call_id not in self._kept:
            self._keep(self.read_message())
        return self._kept.pop(call_id)

    def notification(self) -> Message:
        """Return the next notification, waiting for it where none was kept."""
        while not self.notifications:
            self._keep(self.read_message())
        return self.notifications.popleft()

    def read_message(self) -> Any:
        """Return the next line, whatever it is: an answer, a notification, or a list of answers."""
        line = self.read_line()
        try:
            return json.loads(line)
        except RecursionError:  # CPython 3.12 gives its parser a depth of its own
            from dsh_protocol.jsontext import decode_stored  # noqa: PLC0415  # agents run without site-packages

            return decode_stored(line)

    def read_line(self) -> bytes:
        """Return the bytes of the next line, without its newline."""
        while b"\n" not in self._received:
            try:
                piece = self.socket.recv(1 << 16)
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise ConnectionRefusedError("the connection ended before the answer")
            self._received += piece
        line, self._received = self._received.split(b"\n", 1)
        return line

    def ends(self) -> bool:
        """Whether the daemon ends the connection without another line."""
        try:
            self.read_message()
        except ConnectionRefusedError:
            return True
        return False

    def _keep(self, message: Any) -> None:
        if isinstance(message, dict):
            self._keep_one(message)  # pyright: ignore[reportUnknownArgumentType]  # any JSON object
            return
        for one in message:
            self._keep_one(one)

    def _keep_one(self, message: Message) -> None:
        if "method" in message:
            self.notifications.append(message)
        else:
            self._kept[message.get("id")] = message


def notification(method: str, /, **params: Any) -> Message:
    """Return a notification, to be sent with other messages."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def call(path: Path | str, method: str, /, **params: Any) -> Any:
    """Make one call over a connection of its own. See `Connection.call`."""
    with Connection(path) as connection:
        return connection.call(method, **params)


def _encoded(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()
