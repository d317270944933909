"""One connection: bytes in, calls served, replies out.

The rule that holds here: when the connection ends, for whatever reason, its write handles and subscriptions end too,
and whatever goes wrong in it stays in it.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, TypeVar

import structlog
import trio

from dsh_protocol import envelope
from dsh_protocol.errors import FrameTooLargeError, OverloadedError
from dsh_protocol.framing import CutLine
from dshd.rpc.context import Connected
from dshd.rpc.incoming import Incoming, OverdueError
from dshd.rpc.outbox import Outbox
from dshd.rpc.serving import Serving
from dshd.sessions.incidents import new_incident
from dshd.sessions.threads import out_of

if TYPE_CHECKING:
    from dsh_protocol.envelope import Message
    from dsh_protocol.jsonscan import Steps
    from dshd.rpc.context import Services
    from dshd.rpc.dispatch import Dispatcher
    from dshd.rpc.duplex import Duplex
    from dshd.sessions.processes import Peer

T = TypeVar("T")
log = structlog.get_logger()

_HALF_CLOSED_LOOK_S = 0.1
_MAX_BLANK_LINES = 1000
_LINES_AT_ONCE = 16
_TURN_AWAY_LIMIT_S = 1.0


async def serve_connection(
    services: Services, dispatcher: Dispatcher, stream: Duplex, peer: Peer
) -> None:
    """Serve one connection until its peer is gone; its write handles end with it.

    Whatever goes wrong stays in this connection.
    """
    metrics = services.metrics
    metrics.inc("dshd_connections_opened")
    metrics.inc("dshd_connections", 1)
    try:
        async with aclosing(stream):
            try:
                services.places.acquire_on_behalf_of_nowait(stream)
            except trio.WouldBlock:
                metrics.inc("dshd_connections_turned_away")
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


async def _turn_away(services: Services, stream: Duplex) -> None:
    """Tell one client too many why it is not served."""
    limit = services.settings.limits.max_connections
    error = OverloadedError(
        f"the daemon has {limit} connections, which is maxConnections; end some, or try again",
        limit="maxConnections",
        maximum=limit,
    )
    with trio.move_on_after(_TURN_AWAY_LIMIT_S), suppress(trio.BrokenResourceError):
        await stream.send_some(envelope.encode_error(None, error) + b"\n")


async def in_steps(steps: Steps[T]) -> T:
    """Do a piece of work step by step; everybody else has a turn between two steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await trio.lowlevel.checkpoint()


class _Connection:
    def __init__(
        self, services: Services, dispatcher: Dispatcher, stream: Duplex, peer: Peer
    ) -> None:
        self._services = services
        self._dispatcher = dispatcher
        self._stream = stream
        self._peer = peer
        self._limits = services.settings.limits
        self._outbox = Outbox(stream, self._limits, services.making)
        self._incoming = Incoming(stream, self._limits, self._is_owed)
        self._reading = trio.CancelScope()
        self._blank_lines = 0

    async def run(self) -> None:
        """Read until the end, then finish what is in flight if the peer still listens."""
        try:
            async with trio.open_nursery() as nursery:
                self._connected = Connected(self._peer, self._outbox, nursery)
                self._serving = Serving(self._services, self._dispatcher, self._connected)
                await self._run(nursery)
        finally:
            self._outbox.drop()
            self._serving.driving.drop()
            # once more, now that no call is left that may have been given a handle meanwhile
            self._services.registry.lose_connection(self._connected)

    async def _run(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._send, nursery.cancel_scope)
        nursery.start_soon(self._watch_stopping)
        try:
            await self._read()
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
            self._services.metrics.inc("dshd_connections_overdue", deadline="unsent")
            log.warning("connection.not_reading", pid=self._peer.pid)
        connection.cancel()

    # ------------------------------------------------------------------ reading

    async def _read(self) -> None:
        """Serve lines until the peer ends its side, breaks a rule of framing, or the daemon stops."""
        with self._reading:
            try:
                while True:
                    await self._serving.wait_room()
                    lines = await self._incoming.next_lines()
                    if lines is None:
                        return
                    try:
                        await self._take_lines(lines)
                    finally:
                        self._serving.driving.begin_due()
            except FrameTooLargeError as error:
                self._outbox.put(envelope.encode_error(None, error))
            except MemoryError:  # the line is lost, and with it the place in the stream
                self._outbox.put(envelope.encode_error(None, out_of("memory")))
            except OverdueError as error:
                self._services.metrics.inc("dshd_connections_overdue", deadline=error.deadline)

    async def _take_lines(self, lines: list[bytes]) -> None:
        for number, line in enumerate(lines, 1):
            await self._serving.wait_room()
            await self._take_line(line)
            if number % _LINES_AT_ONCE == 0:  # other connections have a turn, too
                self._serving.driving.begin_due()
                await trio.lowlevel.checkpoint()

    async def _take_line(self, line: bytes) -> None:
        if envelope.is_blank(line):
            self._blank_lines += 1
            if self._blank_lines > _MAX_BLANK_LINES:
                self._reading.cancel()
            return
        self._blank_lines = 0
        message = await self._read_line(line)
        if message is None:
            message = envelope.refuse_unread(line, out_of("memory"))
            if message.id is None:  # it may be a notification or a batch: who is refused?
                self._reading.cancel()
        self._serving.start(message, len(line))

    async def _read_line(self, line: bytes) -> Message | None:
        """Return what a line holds; None where there is no memory for it."""
        if isinstance(line, CutLine):
            return None
        try:
            message = envelope.parse_at_once(line, self._limits)
            if message is None:
                self._serving.driving.begin_due()
                message = await in_steps(envelope.parse_steps(line, self._limits))
        except MemoryError:
            return None
        return message

    def _is_owed(self) -> bool:
        """Whether this connection may be late: it has something that would be lost with it."""
        if self._serving.running > 0 or self._connected.subscriptions:
            return True
        claims = (session.claim for session in self._services.registry.live.values())
        return any(c and not c.lost and c.taker.connection is self._connected for c in claims)

    async def _finish_calls(self) -> None:
        """Let calls in flight finish while the peer can still read their replies."""
        while self._serving.running and not self._stream.hung_up():
            with trio.move_on_after(_HALF_CLOSED_LOOK_S):
                await self._serving.wait_less()
