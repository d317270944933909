"""The gate for JSON: every text from socket and disk passes `decode` or `decode_stored`; every text out is `encode`d.

The rule that holds here: what passes the gate means the same to every program that reads it. No duplicate keys, no
number that a double cannot hold, no negative zero, no half of a surrogate pair, nothing so deep or wide that it hurts.

msgspec reads fast but takes duplicate keys and whole numbers of any size, and loses the sign of a whole negative zero.
So its value counts only where a few searches at the speed of C prove that there was none of these; else the standard
library reads the text once more with a look at every pair and number; and only a text at fault meets the precise
reader, which says what and where.
"""

from __future__ import annotations

import json
import math
from itertools import compress
from types import GenericAlias
from typing import Any

import msgspec

from dsh_protocol.jsoncount import count_steps, count_values
from dsh_protocol.jsonprint import JsonValueError, print_json, print_number
from dsh_protocol.jsonscan import (
    Bounds,
    JsonTextError,
    Steps,
    scan,
    scan_steps,
)
from dsh_protocol.jsontypes import MAX_SAFE_INTEGER, is_object

__all__ = [
    "MAX_SAFE_INTEGER",
    "JsonTextError",
    "JsonValueError",
    "decode",
    "decode_stored",
    "encode",
    "encode_decoded",
    "encode_fast",
]

MAX_DEPTH = 64
MAX_VALUES = 100_000

_STORED = Bounds(max_depth=10_000, max_values=100_000_000, stored=True)

_HEAD_BYTES = 4096
_ONE_STEP_BYTES = 4 * 1024 * 1024
_ONE_STEP_ESCAPES = 500_000
_ONE_STEP_VALUES = 30_000
_PROVEN_DEPTH = 10  # an appended tool result's text lies so deep; each level more doubles the type


def _shape(depth: int) -> Any:
    """The type of every JSON value that is nested no deeper than `depth`."""
    scalar: Any = None | bool | int | float | str
    shape = scalar
    for _ in range(depth):
        array: Any = GenericAlias(list, (shape,))
        members: Any = GenericAlias(dict, (str, shape))
        shape = scalar | array | members
    return shape


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_flat_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_shape(_PROVEN_DEPTH))
_encoder = msgspec.json.Encoder()

_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN = b"0" * len(str(MAX_SAFE_INTEGER))
_BEFORE_NUMBER = (b":", b",", b"[", b"-")
_LONG_NUMBERS = tuple(before + _LONG_RUN for before in _BEFORE_NUMBER)

_CONTAINERS = frozenset({dict, list, tuple})
_JSON_TYPES = frozenset({*_CONTAINERS, str, int, float, bool, type(None)})


def decode(text: bytes, *, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES) -> Any:
    """Return the value of a text, strictly.

    Args:
        text: UTF-8 without a byte order mark.
        max_depth: Arrays and objects inside each other, the outermost counted.
        max_values: Values in the text; keys are not counted.

    Raises:
        JsonTextError: The text breaks a rule; the error names it.
    """
    bounds = Bounds(max_depth, max_values)
    if len(text) > max_values and count_values(text, max_values) > max_values:
        raise _too_deep(text, bounds) or JsonTextError("too-many-values", 0)
    try:
        value, depth_bound = _read(text)
    except (msgspec.MsgspecError, RecursionError):
        return scan(text, bounds)
    if depth_bound > max_depth and not _is_shallow(value, max_depth):
        return scan(text, bounds)
    if _is_canonical(text, value) or _is_strict(text):
        return value
    return scan(text, bounds)


def decode_quickly(text: bytes, max_depth: int) -> Any:
    """Return the value of a small text where that can be shown to be good at the speed of C.

    Raises:
        JsonTextError: It cannot be shown, which says nothing; `decode_steps` knows.
    """
    try:
        value, depth_bound = _read(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise JsonTextError("not-json", 0) from error
    if (depth_bound <= max_depth or _is_shallow(value, max_depth)) and (
        _is_canonical(text, value) or _is_strict(text)
    ):
        return value
    raise JsonTextError("not-json", 0)


def decode_steps(text: bytes, bounds: Bounds) -> Steps[Any]:
    """Return the value of a text as `decode` does, in steps that are short whatever the text holds.

    Raises:
        JsonTextError: The text breaks a rule; the error names it.
    """
    count = yield from count_steps(text, bounds.max_values)
    if count > bounds.max_values:
        raise _too_deep(text, bounds) or JsonTextError("too-many-values", 0)
    if len(text) > _ONE_STEP_BYTES or text.count(b"\\") > _ONE_STEP_ESCAPES:
        return (yield from scan_steps(text, bounds))
    try:
        value, depth_bound = _read(text)
    except (msgspec.MsgspecError, RecursionError):
        return (yield from scan_steps(text, bounds))
    yield
    if depth_bound <= bounds.max_depth or _is_shallow(value, bounds.max_depth):
        yield
        if _is_canonical(text, value):
            return value
        yield
        if count <= _ONE_STEP_VALUES and _is_strict(text):
            return value
    yield
    return (yield from scan_steps(text, bounds))


def _too_deep(text: bytes, bounds: Bounds) -> JsonTextError | None:
    """The better answer to a text of too many values that is nested too deep from the start."""
    try:
        scan(text[:_HEAD_BYTES], bounds)
    except JsonTextError as error:
        return error if error.rule == "too-deep" else None
    return None


def _read(text: bytes) -> tuple[Any, float]:
    """Return the value, and how deep it is at most: the type of a flat value proves that at no cost."""
    try:
        return _flat_decoder.decode(text), _PROVEN_DEPTH
    except msgspec.ValidationError:
        return _decoder.decode(text), math.inf


def decode_stored(text: bytes) -> Any:
    """Return the value of a text that stands in a log: what other programs may legally have written is taken.

    Of duplicate keys the last wins, at the place of the first; lone surrogates stay what they are; whole numbers keep
    every digit; a whole negative zero is 0.

    Raises:
        JsonTextError: Not JSON, not UTF-8, a number beyond the range of a double (or of 4,300 digits), or nesting
            beyond 10,000.
    """
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return scan(text, _STORED)


def encode(value: Any) -> bytes:
    r"""Return the text of a value as `JSON.stringify` prints it: compact, raw UTF-8, keys in their order.

    Floats are printed by the ECMAScript rule (1.0 as 1), but a whole one of 2^53 or more with an exponent. Lone
    surrogates are printed as \udxxx. Structs are printed by their wire names.

    Raises:
        JsonValueError: There is something in it that is no JSON value: a number that is not finite, an object of
            Python's own, a key that is no string, a value that holds itself or is nested more than 10,000 deep.
    """
    try:
        text = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return print_json(value)  # or its refusal, by what and where
    floats = _floats_of(value)
    if floats is None or not all(map(_float_agrees, floats)):
        return print_json(value)
    return text


def encode_decoded(value: Any) -> bytes:
    """Return what `encode` does, at less cost, of a value that the gate itself has made and nobody added to."""
    try:
        text = _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        return print_json(value)
    digits = text.translate(_DIGITS_AS_ZERO)
    if (b"0.0" in digits or b"0e" in digits) and not all(
        map(_float_agrees, _floats_of(value) or [])
    ):
        return print_json(value)
    return text


def encode_fast(value: Any) -> bytes:
    """Return some text that reads as the value: for the socket, where the spelling of a float is all one."""
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        return print_json(value)


def _is_canonical(text: bytes, value: Any) -> bool:
    """Whether text and value prove each other: printed again it is the same, and no number needs a closer look.

    A dropped duplicate and a whole negative zero make the print shorter. What the print cannot show is searched for.
    """
    if text[:1] not in (b"{", b"["):
        return False
    if _encoder.encode(value) != text or b"-0.0" in text:
        return False
    digits = text.translate(_DIGITS_AS_ZERO)
    return _LONG_RUN not in digits or not any(number in digits for number in _LONG_NUMBERS)


class _NotStrictError(ValueError):
    """Stops the second reading at the first thing that needs the precise reader."""


def _look_at_pairs(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise _NotStrictError


def _look_at_whole(digits: str) -> None:
    if len(digits) >= len(_LONG_RUN) or digits == "-0":
        raise _NotStrictError


def _look_at_real(digits: str) -> None:
    if digits[0] == "-" and float(digits) == 0:
        raise _NotStrictError


_second_reader = json.JSONDecoder(
    object_pairs_hook=_look_at_pairs, parse_int=_look_at_whole, parse_float=_look_at_real
)


def _is_strict(text: bytes) -> bool:
    """Whether a text that msgspec took has no duplicate keys and no odd numbers.

    A number of sixteen digits may still be in range: False only says that the precise reader must look.
    """
    try:
        _second_reader.decode(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _is_shallow(value: Any, max_depth: int) -> bool:
    level = _containers([value])
    for _ in range(max_depth):
        level = _containers(_members(level))
        if not level:
            return True
    return False


def _containers(values: list[Any]) -> list[Any]:
    """The arrays and objects among values, picked without a step of the interpreter for each."""
    return list(compress(values, map(_CONTAINERS.__contains__, map(type, values))))


def _members(containers: list[Any]) -> list[Any]:
    members: list[Any] = []
    for each in containers:
        members += each.values() if type(each) is dict else each
    return members


def _floats_of(value: Any) -> list[float] | None:
    """The floats in a value that is no cycle; None where something in it is none of JSON's own types."""
    members: list[Any] = [value]
    found: list[float] = []
    while members:
        types = set(map(type, members))
        if not types <= _JSON_TYPES:
            return None
        if float in types:
            found += [member for member in members if type(member) is float]
        if types.isdisjoint(_CONTAINERS):
            break
        containers = _containers(members)
        try:
            for each in containers:
                if is_object(each):
                    "".join(each)  # of keys that are strings, at the speed of C
        except TypeError:
            return None
        members = _members(containers)
    return found


def _float_agrees(value: float) -> bool:
    return math.isfinite(value) and print_number(value).encode() == _encoder.encode(value)
