"""The JSON text that the format's own program prints, and its hash: what the golden vectors are compared by.

Written for the tests alone, straight from the rules, so that the printer of the product is not judged by itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, cast

_LAST_INDEX = 2**32 - 2


def canonical(value: Any) -> str:
    """Return the compact text of a JSON value.

    Numbers are doubles, keys that are array indices go first in ascending order, lone surrogates are escaped.
    """
    return "".join(_print(value))


def sha256(value: Any) -> str:
    """Return the hash of a value's canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def _print(value: Any) -> list[str]:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        parts = ["{"]
        for key in _in_js_order(members):
            parts += [",", *_print(key), ":", *_print(members[key])]
        return [*parts[:1], *parts[2:], "}"]
    if isinstance(value, list):
        parts = ["["]
        for member in value:  # pyright: ignore[reportUnknownVariableType]  # mypy knows it as a list of anything
            parts += [",", *_print(member)]
        return [*parts[:1], *parts[2:], "]"]
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return ["".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [_print_number(float(value))]
    return [json.dumps(value)]


def _in_js_order(members: dict[str, Any]) -> list[str]:
    indices = [key for key in members if key.isascii() and key.isdigit() and str(int(key)) == key]
    first = sorted((key for key in indices if int(key) <= _LAST_INDEX), key=int)
    return first + [key for key in members if key not in first]


def _print_number(number: float) -> str:
    if math.isinf(number):
        return "null"
    if number == 0:
        return "0"
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
