r"""The precise writer of JSON: prints what `JSON.stringify` prints.

`jsontext` asks it only for values that the fast encoder would print otherwise or not at all: whole floats, lone
surrogates (printed as \udxxx), and nesting without end. One digression from ECMAScript: a whole float of 2^53 or more
is printed with an exponent, because our own reader takes a plain run of digits for an integer and refuses it.
"""

from __future__ import annotations

import re
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

import msgspec

from dsh_protocol.jsontypes import is_array, is_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SURROGATE = re.compile("[\ud800-\udfff]")
_FIRST_UNSAFE = 2.0**53
_PLAIN_BELOW = 21  # decimal exponents, from ECMAScript's Number::toString
_PLAIN_ABOVE = -6


def print_json(value: Any) -> bytes:
    """Return the text of a JSON value, or of a Struct of such; `msgspec.Raw` is copied as it is.

    Raises:
        TypeError: Something in it is no JSON value.
    """
    parts: list[str] = []
    inside: list[Iterator[tuple[str, Any]]] = [iter([("", value)])]
    closers = [""]
    while inside:
        member = next(inside[-1], None)
        if member is None:
            inside.pop()
            parts.append(closers.pop())
            continue
        prefix, child = member
        parts.append(prefix)
        if is_object(child):
            inside.append(_object_members(child.items()))
            closers.append("}")
        elif isinstance(child, msgspec.Struct):
            inside.append(_object_members(_fields(child)))
            closers.append("}")
        elif is_array(child):
            inside.append(_array_members(child))
            closers.append("]")
        else:
            parts.append(_scalar(child))
    return "".join(parts).encode()


def print_number(number: float) -> str:
    """Return a float as ECMAScript prints it: the shortest digits that read back as the same double."""
    if number != number or abs(number) == float("inf"):  # noqa: PLR0124  # that is what NaN is
        return "null"
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    unstripped = (whole + fraction).lstrip("0")
    digits = unstripped.rstrip("0")
    leading = len(fraction) - len(unstripped) if whole == "0" else -len(whole)
    point = int(exponent or 0) - leading  # where the decimal point stands, counted in digits
    count = len(digits)
    if count <= point <= _PLAIN_BELOW and abs(number) < _FIRST_UNSAFE:
        return sign + digits + "0" * (point - count)
    if 0 < point < count:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if _PLAIN_ABOVE < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"


def _array_members(array: list[Any]) -> Iterator[tuple[str, Any]]:
    if not array:
        yield "[", msgspec.Raw(b"")
    for index, child in enumerate(array):
        yield ("," if index else "["), child


def _object_members(members: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    prefix = "{"
    for key, child in members:
        yield f"{prefix}{_string(key)}:", child
        prefix = ","
    if prefix == "{":
        yield prefix, msgspec.Raw(b"")


def _fields(struct: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    omit = struct.__struct_config__.omit_defaults
    for field in msgspec.structs.fields(struct):
        child = getattr(struct, field.name)
        if child is not msgspec.UNSET and not (omit and child == field.default):
            yield field.encode_name, child


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return print_number(value)
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _string(text: str) -> str:
    quoted = encode_basestring(text)
    if _SURROGATE.search(quoted) is None:
        return quoted
    whole = quoted.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", whole)
