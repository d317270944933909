"""Pairs answers with requests: bytes in, answers out, no I/O.

One exchange belongs to one connection and ends with it. The one rule: an answer reaches the call whose id it carries or
nobody, so that a caller who went away cannot leave its answer to the next one.

Standard library only.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from dsh_client.errors import AnswerUnreadableError, ClientError
from dsh_protocol.errors import DshdError, FrameTooLargeError, InvalidParamsError, from_wire
from dsh_protocol.framing import LineSplitter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""A daemon's answers stay below its own, smaller limit; this one only bounds what a stranger can make us hold."""
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DEEPEST = 500
_SHOWN_PATH = 60


class Ticket:
    """One call on its way.

    Attributes:
        id: Its id on the wire.
        method: Its method.
        answered: Whether `result` or `error` is final.
        result: What the daemon answered.
        error: Why there is no result.
        wake: Called once when the answer is there, if somebody waits.
    """

    __slots__ = ("answered", "error", "id", "method", "result", "wake")

    def __init__(self, call_id: int, method: str) -> None:
        """Make the ticket of a call that is not answered."""
        self.id = call_id
        self.method = method
        self.answered = False
        self.result: Any = None
        self.error: DshdError | ClientError | None = None
        self.wake: Callable[[], None] | None = None

    def take(self) -> Any:
        """Return the result of an answered call, or raise its error."""
        if isinstance(self.error, ClientError):
            # one lost connection fails many calls: each raises an error of its own
            raise type(self.error)(self.error.message) from self.error
        if self.error is not None:
            raise self.error
        return self.result

    def settle(self, result: Any, error: DshdError | ClientError | None) -> None:
        """Set the answer; only an exchange does that, once."""
        self.result = result
        self.error = error
        self.answered = True
        if self.wake is not None:
            self.wake()


Notification = tuple[str, dict[str, Any]]


class Exchange:
    """The calls of one connection.

    Not thread-safe: whoever shares it between threads brings the lock.

    Attributes:
        max_line_bytes: The longest line that the daemon takes, once it has said so.
    """

    def __init__(self, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        """Make the exchange of a fresh connection.

        Args:
            max_answer_bytes: The longest line taken from the daemon.
        """
        self.max_line_bytes: int | None = None
        self._lines = LineSplitter(max_answer_bytes)
        self._waiting: dict[int, Ticket] = {}
        self._last_id = 0

    @property
    def in_flight(self) -> int:
        """How many calls have no answer yet."""
        return len(self._waiting)

    def call(self, method: str, params: Mapping[str, Any]) -> tuple[Ticket, bytes]:
        """Register a call; return its ticket and the line to send; see `call_all`."""
        (ticket,), line = self.call_all([(method, params)])
        return ticket, line

    def call_all(
        self, calls: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> tuple[list[Ticket], bytes]:
        """Register calls, all or none; return their tickets and the lines to send.

        Raises:
            InvalidParamsError: A parameter is not JSON; nothing is registered.
            FrameTooLargeError: The daemon would not take a line; nothing is registered.
        """
        lines = [
            self._line(method, params, call_id)
            for call_id, (method, params) in enumerate(calls, self._last_id + 1)
        ]
        tickets = [
            Ticket(call_id, method) for call_id, (method, _) in enumerate(calls, self._last_id + 1)
        ]
        self._last_id += len(tickets)
        self._waiting.update((ticket.id, ticket) for ticket in tickets)
        return tickets, b"".join(lines)

    def _line(self, method: str, params: Mapping[str, Any], call_id: int) -> bytes:
        line = encode_call(method, params, call_id)
        if self.max_line_bytes is not None and len(line) - 1 > self.max_line_bytes:
            raise FrameTooLargeError(
                f"{method} would be a line of {len(line) - 1} bytes, over the daemon's limit of "
                f"{self.max_line_bytes}; send fewer or smaller events in one call",
                limit="maxLineBytes",
                max=self.max_line_bytes,
            )
        return line

    def cancel(self, ticket: Ticket) -> bytes | None:
        """Return the line that cancels a call, or None when it is answered already.

        The call stays registered: its late answer settles its ticket, where nobody looks.
        """
        if ticket.id not in self._waiting:
            return None
        return encode_call("$/cancelRequest", {"id": ticket.id})

    def feed(self, chunk: bytes) -> list[Notification]:
        """Take bytes from the daemon: settle the calls that they answer, return the notifications among them.

        Raises:
            AnswerUnreadableError: They are no JSON-RPC. The position is lost; close the connection.
        """
        try:
            lines = self._lines.feed(chunk)
        except FrameTooLargeError as error:
            raise AnswerUnreadableError(f"the daemon's answer cannot be read: {error}") from error
        found: list[Notification] = []
        for line in lines:
            message = decode_answer(line)
            for item in message if is_array(message) else [message]:
                self._take(item, found)
        return found

    def fail(self, error: DshdError | ClientError) -> None:
        """Settle every call in flight with the reason why the connection ended."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for ticket in waiting:
            ticket.settle(None, error)

    def _take(self, item: Any, found: list[Notification]) -> None:
        answer = as_object(item)
        if answer is None:
            raise AnswerUnreadableError(f"the daemon sent {type(item).__name__}, not an object")
        method = answer.get("method")
        if isinstance(method, str):
            found.append((method, as_object(answer.get("params")) or {}))
            return
        error = as_object(answer.get("error"))
        failure = None if error is None else from_wire(error)
        call_id = answer.get("id")
        if call_id is None and failure is not None:
            # the daemon could not even read whose call it was
            self.fail(failure)
            raise AnswerUnreadableError(
                f"the daemon could not read what was sent: {failure}"
            ) from failure
        ticket = self._waiting.pop(call_id, None) if type(call_id) is int else None
        if ticket is None:
            raise AnswerUnreadableError(f"the daemon answered call {call_id!r}, which was not made")
        ticket.settle(answer.get("result"), failure)


def encode_call(method: str, params: Mapping[str, Any], call_id: int | None = None) -> bytes:
    """Return the line of a call (of a notification, without an id), newline included.

    Raises:
        InvalidParamsError: A parameter is not JSON.
    """
    message: dict[str, Any] = {"jsonrpc": "2.0"}
    if call_id is not None:
        message["id"] = call_id
    message["method"] = method
    if params:
        message["params"] = params
    try:
        text = _COMPACT.encode(message)
    except (TypeError, ValueError, RecursionError) as error:
        path, what = _fault(params)
        raise InvalidParamsError(
            f"the parameters of {method} are not JSON: {what or error} at {path}", path=path
        ) from error
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        # a lone surrogate has no UTF-8: the daemon gets the escape and says which rule forbids it
        escaped = json.dumps(message, allow_nan=False, separators=(",", ":"))
        return escaped.encode() + b"\n"


def _fault(params: Mapping[str, Any]) -> tuple[str, str]:
    """Where in parameters the first thing is that JSON cannot carry, and what; no words where nothing is found."""
    rest: list[tuple[str, Any, int]] = [("params", dict(params), 0)]
    while rest:
        path, value, depth = rest.pop()
        if depth > _DEEPEST:
            return path[:_SHOWN_PATH], "nesting without an end"
        members = as_object(value)
        if members is not None:
            rest += [(f"{path}.{key}", one, depth + 1) for key, one in reversed([*members.items()])]
        elif is_array(value):
            rest += [(f"{path}[{at}]", value[at], depth + 1) for at in reversed(range(len(value)))]
        elif isinstance(value, float) and not math.isfinite(value):
            return path, f"{value!r}"
        elif not isinstance(value, str | int | float | tuple | None):
            return path, f"a {type(value).__name__}"
    return "params", ""


def as_object(value: Any) -> dict[str, Any] | None:
    """Return a decoded value that is a JSON object as such, else None."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether a decoded value is a JSON array."""
    return isinstance(value, list)


def decode_answer(line: bytes) -> Any:
    """Return the JSON value of a line from the daemon.

    Integers of any size are kept exact, and lone surrogates stay in their strings: stored logs hold such.

    Raises:
        AnswerUnreadableError: It is not JSON, or nested deeper than this interpreter reads.
    """
    try:
        text = line.decode()
        try:
            return json.loads(text)
        except ValueError as error:
            if isinstance(error, json.JSONDecodeError):
                raise
            return json.loads(text, parse_int=_long_integer)
    except (ValueError, RecursionError) as error:
        raise AnswerUnreadableError(f"the daemon's answer is not JSON: {error}") from error


def _long_integer(digits: str) -> int:
    # int() refuses more than 4,300 digits, which a stored log may hold
    from decimal import Decimal  # noqa: PLC0415  # a command starts faster without it, and few numbers need it

    return int(Decimal(digits))
