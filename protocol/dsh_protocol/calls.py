"""The client's half of the envelope: calls out, replies and notifications in.

Apart from `envelope`, which is the daemon's half, because it must not cost a client more than the standard library. A
client trusts its daemon: replies are read leniently, numbers and all.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from dsh_protocol.errors import DshdError, from_wire
from dsh_protocol.jsontypes import is_array, is_object

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one call: a result, or the error that is raised for it."""

    id: int | str | None
    result: Any = None
    error: DshdError | None = None


@dataclass(frozen=True, slots=True)
class Notification:
    """What the daemon says without being asked."""

    method: str
    params: dict[str, Any]


Incoming: TypeAlias = Reply | Notification


class BadReplyError(ValueError):
    """What arrived is no JSON-RPC 2.0 message; nothing after it on the connection can be trusted."""


def encode_call(call_id: int | str | None, method: str, params: dict[str, Any]) -> bytes:
    """Return one call as a line without its newline; without an id it is a notification.

    Raises:
        ValueError: The parameters hold what JSON cannot carry (NaN, infinities, cycles).
        TypeError: They hold an object that is no JSON value.
    """
    message: dict[str, Any] = {"jsonrpc": "2.0"}
    if call_id is not None:
        message["id"] = call_id
    message["method"] = method
    message["params"] = params
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: escaped, so that the daemon can name it
        return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


def parse_incoming(line: bytes) -> list[Incoming]:
    """Return the messages of one line: one, or those of a batch's answer in their order.

    Raises:
        BadReplyError: The line is no answer of a JSON-RPC 2.0 server.
    """
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise BadReplyError("the daemon sent a line that is not JSON") from error
    if is_array(value):
        return [_incoming(item) for item in value]
    return [_incoming(value)]


def parse_reply(line: bytes) -> Incoming:
    """Return the one message of a line that is not a batch's answer.

    Raises:
        BadReplyError: The line is something else.
    """
    messages = parse_incoming(line)
    if len(messages) != 1:
        raise BadReplyError(f"the daemon answered one call with {len(messages)} replies")
    return messages[0]


def _incoming(value: Any) -> Incoming:
    if not is_object(value):
        raise BadReplyError("the daemon sent a message that is not an object")
    method = value.get("method")
    if isinstance(method, str):
        params = value.get("params")
        return Notification(method, params if is_object(params) else {})
    call_id = value.get("id")
    if isinstance(call_id, bool) or not isinstance(call_id, int | str | None):
        raise BadReplyError("the daemon sent a reply whose id is neither a string nor a number")
    error = value.get("error")
    if is_object(error):
        return Reply(call_id, error=from_wire(error))
    if "result" not in value:
        raise BadReplyError("the daemon sent a reply with neither result nor error")
    return Reply(call_id, result=value["result"])
