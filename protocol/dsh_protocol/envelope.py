"""JSON-RPC 2.0 between bytes and calls, on the daemon's side. The client's half is `calls`.

The rule that holds here: whatever a line holds, it becomes calls or refusals, and a refusal carries the id of its call
where that can be told. Nothing here raises for what a peer sent, and one bad item of a batch spoils no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from dsh_protocol.errors import (
    DshdError,
    EventInvalidError,
    FrameTooLargeError,
    InvalidParamsError,
    InvalidRequestError,
    ParseFailedError,
)
from dsh_protocol.jsonscan import Bounds, JsonTextError, Steps, drain, scan, scan_steps
from dsh_protocol.jsonslices import cut_steps, members_at_ends, opener_of, peek
from dsh_protocol.jsontext import decode_quickly, decode_steps, encode_fast
from dsh_protocol.jsontypes import is_array, is_object, is_safe_integer
from dsh_protocol.method import ALIASES, METHODS, find_method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_protocol.limits import Limits

LONGEST_ID = 256

CallId: TypeAlias = str | int | None

_HEAD_BYTES = 4096
_SMALL_LINE_BYTES = 32 * 1024
_SMALL = Bounds(max_depth=1, max_values=1)
_SESSION_ID = ("params", "id")
_NOT_A_REQUEST = "send an object with jsonrpc '2.0', a method, and params as an object"
_NO_ID = (
    f"an id is neither null, a whole number nor a string of at most {LONGEST_ID} characters;"
    " number the calls"
)

_RULES = {
    "duplicate-key": "a key stands twice in one object",
    "negative-zero": "negative zero is no number here",
    "number-range": "a number is beyond what a double holds exactly (whole numbers: 2^53 - 1)",
    "lone-surrogate": "a string holds half of a surrogate pair",
    "too-deep": "arrays and objects are nested too deep",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One call. Its method may still be unknown and its parameters wrong; its JSON is good.

    Attributes:
        id: To be given back as it is.
        has_id: False for a notification, which is not answered.
        method: As it was called.
        params: Empty where absent.
    """

    id: CallId
    has_id: bool
    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One call, or a whole line, that is answered with an error as it stands.

    Attributes:
        id: Of the call, null where that cannot be told.
        error: The answer.
        notification: It was one: nothing is answered, but the failure may have to be remembered.
        method: Of a refused notification.
        session_id: From a refused notification's parameters, where it can be told.
        writer: Likewise.
    """

    id: CallId
    error: DshdError
    notification: bool = False
    method: str | None = None
    session_id: str | None = None
    writer: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The calls of one line, to be admitted in order and answered in one line."""

    items: list[Request | Refusal] = field(default_factory=list["Request | Refusal"])


Message: TypeAlias = Request | Refusal | Batch


def is_blank(line: bytes) -> bool:
    r"""Whether a line holds nothing: such a line, a lone `\r` among them, is passed over, and counted."""
    if line[:1].strip(b" \t\r\n"):
        return False  # at once, whatever follows: to strip megabytes takes tens of milliseconds
    return not line or (line.isspace() and b"\v" not in line and b"\f" not in line)


def parse_line(line: bytes, limits: Limits) -> Message:
    """Return what one line holds. Never raises for what is in it."""
    return parse_at_once(line, limits) or drain(parse_steps(line, limits))


def parse_at_once(line: bytes, limits: Limits) -> Message | None:
    """Return what a small and sound line holds; None where that takes longer, for `parse_steps`."""
    if len(line) > min(_SMALL_LINE_BYTES, limits.max_values):
        return None
    try:
        value = decode_quickly(line, limits.max_depth)
    except JsonTextError:
        return None
    return _message(value, limits)


def parse_steps(line: bytes, limits: Limits) -> Steps[Message]:
    """Return what one line holds, as `parse_line` does, in steps that are short whatever that is."""
    try:
        value = yield from _decode_steps(line, limits)
    except JsonTextError as error:
        yield
        return (yield from _salvage(line, error, limits))
    return _message(value, limits)


def _message(value: Any, limits: Limits) -> Message:
    if not is_array(value):
        return _request(value)
    refusal = _refuse_batch(len(value), limits)
    return refusal or Batch([_request(item) for item in value])


def refuse_unread(line: bytes, error: DshdError) -> Refusal:
    """Refuse a line that there is no memory to read; whose call it was is looked for at its ends alone."""
    found, _ = members_at_ends(line, _HEAD_BYTES, "params")
    call_id, _ = _peek_id(found.get("id"))
    return Refusal(call_id, error)


def encode_result(call_id: CallId, result: Any) -> bytes:
    """Return the answer of a call that succeeded, as a line without its newline.

    Args:
        call_id: As the call had it.
        result: A result Struct or a JSON value; `msgspec.Raw` inside it is copied as it is.
    """
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % encode_fast(call_id)
    return b"".join((head, encode_fast(result), b"}"))


def encode_error(call_id: CallId, error: DshdError) -> bytes:
    """Return the answer of a call that failed, as a line without its newline."""
    wire = encode_fast(error.to_wire())
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (encode_fast(call_id), wire)


def encode_notification(method: str, params: Any) -> bytes:
    """Return what is sent without being asked, as a line without its newline."""
    head = b'{"jsonrpc":"2.0","method":%b,"params":' % encode_fast(method)
    return b"".join((head, encode_fast(params), b"}"))


def encode_batch(answers: Sequence[bytes]) -> bytes:
    """Return the answers of a batch's calls as one line; of notifications there are none.

    A batch of notifications alone is not answered at all, so `answers` is not empty.
    """
    return b"".join((b"[", b",".join(answers), b"]"))


def _decode_steps(text: bytes, limits: Limits) -> Steps[Any]:
    try:
        return (yield from decode_steps(text, Bounds(limits.max_depth, limits.max_values)))
    except JsonTextError as error:
        if error.rule != "lone-surrogate" or error.path[-2:] != _SESSION_ID:
            raise
    # A stored log may have such an id. It can be read under it; a new session cannot get one from the store.
    bounds = Bounds(limits.max_depth, limits.max_values, surrogates_at=_SESSION_ID)
    return (yield from scan_steps(text, bounds))


def _refuse_batch(count: int, limits: Limits) -> Refusal | None:
    if count == 0:
        return Refusal(None, InvalidRequestError("a batch is empty; leave it out"))
    if count > limits.max_batch_calls:
        text = f"a batch has {count} calls and {limits.max_batch_calls} are the limit; send several"
        return Refusal(
            None, FrameTooLargeError(text, limit="maxBatchCalls", maximum=limits.max_batch_calls)
        )
    return None


def _request(value: Any) -> Request | Refusal:
    if not is_object(value):
        return Refusal(None, InvalidRequestError(f"a call is not an object; {_NOT_A_REQUEST}"))
    call_id = value.get("id")
    if not _is_call_id(call_id):
        return Refusal(None, InvalidRequestError(_NO_ID))
    call_id = _as_read(call_id)
    if value.get("jsonrpc") != "2.0":
        return Refusal(call_id, InvalidRequestError(f"jsonrpc is not '2.0'; {_NOT_A_REQUEST}"))
    method = value.get("method")
    if not isinstance(method, str):
        return Refusal(call_id, InvalidRequestError(f"method is not a string; {_NOT_A_REQUEST}"))
    params = value.get("params", {})
    has_id = "id" in value
    if is_object(params):
        return Request(call_id, has_id, method, params)
    error = _unknown(method) or InvalidParamsError(
        "params is not an object; give parameters by name", path="params"
    )
    return Refusal(call_id, error, notification=not has_id, method=None if has_id else method)


def _is_call_id(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_ID
    return value is None or is_safe_integer(value)


def _as_read(call_id: Any) -> CallId:
    """An id by which calls are found: `1.0` is 1."""
    found: CallId = int(call_id) if isinstance(call_id, float) else call_id
    return found


def _unknown(method: str) -> DshdError | None:
    try:
        find_method(method)
    except DshdError as error:
        return error
    return None


def _salvage(line: bytes, error: JsonTextError, limits: Limits) -> Steps[Message]:
    """Make the best of a line that the gate refused."""
    if error.rule in ("not-json", "not-utf8"):
        return Refusal(None, _not_json(error))
    if opener_of(line) == b"{":
        return _refuse_call(line, error, limits)
    if error.rule == "too-many-values":
        return Refusal(None, _too_many(limits))
    sliced = yield from cut_steps(line)
    if sliced.opener != b"[" or not sliced.complete:
        return Refusal(None, _defect(error, None, limits))
    refusal = _refuse_batch(len(sliced.pieces), limits)
    if refusal is not None:
        return refusal
    items: list[Request | Refusal] = []
    for piece in sliced.pieces:
        item = yield from _salvage_item(piece, limits)
        items.append(item)
    return Batch(items)


def _salvage_item(text: bytes, limits: Limits) -> Steps[Request | Refusal]:
    try:
        value = yield from _decode_steps(text, limits)
    except JsonTextError as error:
        if opener_of(text) == b"{":
            return _refuse_call(text, error, limits)
        return Refusal(None, InvalidRequestError(f"a call is not an object; {_NOT_A_REQUEST}"))
    return _request(value)


def _refuse_call(text: bytes, error: JsonTextError, limits: Limits) -> Refusal:
    """Refuse one call whose JSON has a defect, and find out whose it was."""
    # Looking at all of a large one is what must not happen; whose call it is, is said first or last.
    wide = error.rule == "too-many-values"
    found, params = members_at_ends(text, _HEAD_BYTES if wide else _SMALL_LINE_BYTES, "params")
    call_id, is_id = _peek_id(found.get("id"))
    method = peek(found.get("method"), _SMALL)
    answer = _defect(error, method, limits)
    if not is_id and not wide and error.path[:1] != ("id",):
        answer = InvalidRequestError(_NO_ID)
    if "id" in found or not isinstance(method, str) or error.path[:1] != ("params",):
        return Refusal(call_id, answer)
    session_id, writer = (peek(params.get(key), _SMALL) for key in ("id", "writer"))
    return Refusal(
        None,
        answer,
        notification=True,
        method=method,
        session_id=session_id if isinstance(session_id, str) else None,
        writer=writer if isinstance(writer, str) else None,
    )


def _peek_id(text: bytes | None) -> tuple[CallId, bool]:
    """An id that is not read yet, null where there is none; and whether what stands there may be one."""
    if text is None:
        return None, True
    try:
        call_id = scan(text, _SMALL)
    except JsonTextError:
        return None, False
    return (_as_read(call_id), True) if _is_call_id(call_id) else (None, False)


def _not_json(error: JsonTextError) -> DshdError:
    what = "UTF-8" if error.rule == "not-utf8" else "JSON"
    return ParseFailedError(
        f"a line is not {what} at byte {error.offset}; send one JSON-RPC 2.0 message a line",
        rule=error.rule,
        offset=error.offset,
    )


def _too_many(limits: Limits) -> DshdError:
    return FrameTooLargeError(
        f"a line has more than {limits.max_values} JSON values; send fewer events in one call",
        limit="maxValues",
        maximum=limits.max_values,
    )


def _defect(error: JsonTextError, method: Any, limits: Limits) -> DshdError:
    """The answer to a defect: what makes it no request comes first, then an unknown method, then the place."""
    if error.rule in ("not-json", "not-utf8"):
        return _not_json(error)
    if error.rule == "too-many-values":
        return _too_many(limits)
    unknown = _unknown(method) if isinstance(method, str) and not _is_no_request(error) else None
    return unknown or _placed(error, method, limits)


def _is_no_request(error: JsonTextError) -> bool:
    """Whether a defect is one of the call, not of its parameters; what is too deep is so wherever but in the id."""
    place = error.path[:1]
    return place == ("id",) or (place != ("params",) and error.rule != "too-deep")


def _placed(error: JsonTextError, method: Any, limits: Limits) -> DshdError:
    place = _place_text(error.path) or "the line"
    facts: dict[str, Any] = {"rule": error.rule, "path": place, "offset": error.offset}
    if error.rule == "too-deep":
        facts |= {"limit": "maxDepth", "maximum": limits.max_depth}
    reason = _RULES[error.rule]
    match error.path:
        case ("params", "events", int(index), *_) if _takes_events(method):
            return EventInvalidError(
                f"event {index} is refused: {reason} ('{place}')", index=index, **facts
            )
        case _ if _is_no_request(error):
            return InvalidRequestError(f"'{place}' is refused: {reason}", **facts)
        case _:
            return InvalidParamsError(f"'{place}' is refused: {reason}", **facts)


def _place_text(path: Sequence[str | int]) -> str:
    """A place as every error spells it: `params.events[0].data`."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step[:64]}" for step in path[:8]]
    return "".join(steps).removeprefix(".")


def _takes_events(method: Any) -> bool:
    found = METHODS.get(ALIASES.get(method, method)) if isinstance(method, str) else None
    return found is not None and "events" in found.params.__struct_fields__
