"""The JSON text that the format's own program prints, and its hash: what the golden vectors are compared by.

Written for the tests alone, straight from the rules, so that the printer of the product is not judged by itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable

_LAST_INDEX = 2**32 - 2
_EXACT = 2**53


def canonical(value: Any) -> str:
    """Return the compact text of a JSON value.

    Numbers are doubles, keys that are array indices go first in ascending order, lone surrogates are escaped.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        keys = _in_js_order(members)
        return "{" + ",".join([f"{_text(key)}:{canonical(members[key])}" for key in keys]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([canonical(one) for one in cast("Iterable[Any]", value)]) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return _number(float(value))
        except OverflowError:
            return "null"  # a whole number beyond every double
    return json.dumps(value)


def sha256(value: Any) -> str:
    """Return the hash of a value's canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def _text(value: str) -> str:
    text = encode_basestring(value)
    if text.isascii():
        return text
    return "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text)


def _in_js_order(members: dict[str, Any]) -> list[str]:
    indices = [key for key in members if key.isdecimal() and _is_index(key)]
    return sorted(indices, key=int) + [key for key in members if key not in indices]


def _is_index(key: str) -> bool:
    return key.isascii() and str(int(key)) == key and int(key) <= _LAST_INDEX


def _number(number: float) -> str:
    if number.is_integer() and abs(number) < _EXACT:
        return str(int(number))
    if math.isinf(number):
        return "null"
    sign = "-" if number < 0 else ""
    mantissa, exponent_text = f"{abs(number)!r}e0".split("e")[:2]
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0")
    point = len(whole) + int(exponent_text)
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    digits = stripped
    if 0 < point <= 21:
        if len(digits) <= point:
            return sign + digits + "0" * (point - len(digits))
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{sign}{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"
