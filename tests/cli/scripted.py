"""A daemon that answers from a script: a thread, a real Unix socket, and one function for each method.

Not a model of dshd: it answers what a test says, and keeps what it was asked.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import DshdError, MethodNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Answer = Callable[[dict[str, Any]], Any]

SERVER = {"name": "dshd", "version": "9.9.9", "pid": 4312, "instanceId": "i1"}


class ScriptedDaemon:
    """Listens at once; `stop` ends it. `answers` may be changed at any time, `calls` holds what was asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Answer] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def asked(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of every call of a method so far."""
        return [params for name, params in self.calls if name == method]

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.path.unlink(missing_ok=True)
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                answer = {"jsonrpc": "2.0", "id": request["id"], **self._answer(request)}
                connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        method, params = request["method"], request.get("params", {})
        if method == "initialize" and method not in self.answers:
            return {
                "result": {"protocolVersion": 1, "server": SERVER, "limits": {}, "capabilities": {}}
            }
        self.calls.append((method, params))
        try:
            if method not in self.answers:
                raise MethodNotFoundError(f"no method '{method}'")
            return {"result": self.answers[method](params)}
        except DshdError as error:
            return {"error": error.to_wire()}


def session(session_id: str, **changes: Any) -> dict[str, Any]:
    """Return a session as the wire shows it, idle unless changed."""
    return {
        "id": session_id,
        "header": {
            "version": 0,
            "id": session_id,
            "createdAt": 0,
            "cwd": "/w",
            "delegationDepth": 0,
        },
        "state": "idle",
        "nextSeq": 12,
        "durableSeq": 12,
        "sizeBytes": 900,
        "revision": "r1",
        "createdAt": 1_700_000_000_000,
        "updatedAt": 1_700_000_000_000,
        "title": None,
        "turns": 2,
        "openTurn": None,
        "openStep": None,
        "pendingCalls": [],
        "writer": None,
        "problem": None,
        **changes,
    }


REPAIR = {
    "callId": "c1",
    "name": "append_line",
    "arguments": "{}",
    "turn": 1,
    "step": 1,
    "code": "TOOL_OUTCOME_UNKNOWN",
    "callSeq": 7,
    "idempotencyKey": "dshd1-00",
    "message": "verify first",
}
CLOSERS: list[dict[str, Any]] = [{"type": "turn/end", "seq": 12, "time": 1, "data": {}}]
PREVIEW: dict[str, Any] = {
    "committed": False,
    "repairs": [REPAIR],
    "closers": CLOSERS,
    "nextSeq": 14,
}
PROBLEM = {"kind": "LOG_CORRUPT", "message": "bad frame", "path": "/r/a1/log", "offset": 77}
BROKEN = session("a1", state="interrupted", openTurn=1, openStep=1, pendingCalls=["c1"])
