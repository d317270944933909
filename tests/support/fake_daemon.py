"""A daemon that fails on command: a real Unix socket, sessions in memory, faults as a script.

It keeps as much of the wire's rules as a client sees: seqs, duplicates, admitted versus durable, writers, `continue`.
What it holds durable survives `crash`, the rest does not. One lock; one thread for each connection.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dsh_protocol.errors import (
    DshdError,
    EventInvalidError,
    SeqConflictError,
    SessionExistsError,
    SessionNotFoundError,
    WriterLostError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]


@dataclass
class Fault:
    """What goes wrong with the next call of `method`.

    `kind`: `lose-call` (read, not carried out, connection cut), `lose-reply` (carried out, cut), `half-reply` (carried
    out, half the answer, cut), `silence` (carried out, never answered), `ignore` (not carried out, never answered),
    `crash` (what is not durable is gone, nobody listens), `refuse` (answers `error`), `fail` (admits, then answers
    `error`).
    """

    method: str
    kind: str
    error: DshdError | None = None
    skip: int = 0


@dataclass
class FakeSession:
    header: Json
    events: list[Json] = field(default_factory=list[Json])
    durable: int = 0
    writer: str | None = None
    end_seed: bool = False
    recovery: Json | None = None

    @property
    def next_seq(self) -> int:
        return len(self.events) + int(self.end_seed)


class FakeDaemon:
    """It keeps in `calls` every (method, params) read, in order, and tells `on_call` of each before it acts on it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fake-"))
        self.path = self._folder / "s"
        self.sessions: dict[str, FakeSession] = {}
        self.calls: list[tuple[str, Json]] = []
        self.cancelled: list[Any] = []
        self.connections = 0
        self.max_line_bytes = 16 * 1024 * 1024
        self.on_call: Callable[[str, Json], None] = lambda _method, _params: None
        self._faults: list[Fault] = []
        self._lock = threading.RLock()
        self._streams: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._writers = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.crash()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        with self._lock:
            if self._listener is not None:
                return  # a restart that was due has happened already
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(self.path))
            listener.listen(64)
            self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def crash(self) -> None:
        """Be killed: close everything, forget what is not durable."""
        with self._lock:
            listener, self._listener = self._listener, None
            if listener is not None:
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                listener.close()
                self.path.unlink(missing_ok=True)
            for stream in list(self._streams):
                _cut(stream)
            for name, session in list(self.sessions.items()):
                del session.events[session.durable :]
                session.end_seed = False
                if not session.events:
                    del self.sessions[name]

    def cut(self) -> None:
        """Cut every connection; stay up."""
        with self._lock:
            for stream in list(self._streams):
                _cut(stream)

    def fault(self, method: str, kind: str, error: DshdError | None = None, skip: int = 0) -> None:
        """Let the next call of the method (after `skip` of them) go wrong."""
        self._faults.append(Fault(method, kind, error, skip))

    def named(self, method: str) -> list[Json]:
        """The parameters of every call of a method."""
        return [params for name, params in self.calls if name == method]

    def types(self, session_id: str) -> list[str]:
        """The types of a session's events."""
        return [event["type"] for event in self.sessions[session_id].events]

    # -- connections

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                if self._listener is not listener:
                    _cut(stream)
                    return
                self._streams.add(stream)
                self.connections += 1
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        with suppress(OSError, ValueError), stream, stream.makefile("rb") as lines:
            for line in lines:
                call = json.loads(line)
                with self._lock:
                    if stream not in self._streams:
                        return
                    reply = self._answer(stream, call)
                    if reply:
                        stream.sendall(reply)
        with self._lock:
            self._streams.discard(stream)

    def _answer(self, stream: socket.socket, call: Json) -> bytes:
        method, params = call["method"], call.get("params", {})
        if "id" not in call:
            self.cancelled.append(params.get("id"))
            return b""
        self.calls.append((method, json.loads(json.dumps(params))))
        self.on_call(method, params)
        fault = self._take_fault(method)
        kind = fault.kind if fault else ""
        if kind == "crash":
            self.crash()
        if kind == "refuse" and fault:
            return _error(call["id"], fault.error)
        untouched = kind in {"crash", "lose-call", "ignore"}
        reply = b"" if untouched else self._carry_out(call["id"], method, params, fault)
        if kind == "half-reply":
            with suppress(OSError):
                stream.sendall(reply[: len(reply) // 2])
        if kind in {"lose-call", "lose-reply", "half-reply"}:
            self._drop(stream)
        return reply if kind in {"", "fail"} else b""

    def _drop(self, stream: socket.socket) -> None:
        self._streams.discard(stream)
        _cut(stream)

    def _take_fault(self, method: str) -> Fault | None:
        for fault in self._faults:
            if fault.method == method:
                if fault.skip:
                    fault.skip -= 1
                    return None
                self._faults.remove(fault)
                return fault
        return None

    # -- methods

    def _carry_out(self, call_id: Any, method: str, params: Json, fault: Fault | None) -> bytes:
        try:
            result = self._method(method, params, fault)
        except DshdError as error:
            return _error(call_id, error)
        return _line({"jsonrpc": "2.0", "id": call_id, "result": result})

    def _method(self, method: str, params: Json, fault: Fault | None) -> Json:
        if method == "initialize":
            limits = {"maxLineBytes": self.max_line_bytes}
            return {"protocolVersion": 1, "server": {"name": "fake"}, "limits": limits}
        if method == "session.create":
            return self._create(params)
        if method == "echo":
            return params
        session = self.sessions.get(params["id"])
        if session is None:
            raise SessionNotFoundError("no such session")
        if method in {"session.open", "session.read", "session.messages"}:
            return self._read(session, method, params)
        if params["writer"] != session.writer:
            raise WriterLostError("the writer is not known")
        return self._write(session, method, params, fault)

    def _read(self, session: FakeSession, method: str, params: Json) -> Json:
        if method == "session.open":
            return self._open(session, params)
        start = params.get("offset", 0)
        if method == "session.messages":
            return _history(session, start)
        page = session.events[start : start + 7][: params.get("length", 1000)]
        return {"events": page, "nextOffset": start + len(page), "end": len(session.events)}

    def _create(self, params: Json) -> Json:
        if params["id"] in self.sessions:
            raise SessionExistsError("taken")
        session = FakeSession(header={**params, "createdAt": 1})
        self.sessions[params["id"]] = session
        return self._taken(session)

    def _open(self, session: FakeSession, params: Json) -> Json:
        if "continue" in params:
            if params["continue"]["writer"] != session.writer:
                raise WriterLostError("somebody else has it")
        elif session.events and session.events[-1]["type"] != "session/end-seed":
            session.end_seed = True
        return {**self._taken(session), "recovery": session.recovery}

    def _taken(self, session: FakeSession) -> Json:
        self._writers += 1
        session.writer = f"writer-{self._writers}"
        turns = sum(event["type"] == "turn/start" for event in session.events)
        return {
            "session": {
                "id": session.header["id"],
                "nextSeq": session.next_seq,
                "durableSeq": session.durable,
                "turns": turns,
            },
            "writer": session.writer,
        }

    def _write(self, session: FakeSession, method: str, params: Json, fault: Fault | None) -> Json:
        if method == "session.recover":
            assert session.recovery is not None
            session.recovery = {**session.recovery, "committed": True}
            return {**session.recovery, "nextSeq": session.next_seq}
        events = [dict(event) for event in params.get("events", [])]
        built = _built(method, params)
        first = params.get("expectedSeq", session.next_seq)
        duplicate = self._admit(session, [*events, *built], first)
        if fault and fault.kind == "fail" and fault.error is not None:
            span = {"firstSeq": session.durable, "nextSeq": session.next_seq}
            raise type(fault.error)(fault.error.message, admitted=span, **fault.error.facts)
        if method != "session.append":
            session.durable = len(session.events)
        if method == "session.close":
            session.writer = None
        result = {
            "firstSeq": first,
            "nextSeq": session.next_seq,
            "durableSeq": session.durable,
            "duplicate": duplicate,
        }
        if method == "checkpoint.tool":
            result |= {"decision": "DISPATCH", "callSeq": first, "idempotencyKey": f"key-{first}"}
        return result

    def _admit(self, session: FakeSession, events: list[Json], first: int) -> bool:
        if any(event["type"] == "bad" for event in events):
            raise EventInvalidError("a bad event", index=0, rule="bad")
        end = first + len(events)
        if events and first < len(session.events):
            stored = session.events[first:end]
            if [_core(one) for one in stored] == [_core(one) for one in events]:
                return True
        if events and first != session.next_seq:
            raise SeqConflictError("not the next seq", expected=session.next_seq, got=first)
        if events and session.end_seed:
            session.end_seed = False
            session.events.append({"type": "session/end-seed", "data": {}})
        session.events += events
        return False


def _built(method: str, params: Json) -> list[Json]:
    if method == "checkpoint.tool" and "parentCallId" not in params:
        data = {key: params[key] for key in ("callId", "name", "arguments")}
        return [{"type": "tool/call", "data": data}]
    if method == "checkpoint.tool":
        return [{"type": "tool/code-dispatch-start", "data": {"subCallId": params["callId"]}}]
    if method == "checkpoint.turnEnd":
        return [{"type": "turn/end", "data": {"reason": params["reason"]}}]
    return []


def _core(event: Json) -> Any:
    # what a checkpoint builds here lacks turn and step, which the fake does not track
    data = event["data"]
    if event["type"] in {"tool/call", "turn/end"}:
        data = data.get("callId", data.get("reason"))
    return event["type"], data


def _history(session: FakeSession, offset: int) -> Json:
    found: list[Json] = []
    for event in session.events:
        if event["type"] == "user/message":
            found.append(event["data"])
        elif event["type"] in {"assistant/message", "tool/result"}:
            found.append(event["data"]["message"])
    page = found[offset : offset + 2]
    after = offset + len(page)
    return {"messages": page, "nextOffset": after if after < len(found) else None}


def _error(call_id: Any, error: DshdError | None) -> bytes:
    assert error is not None
    return _line({"jsonrpc": "2.0", "id": call_id, "error": error.to_wire()})


def _line(message: Json) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _cut(stream: socket.socket) -> None:
    with suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)


def holder_of_this_process() -> Json:
    """The holder that a daemon would name for a handle of this process."""
    return {"pid": os.getpid(), "client": "python", "since": 1, "connected": True}
