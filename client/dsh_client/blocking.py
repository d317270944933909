"""The blocking client: one connection over a plain socket, shared by any number of threads.

It owns the socket. The one rule: a call that is not answered in time, or whose caller is interrupted while it waits,
takes the connection with it, so that nobody can ever read half of somebody else's answer.

Whoever waits first reads for all (there is no background thread): three threads that wait for three checkpoints share
one connection and, in the daemon, one flush. Standard library only.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from dsh_client.errors import (
    CallTimeoutError,
    ClientError,
    ConnectionLostError,
    DaemonUnavailableError,
)
from dsh_client.exchange import Exchange, Ticket, as_object
from dsh_protocol.errors import ProtocolVersionError
from dsh_protocol.paths import client_socket_paths
from dsh_protocol.version import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_TIMEOUT = 60.0
"""Seconds after which a call is given up, from the wire's rules."""

_CHUNK = 256 * 1024
_SURE_BYTES = 64 * 1024
"""A Unix socket is called writable while three quarters of its buffer, some 200 kB, are free."""


def hello(name: str) -> dict[str, Any]:
    """Return the parameters of `initialize`."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "client": {"name": name, "version": VERSION, "pid": os.getpid()},
    }


def check_protocol(answer: Mapping[str, Any]) -> None:
    """Refuse a daemon that speaks only what this client does not know any more.

    Raises:
        ProtocolVersionError: Its answer to `initialize` says so; a client that is too old is refused by the daemon.
    """
    spoken = answer.get("protocolVersion")
    if type(spoken) is int and OLDEST_PROTOCOL_VERSION <= spoken <= PROTOCOL_VERSION:
        return
    server = as_object(answer.get("server")) or {}
    raise ProtocolVersionError(
        f"the daemon {server.get('version')} speaks protocol {spoken} and this client {VERSION} speaks"
        f" {PROTOCOL_VERSION}; restart the daemon as the version that is installed",
        client=PROTOCOL_VERSION,
        daemon=spoken,
    )


class Link:
    """One connection, from connect to its end; never used again after that.

    Attributes:
        lost: Why it ended, or None while it lives.
    """

    def __init__(self, path: str, timeout: float) -> None:
        """Connect, without a word sent yet.

        Raises:
            OSError: Nobody listens there.
        """
        self.lost: ClientError | None = None
        self._path = path
        self._exchange = Exchange()
        self._state = threading.Condition()
        self._sending = threading.Lock()
        self._someone_reads = False
        self._someone_sends = False
        self._in = _dial(path, timeout)
        self._out = self._in.dup()  # a second object: its time-outs are its own

    def start(self, method: str, params: Mapping[str, Any], timeout: float) -> Ticket:
        """Send a call and return its ticket, without waiting for the answer; see `start_all`."""
        return self.start_all([(method, params)], timeout)[0]

    def start_all(
        self, calls: Sequence[tuple[str, Mapping[str, Any]]], timeout: float
    ) -> list[Ticket]:
        """Send calls in one go, which the daemon may then serve with one write, and return their tickets.

        Calls are sent whole and in the order in which this is entered.

        Raises:
            ConnectionLostError: The connection ended before or while sending.
            CallTimeoutError: The daemon does not read; the connection is closed.
        """
        with self._sending:
            with self._state:
                self._check()
                tickets, lines = self._exchange.call_all(calls)
                self._someone_sends = True
            try:
                self._send(lines, tickets[0].method, timeout)
            finally:
                with self._state:
                    self._someone_sends = False
                    self._release()
            return tickets

    def greeted(self, answer: Mapping[str, Any]) -> None:
        """Take the limits that the daemon states in its answer to `initialize`."""
        limits = as_object(answer.get("limits")) or {}
        self._exchange.max_line_bytes = limits.get("maxLineBytes")

    def wait(self, ticket: Ticket, timeout: float) -> Any:
        """Return the result of a call.

        Raises:
            DshdError: The daemon's answer is an error.
            ConnectionLostError: The connection ended first.
            CallTimeoutError: No answer in time; the connection is closed.
        """
        self.wait_answered(ticket, timeout)
        return ticket.take()

    def wait_answered(self, ticket: Ticket, timeout: float) -> None:
        """Wait until a call is answered or the connection lost; see `look`.

        Raises:
            CallTimeoutError: Neither in time; the connection is closed.
        """
        if not self.look(ticket, timeout):
            raise self._late(ticket.method, timeout)

    def takes(self, size: int) -> bool:
        """Whether about so many bytes can be sent without waiting for the daemon to read; nothing is promised."""
        if size > _SURE_BYTES or self._someone_sends or self.lost is not None:
            return False
        poll = select.poll()
        try:
            poll.register(self._out.fileno(), select.POLLOUT)
        except ValueError:  # it has just been closed
            return False
        return bool(poll.poll(0))

    def look(self, ticket: Ticket, seconds: float) -> bool:
        """Wait for a moment; return whether a call is answered, or failed with the connection.

        It reads for everybody while nobody else does, and ends nothing that is late. Interrupted (KeyboardInterrupt) it
        closes the connection.
        """
        deadline = time.monotonic() + seconds
        try:
            while seconds > 0 and self._read_or_follow(ticket, deadline):
                pass
        except TimeoutError:
            pass
        except BaseException as error:
            self._end(
                ConnectionLostError(f"the wait for {ticket.method} was interrupted: {error!r}")
            )
            raise
        return ticket.answered

    def close(self) -> None:
        """End the connection; calls in flight fail. Idempotent."""
        self._end(ConnectionLostError("the client closed the connection"))

    def _send(self, line: bytes, method: str, timeout: float) -> None:
        try:
            self._out.settimeout(max(timeout, 0.001))
            self._out.sendall(line)
        except TimeoutError:
            raise self._late(method, timeout) from None
        except OSError as error:
            self._end(ConnectionLostError(f"the connection to {self._path!r} ended: {error}"))
        except BaseException as error:
            self._end(ConnectionLostError(f"sending {method} was interrupted: {error!r}"))
            raise
        self._check()

    def _read_or_follow(self, ticket: Ticket, deadline: float) -> bool:
        """Make one step towards the answer; return whether more are needed."""
        with self._state:
            while self._someone_reads and not ticket.answered:
                if not self._state.wait(deadline - time.monotonic()):
                    raise TimeoutError
            if ticket.answered:
                return False
            self._someone_reads = True
        try:
            self._in.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = self._in.recv(_CHUNK)
            with self._state:
                self._exchange.feed(chunk)
            if not chunk:
                self._end(
                    ConnectionLostError(f"the daemon closed the connection to {self._path!r}")
                )
        except TimeoutError:
            raise
        except OSError as error:
            self._end(ConnectionLostError(f"the connection to {self._path!r} ended: {error}"))
        except ClientError as error:
            self._end(error)
        finally:
            with self._state:
                self._someone_reads = False
                self._release()
                self._state.notify_all()
        return not ticket.answered

    def _check(self) -> None:
        if self.lost is not None:
            raise type(self.lost)(self.lost.message) from self.lost

    def _end(self, reason: ClientError) -> None:
        with self._state:
            if self.lost is None:
                self.lost = reason
                self._exchange.fail(reason)
                with suppress(OSError):
                    self._in.shutdown(socket.SHUT_RDWR)  # wakes whoever reads or sends
                self._release()
            self._state.notify_all()

    def _release(self) -> None:
        # a descriptor closed under a thread that uses it may by then be somebody else's file
        if self.lost is not None and not self._someone_reads:
            self._in.close()
        if self.lost is not None and not self._someone_sends:
            self._out.close()

    def _late(self, method: str, timeout: float) -> CallTimeoutError:
        text = f"no answer to {method} from the daemon at {self._path!r} within {timeout:.3g} s"
        self._end(ConnectionLostError(f"the connection is closed: {text}"))
        return CallTimeoutError(
            f"{text}; the connection is closed, and whether the call was carried out is not known"
        )


class Client:
    """Calls of one daemon, over one connection that is made when it is first needed.

    After its connection ended, the next call makes a new one; what was bound to the old one (write handles,
    subscriptions) is gone, which only `dsh_client.session` knows how to mend. Thread-safe.
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
        self._link: Link | None = None
        self._connecting = threading.Lock()

    def __enter__(self) -> Self:
        """Connect, so that a missing daemon is found here."""
        self.link(self.timeout)
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the connection."""
        self.close()

    def call(self, method: str, **params: Any) -> Any:
        """Call a method and return its result; parameters that are None are not sent.

        Raises:
            DshdError: The daemon answered an error; its class tells the kind.
            DaemonUnavailableError: No daemon, or the connection ended before the answer.
            CallTimeoutError: No answer in time; the connection is closed.
        """
        deadline = time.monotonic() + self.timeout
        link = self.link(self.timeout)
        given = {key: value for key, value in params.items() if value is not None}
        ticket = link.start(method, given, self.timeout)
        return link.wait(ticket, max(deadline - time.monotonic(), 0.001))

    def link(self, timeout: float, *, any_version: bool = False) -> Link:
        """Return the living connection, or make one and introduce ourselves.

        Args:
            timeout: Seconds.
            any_version: Whether a daemon of another age will do. Only what every daemon answers may be asked then.

        Raises:
            DaemonUnavailableError: Nobody answers at the socket.
            ProtocolVersionError: Client and daemon are of different ages.
        """
        with self._connecting:
            if self._link is not None and self._link.lost is None:
                return self._link
            link = self._dial(timeout)
            try:
                ticket = link.start("initialize", hello(self.name), timeout)
                try:
                    self.server = link.wait(ticket, timeout)
                    check_protocol(self.server)
                except ProtocolVersionError:
                    if not any_version:
                        raise
                link.greeted(self.server)
            except BaseException:
                link.close()
                raise
            self._link = link
            return link

    def _dial(self, timeout: float) -> Link:
        failures: list[str] = []
        for place in client_socket_paths(os.environ, self._flag):
            try:
                return Link(place, timeout)
            except OSError as error:
                failures.append(f"{place!r} ({error.strerror or error})")
        raise DaemonUnavailableError(
            f"no daemon answers at {', nor at '.join(failures)}; start one with 'dshd serve'"
        )

    def close(self) -> None:
        """Close the connection; write handles opened on it end. Idempotent."""
        if self._link is not None:
            self._link.close()


def connect(
    socket_path: str | os.PathLike[str] | None = None,
    *,
    name: str = "python",
    timeout: float = DEFAULT_TIMEOUT,
) -> Client:
    """Return a connected client, to be used as a context manager or closed by hand.

    Raises:
        DaemonUnavailableError: No daemon answers there.
    """
    client = Client(socket_path, name=name, timeout=timeout)
    client.link(timeout)
    return client


def _dial(path: str, timeout: float) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The kernel waits while the daemon's queue of connections is full; a time limit of Python would make it refuse.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _kernel_time(timeout))
        line.connect(path)
        line.settimeout(timeout)
    except BaseException:
        line.close()
        raise
    return line


def _kernel_time(seconds: float) -> bytes:
    """Seconds as the kernel's `timeval`; never zero, which would be no limit."""
    whole = int(seconds)
    return struct.pack("@ll", whole, max(int((seconds - whole) * 1_000_000), 1))
