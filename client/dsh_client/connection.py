"""The asynchronous client: one connection, any number of tasks, under asyncio and trio alike.

It owns the socket and the two tasks that read and write it. The one rule: only the reader takes bytes off the socket,
so a cancelled caller leaves nothing half read; its call is cancelled on the wire, its late answer reaches nobody.

The two tasks are shielded, for a cancelled program still has to close its turn. The shield has an owner: leaving the
client's block ends them.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import AsyncExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

import anyio

from dsh_client.blocking import DEFAULT_TIMEOUT, check_protocol, hello
from dsh_client.errors import (
    CallTimeoutError,
    ClientError,
    ConnectionLostError,
    DaemonUnavailableError,
)
from dsh_client.exchange import Exchange, as_object
from dsh_protocol.paths import client_socket_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from anyio.abc import SocketStream

    from dsh_client.exchange import Ticket

_CHUNK = 256 * 1024


class AsyncLink:
    """One connection, from connect to its end; never used again after that.

    Attributes:
        lost: Why it ended, or None while it lives.
    """

    def __init__(self, path: str, stream: SocketStream) -> None:
        """Take over a connected stream; `run` moves its bytes."""
        self.lost: ClientError | None = None
        self._path = path
        self._stream = stream
        self._exchange = Exchange()
        self._outbox: deque[bytes] = deque()
        self._more = anyio.Event()
        self._scope = anyio.CancelScope(shield=True)

    async def run(self) -> None:
        """Read and write until the connection ends, from either side."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                await self._read()
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(self._stream)

    def start(self, method: str, params: Mapping[str, Any], timeout: float = 0) -> Ticket:
        """Queue a call for sending and return its ticket; see `start_all`."""
        return self.start_all([(method, params)], timeout)[0]

    def start_all(
        self,
        calls: Sequence[tuple[str, Mapping[str, Any]]],
        timeout: float = 0,  # noqa: ARG002  the blocking link has to wait for the socket here
    ) -> list[Ticket]:
        """Queue calls for sending and return their tickets. Calls are sent whole, in this order, even if cancelled.

        Raises:
            ConnectionLostError: The connection has ended.
        """
        if self.lost is not None:
            raise type(self.lost)(self.lost.message) from self.lost
        tickets, lines = self._exchange.call_all(calls)
        self._send(lines)
        return tickets

    def greeted(self, answer: Mapping[str, Any]) -> None:
        """Take the limits that the daemon states in its answer to `initialize`."""
        limits = as_object(answer.get("limits")) or {}
        self._exchange.max_line_bytes = limits.get("maxLineBytes")

    async def wait_answered(self, ticket: Ticket, within: float, *, cancel: bool) -> None:
        """Wait until a call is answered or the connection lost.

        Args:
            ticket: The call.
            within: Seconds.
            cancel: Whether a cancelled wait cancels the call on the wire too.

        Raises:
            CallTimeoutError: Neither in time; the connection is closed.
        """
        if ticket.answered:
            return
        event = anyio.Event()
        ticket.wake = event.set
        try:
            with anyio.move_on_after(within):
                await event.wait()
                return
        finally:
            if cancel and not ticket.answered:
                self._cancel(ticket)
        text = (
            f"no answer to {ticket.method} from the daemon at {self._path!r} within {within:.3g} s"
        )
        self._end(ConnectionLostError(f"the connection is closed: {text}"))
        raise CallTimeoutError(
            f"{text}; the connection is closed, and whether the call was carried out is not known"
        )

    def close(self) -> None:
        """End the connection; calls in flight fail. Idempotent."""
        self._end(ConnectionLostError("the client closed the connection"))

    def _cancel(self, ticket: Ticket) -> None:
        line = self._exchange.cancel(ticket)
        if line is not None and self.lost is None:
            self._send(line)

    def _send(self, line: bytes) -> None:
        self._outbox.append(line)
        self._more.set()

    async def _read(self) -> None:
        try:
            while True:
                self._exchange.feed(await self._stream.receive(_CHUNK))
        except anyio.EndOfStream:
            self._end(ConnectionLostError(f"the daemon closed the connection to {self._path!r}"))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self._end(ConnectionLostError(f"the connection to {self._path!r} ended: {error!r}"))
        except ClientError as error:
            self._end(error)

    async def _write(self) -> None:
        try:
            while True:
                while self._outbox:
                    await self._stream.send(self._outbox.popleft())
                self._more = anyio.Event()
                await self._more.wait()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self._end(ConnectionLostError(f"the connection to {self._path!r} ended: {error!r}"))

    def _end(self, reason: ClientError) -> None:
        if self.lost is None:
            self.lost = reason
            self._exchange.fail(reason)
            self._scope.cancel()


class AsyncClient:
    """Calls of one daemon, over one connection; `async with` connects and, at its end, closes.

    After its connection ended, the next call makes a new one; what was bound to the old one (write handles,
    subscriptions) is gone, which only `dsh_client.async_session` knows how to mend. Any task may call.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str] | None = None,
        *,
        name: str = "python",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Make a client; nothing is connected yet.

        Args:
            socket_path: Where the daemon listens; None looks where the wire's rules say.
            name: What others read when they find a session busy.
            timeout: Seconds for each call, connecting included.

        Raises:
            ValueError: The environment names a place that cannot be used.
        """
        flag = None if socket_path is None else os.fspath(socket_path)
        self._flag = flag if flag is None else client_socket_paths({}, flag)[0]
        self.name = name
        self.timeout = timeout
        self.server: dict[str, Any] = {}
        self._link: AsyncLink | None = None
        self._connecting = anyio.Lock()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        """Connect, so that a missing daemon is found here."""
        await self._tasks.__aenter__()
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self.__aexit__)
            await self.link(self.timeout)
            stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection. The block's own exception passes as it is, never in a group."""
        if self._link is not None:
            self._link.close()
        # Our tasks raise nothing. What comes out of the group is the block's own exception, wrapped, or a
        # cancellation that must not take its place: the original goes on by itself.
        with nullcontext() if failure is None else suppress(BaseException):
            await self._tasks.__aexit__(kind, failure, trace)  # noqa: ASYNC102  both tasks have just been ended

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method and return its result; parameters that are None are not sent.

        Cancelled, it cancels the call on the wire and does not wait for what becomes of it.

        Raises:
            DshdError: The daemon answered an error; its class tells the kind.
            DaemonUnavailableError: No daemon, or the connection ended before the answer.
            CallTimeoutError: No answer in time; the connection is closed.
        """
        deadline = anyio.current_time() + self.timeout
        link = await self.link(self.timeout)
        given = {key: value for key, value in params.items() if value is not None}
        ticket = link.start(method, given)
        await link.wait_answered(ticket, max(deadline - anyio.current_time(), 0.001), cancel=True)
        return ticket.take()

    async def link(self, within: float) -> AsyncLink:
        """Return the living connection, or make one and introduce ourselves.

        Raises:
            DaemonUnavailableError: Nobody answers at the socket.
            ProtocolVersionError: Client and daemon are of different ages.
        """
        async with self._connecting:
            if self._link is not None and self._link.lost is None:
                return self._link
            link = await self._dial(within)
            self._tasks.start_soon(link.run)
            try:
                ticket = link.start("initialize", hello(self.name))
                await link.wait_answered(ticket, within, cancel=False)
                self.server = ticket.take()
                check_protocol(self.server)
                link.greeted(self.server)
            except BaseException:
                link.close()
                raise
            self._link = link
            return link

    async def _dial(self, within: float) -> AsyncLink:
        failures: list[str] = []
        for place in client_socket_paths(os.environ, self._flag):
            try:
                with anyio.fail_after(within):
                    return AsyncLink(place, await anyio.connect_unix(place))
            except OSError as error:
                failures.append(f"{place!r} ({error.strerror or error})")
        raise DaemonUnavailableError(
            f"no daemon answers at {', nor at '.join(failures)}; start one with 'dshd serve'"
        )


def connect(
    socket_path: str | os.PathLike[str] | None = None,
    *,
    name: str = "python",
    timeout: float = DEFAULT_TIMEOUT,
) -> AsyncClient:
    """Return a client for `async with`, which connects it."""
    return AsyncClient(socket_path, name=name, timeout=timeout)
