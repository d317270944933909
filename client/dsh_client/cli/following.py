"""Follows a session over a connection of its own: every durable event from a seq on, once and in order, without a gap.

It owns its socket. The rule: `next_seq` is the seq of the next event that the reader is owed; whatever happens to the
subscription (it lagged, the connection ended, the daemon was started again), the next one begins there.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsh_client.blocking import hello
from dsh_client.cli.output import OutputLostError
from dsh_client.errors import CallTimeoutError, DaemonUnavailableError
from dsh_client.exchange import Exchange
from dsh_protocol.paths import client_socket_paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_client.exchange import Notification, Ticket

_CHUNK = 1 << 18
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class SessionEndedError(Exception):
    """The session that was followed is gone; the text says why."""


class Follower:
    """One reader of one session.

    Args:
        flag: `--socket`, or None.
        session_id: The whole id.
        start: The first seq wanted.
        timeout: Seconds for an answer, and for a daemon that went away to come back.

    Attributes:
        next_seq: The seq of the next event that the reader is owed.
        lags: How often the daemon said that the reader is too slow.
    """

    def __init__(self, flag: str | None, session_id: str, start: int, timeout: float) -> None:
        """Connect nothing yet."""
        self.next_seq = start
        self.lags = 0
        self._flag = flag
        self._id = session_id
        self._timeout = timeout
        self._line: socket.socket | None = None
        self._exchange = Exchange()
        self._early: list[Notification] = []

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the events as they become durable, in lists that are not empty; ends never by itself.

        Raises:
            SessionEndedError: The session was deleted.
            DaemonUnavailableError: The daemon went away and did not come back in time.
            OutputLostError: Nobody reads standard output any more.
        """
        try:
            while True:
                try:
                    self._open()
                    yield from self._subscribed()
                except (ConnectionError, OSError) as error:
                    if isinstance(error, TimeoutError):
                        raise CallTimeoutError(
                            f"no answer from the daemon within {self._timeout:g} s"
                        ) from error
                    self.close()
                    self._reopen(error)
        finally:
            self.close()

    def close(self) -> None:
        """End the connection. Idempotent."""
        if self._line is not None:
            self._line.close()
        self._line = None

    # ------------------------------------------------------------ the subscription

    def _subscribed(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the events of one subscription, until it lagged or there is a gap."""
        found = self._call("session.subscribe", {"id": self._id, "fromSeq": self.next_seq})
        subscription = found["subscriptionId"]
        while True:
            for method, params in self._notifications():
                if params.get("subscriptionId") != subscription:
                    continue
                if method == "session.ended":
                    raise SessionEndedError(str(params.get("reason")))
                if method == "session.lagged":
                    self.lags += 1
                    return
                if method == "session.event":
                    events = self._owed(params.get("events") or [])
                    if events is None:
                        self._call("session.unsubscribe", {"subscriptionId": subscription})
                        return
                    if events:
                        self.next_seq = events[-1]["seq"] + 1
                        yield events

    def _owed(self, events: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """Return the events that were not given yet; None where one in between is missing."""
        owed = [event for event in events if event["seq"] >= self.next_seq]
        if owed and owed[0]["seq"] != self.next_seq:
            return None
        return owed

    # ------------------------------------------------------------ the connection

    def _open(self) -> None:
        if self._line is not None:
            return
        failure: OSError | None = None
        for place in client_socket_paths(os.environ, self._flag):
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                line.settimeout(self._timeout)
                line.connect(place)
            except OSError as error:
                line.close()
                failure = error
                continue
            self._line, self._exchange, self._early = line, Exchange(), []
            self._call("initialize", hello("dshctl"))
            return
        raise ConnectionError(f"no daemon answers: {failure}")

    def _reopen(self, cause: OSError) -> None:
        """Wait for the daemon to come back."""
        deadline = time.monotonic() + self._timeout
        pause = _FIRST_PAUSE_S
        while True:
            _wait(None, pause)
            try:
                self._open()
            except OSError as error:
                self.close()
                if time.monotonic() > deadline:
                    raise DaemonUnavailableError(
                        f"the daemon went away ({cause}) and did not come back in "
                        f"{self._timeout:g} s: {error}"
                    ) from error
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                return

    def _call(self, method: str, params: dict[str, Any]) -> Any:
        ticket, line = self._exchange.call(method, params)
        self._connected().sendall(line)
        deadline = time.monotonic() + self._timeout
        while not ticket.answered:
            if not _wait(self._connected(), deadline - time.monotonic()):
                raise TimeoutError
            self._early += self._receive()
        return _taken(ticket)

    def _notifications(self) -> list[Notification]:
        """Wait for notifications, for as long as it takes."""
        early, self._early = self._early, []
        while not early:
            _wait(self._connected(), None)
            early = self._receive()
        return early

    def _receive(self) -> list[Notification]:
        chunk = self._connected().recv(_CHUNK)
        if not chunk:
            raise ConnectionResetError("it closed the connection")
        return self._exchange.feed(chunk)

    def _connected(self) -> socket.socket:
        if self._line is None:
            raise ConnectionResetError("it closed the connection")
        return self._line


def _taken(ticket: Ticket) -> Any:
    return ticket.take()


def _wait(line: socket.socket | None, seconds: float | None) -> bool:
    """Wait until a socket has something to read; give up at once when nobody reads our output any more.

    Raises:
        OutputLostError: The reader of standard output went away.
    """
    waiting = select.poll()
    output = -1
    with suppress(AttributeError, OSError, ValueError):
        output = sys.stdout.fileno()
        waiting.register(output, 0)  # only its end is reported
    if line is not None:
        waiting.register(line, select.POLLIN)
    for number, _ in waiting.poll(None if seconds is None else max(seconds, 0) * 1000):
        if number == output:
            raise OutputLostError(BrokenPipeError("nobody reads it any more"))
        return True
    return False
