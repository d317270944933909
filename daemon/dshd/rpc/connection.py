"""One connection: bytes in, calls served, replies out.

The rule that holds here: calls on one session are admitted in the order of their lines and answered in that order;
everything else runs side by side. When the connection ends, so do its write handles.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog
import trio

from dsh_protocol import envelope
from dsh_protocol.envelope import Batch, Refusal
from dsh_protocol.errors import (
    DshdError,
    FrameTooLargeError,
    OverloadedError,
)
from dsh_protocol.framing import LineSplitter
from dsh_protocol.method import ALIASES, METHODS
from dshd.rpc.calls import Call
from dshd.rpc.context import Connected, Context
from dshd.rpc.outbox import Outbox
from dshd.sessions.incidents import new_incident

if TYPE_CHECKING:
    from dsh_protocol.envelope import Request
    from dshd.rpc.context import Services
    from dshd.rpc.dispatch import Dispatcher
    from dshd.sessions.processes import Peer

log = structlog.get_logger()

_CHUNK_BYTES = 64 * 1024
_HALF_CLOSED_LOOK_S = 0.1
_MAX_BLANK_LINES = 1000
_TURN_AWAY_LIMIT_S = 1.0
_CANCEL = frozenset({"$/cancelRequest", "$/cancel_request"})


async def serve_connection(
    services: Services, dispatcher: Dispatcher, stream: trio.SocketStream, peer: Peer
) -> None:
    """Serve one connection until its peer is gone; its write handles end with it.

    Whatever goes wrong stays in this connection.
    """
    metrics = services.metrics
    metrics.inc("dshd_connections_opened")
    metrics.inc("dshd_connections", 1)
    try:
        async with stream:
            try:
                services.places.acquire_on_behalf_of_nowait(stream)
            except trio.WouldBlock:
                await _turn_away(services, stream)
            else:
                try:
                    await _Connection(services, dispatcher, stream, peer).run()
                finally:
                    services.places.release_on_behalf_of(stream)
    except Exception as error:  # noqa: BLE001  # one connection's defect must not end the others
        new_incident("connection.fault", error, pid=str(peer.pid))
    finally:
        metrics.inc("dshd_connections", -1)


async def _turn_away(services: Services, stream: trio.SocketStream) -> None:
    """Tell one client too many why it is not served."""
    limit = services.settings.limits.max_connections
    error = OverloadedError(
        f"the daemon has {limit} connections, which is maxConnections; end some, or try again",
        limit="maxConnections",
        maximum=limit,
    )
    with trio.move_on_after(_TURN_AWAY_LIMIT_S), suppress(trio.BrokenResourceError):
        await stream.send_all(envelope.encode_error(None, error) + b"\n")


class _Connection:
    def __init__(
        self, services: Services, dispatcher: Dispatcher, stream: trio.SocketStream, peer: Peer
    ) -> None:
        self._services = services
        self._dispatcher = dispatcher
        self._stream = stream
        self._peer = peer
        self._limits = services.settings.limits
        self._outbox = Outbox(stream)
        self._lanes: dict[str, Call] = {}
        self._in_flight: dict[Any, Call] = {}
        self._running = 0
        self._less = trio.Event()
        self._splitter = LineSplitter(self._limits.max_line_bytes)
        self._reading = trio.CancelScope()
        self._blank_lines = 0

    async def run(self) -> None:
        """Read until the end, then finish what is in flight if the peer still listens."""
        try:
            async with trio.open_nursery() as nursery:
                self._connected = Connected(self._peer, self._outbox, nursery)
                await self._run(nursery)
        finally:
            # once more, now that no call is left that may have been given a handle meanwhile
            self._services.registry.lose_connection(self._connected)

    async def _run(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._send, nursery.cancel_scope)
        nursery.start_soon(self._watch_stopping)
        try:
            await self._read(nursery)
            await self._finish_calls()
        finally:
            self._services.registry.lose_connection(self._connected)
            for watcher, scope in self._connected.subscriptions.values():
                self._services.registry.watchers.remove(watcher)
                scope.cancel()
        await self._finish_calls()
        self._outbox.finish()

    async def _watch_stopping(self) -> None:
        await self._services.stopping.wait()
        self._reading.cancel()

    async def _send(self, connection: trio.CancelScope) -> None:
        try:
            await self._outbox.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except trio.TooSlowError:
            log.warning("connection.not_reading", pid=self._peer.pid)
        connection.cancel()

    # ------------------------------------------------------------------ reading

    async def _read(self, nursery: trio.Nursery) -> None:
        """Serve lines until the peer ends its side, breaks a rule of framing, or the daemon stops."""
        with self._reading:
            while True:
                await self._wait_room()
                try:
                    chunk = await self._stream.receive_some(_CHUNK_BYTES)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
                if not chunk:
                    return
                try:
                    for line in self._splitter.feed(chunk):
                        await self._wait_room()
                        self._take_line(bytes(line), nursery)
                except FrameTooLargeError as error:
                    self._outbox.put(envelope.encode_error(None, error))
                    return

    async def _wait_room(self) -> None:
        """Stop reading while too much is in flight or unsent: back-pressure before refusal."""
        if self._running < self._limits.max_calls_in_flight and self._outbox.has_room:
            return
        await self._outbox.wait_room()
        while self._running >= self._limits.max_calls_in_flight:
            self._less = trio.Event()
            await self._less.wait()

    async def _finish_calls(self) -> None:
        """Let calls in flight finish while the peer can still read their replies."""
        while self._running and not self._hung_up():
            self._less = trio.Event()
            with trio.move_on_after(_HALF_CLOSED_LOOK_S):
                await self._less.wait()

    def _hung_up(self) -> bool:
        """Whether the peer has closed both directions (the kernel tells this one from a half-close)."""
        poll = select.poll()
        poll.register(self._stream.socket.fileno(), 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))

    # ------------------------------------------------------------------ serving

    def _take_line(self, line: bytes, nursery: trio.Nursery) -> None:
        if envelope.is_blank(line):
            self._blank_lines += 1
            if self._blank_lines > _MAX_BLANK_LINES:
                self._reading.cancel()
            return
        self._blank_lines = 0
        message = envelope.parse_line(line, self._limits)
        if isinstance(message, Refusal):
            self._refuse(message)
        elif isinstance(message, Batch):
            self._start_batch(message, len(line), nursery)
        elif not message.has_id:
            self._start_notification(message, len(line), nursery)
        else:
            self._start(message, len(line), nursery)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what cannot be served; of a notification, remember the failure for its writer's next call."""
        if not refusal.notification:
            self._outbox.put(envelope.encode_error(refusal.id, refusal.error))
        elif refusal.method == "session.append":
            self._note_failed(refusal.session_id, refusal.writer, refusal.error)
        else:
            self._services.metrics.inc("dshd_notifications_dropped", reason="method")

    def _note_failed(self, session_id: Any, writer: Any, error: DshdError) -> None:
        claim = self._services.registry.claim_of(session_id, writer)
        if claim is None:
            self._services.metrics.inc("dshd_notifications_dropped", reason=error.kind)
        elif claim.notification_error is None:
            claim.notification_error = error

    def _new_call(self, request: Request, size: int) -> Call:
        call = Call(request, size)
        method = METHODS.get(ALIASES.get(request.method, request.method))
        session_id = request.params.get("id") if method is not None else None
        in_lane = method is not None and (method.session_param or method.name == "session.create")
        if in_lane and isinstance(session_id, str):
            call.before = self._lanes.get(session_id)
            self._lanes[session_id] = call
        self._running += 1
        if request.has_id:
            self._in_flight[request.id] = call
        return call

    def _end_call(self, call: Call) -> None:
        call.admitted.set()
        call.answered.set()
        self._running -= 1
        self._less.set()
        if self._in_flight.get(call.request.id) is call:
            del self._in_flight[call.request.id]
        session_id = call.request.params.get("id")
        if isinstance(session_id, str) and self._lanes.get(session_id) is call:
            del self._lanes[session_id]
        call.before = None

    def _start(self, request: Request, size: int, nursery: trio.Nursery) -> None:
        if request.method in _CANCEL:
            self._cancel(request)
            self._outbox.put(envelope.encode_result(request.id, {}))
            return
        call = self._new_call(request, size)
        nursery.start_soon(self._serve, call)

    async def _serve(self, call: Call) -> None:
        try:
            reply = await self._reply(call)
            await call.wait_turn_to_answer()
            self._outbox.put(reply)
            if call.after_reply is not None:
                call.after_reply()
        finally:
            self._end_call(call)

    async def _reply(self, call: Call) -> bytes:
        """Serve a call and return its reply as a line."""
        request = call.request
        began = trio.current_time()
        kind = "OK"
        try:
            result = await call.run(self._dispatch)
            line = envelope.encode_result(request.id, result)
            if len(line) > self._limits.max_line_bytes:
                raise FrameTooLargeError(
                    f"the answer has {len(line)} bytes, more than maxLineBytes"
                    f" ({self._limits.max_line_bytes}); ask for less at a time",
                    limit="maxLineBytes",
                    maximum=self._limits.max_line_bytes,
                )
        except DshdError as error:
            kind = error.kind
            line = envelope.encode_error(request.id, error)
        method = request.method if request.method in METHODS else "unknown"
        self._services.metrics.inc("dshd_calls", method=method, kind=kind)
        self._services.metrics.observe(
            "dshd_call_seconds", trio.current_time() - began, method=method
        )
        return line

    async def _dispatch(self, call: Call) -> Any:
        return await self._dispatcher.dispatch(Context(self._services, self._connected, call))

    def _cancel(self, request: Request) -> None:
        wanted = request.params.get("id")
        if isinstance(wanted, int | str):
            call = self._in_flight.get(wanted)
            if call is not None:
                call.cancel()

    # ------------------------------------------------------------------ notifications

    def _start_notification(self, request: Request, size: int, nursery: trio.Nursery) -> None:
        if request.method in _CANCEL:
            self._cancel(request)
        elif request.method == "session.append":
            nursery.start_soon(self._serve_notification, self._new_call(request, size))
        else:
            self._services.metrics.inc("dshd_notifications_dropped", reason="method")

    async def _serve_notification(self, call: Call) -> None:
        try:
            await self._run_notification(call)
            await call.wait_turn_to_answer()
        finally:
            self._end_call(call)

    async def _run_notification(self, call: Call) -> None:
        params = call.request.params
        registry = self._services.registry
        try:
            if call.before is not None:
                await call.before.admitted.wait()
            claim = registry.claim_of(params.get("id"), params.get("writer"))
            if claim is not None and claim.notification_error is not None:
                self._services.metrics.inc("dshd_notifications_dropped", reason="after-failure")
                return
            await call.run(self._dispatch)
        except DshdError as error:
            self._note_failed(params.get("id"), params.get("writer"), error)

    # ------------------------------------------------------------------ batches

    def _start_batch(self, batch: Batch, size: int, nursery: trio.Nursery) -> None:
        share = size // max(len(batch.items), 1)
        items: list[Call | bytes] = []
        for item in batch.items:
            if isinstance(item, Refusal) and item.notification:
                self._refuse(item)
            elif isinstance(item, Refusal):
                items.append(envelope.encode_error(item.id, item.error))
            elif item.method in _CANCEL:
                self._cancel(item)
                if item.has_id:
                    items.append(envelope.encode_result(item.id, {}))
            elif item.has_id or item.method == "session.append":
                items.append(self._new_call(item, share))
            else:
                self._services.metrics.inc("dshd_notifications_dropped", reason="method")
        if items:
            nursery.start_soon(self._serve_batch, items)

    async def _serve_batch(self, items: list[Call | bytes]) -> None:
        """Admit the calls of one line in order, and answer them in one line."""
        replies: list[bytes | None] = [None] * len(items)
        calls = [item for item in items if isinstance(item, Call)]
        try:
            async with trio.open_nursery() as nursery:
                for at, item in enumerate(items):
                    if isinstance(item, bytes):
                        replies[at] = item
                    else:
                        nursery.start_soon(self._serve_in_batch, item, replies, at)
                        await item.admitted.wait()
            for call in calls:
                if call.before is not None and call.before not in calls:
                    await call.before.answered.wait()
            line = self._joined([reply for reply in replies if reply is not None])
            if line is not None:
                self._outbox.put(line)
            for call in calls:
                if call.after_reply is not None:
                    call.after_reply()
        finally:
            for call in calls:
                self._end_call(call)

    async def _serve_in_batch(self, call: Call, replies: list[bytes | None], at: int) -> None:
        try:
            if call.request.has_id:
                replies[at] = await self._reply(call)
            else:
                await self._run_notification(call)
        finally:
            call.admitted.set()

    def _joined(self, replies: list[bytes]) -> bytes | None:
        """One line for the replies of a batch; None where nothing is to be answered, as JSON-RPC demands."""
        if not replies:
            return None
        line = envelope.encode_batch(replies)
        if len(line) <= self._limits.max_line_bytes:
            return line
        error = FrameTooLargeError(
            f"the answers of this batch have {len(line)} bytes, more than maxLineBytes"
            f" ({self._limits.max_line_bytes}); send its calls in several lines",
            limit="maxLineBytes",
            maximum=self._limits.max_line_bytes,
        )
        return envelope.encode_error(None, error)
