"""Questions about decoded JSON: of what kind a value is, and when two are equal.

The one rule: they answer by what JSON means, not by what Python makes of it: `1.0` is the integer 1, `true` no number.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeGuard

MAX_SAFE_INTEGER = 2**53 - 1


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether it is an object."""
    return type(value) is dict


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Whether it is an array."""
    return type(value) is list


def is_text(value: Any) -> TypeGuard[str]:
    """Whether it is a string that is not empty."""
    return type(value) is str and value != ""


def is_count(value: Any) -> TypeGuard[int | float]:
    """Whether it is an integer from 0 to 2^53 - 1 (`1.0` is one)."""
    if type(value) is int:
        return 0 <= value <= MAX_SAFE_INTEGER
    return type(value) is float and value.is_integer() and 0 <= value <= MAX_SAFE_INTEGER


def is_number(value: Any, expected: Any) -> bool:
    """Whether it is the number `expected`; `true` is not 1."""
    return bool(value == expected) and type(value) is not bool


def members(value: Any) -> dict[str, Any]:
    """Return an object's members; none of anything else."""
    return value if is_object(value) else {}


def json_equal(left: Any, right: Any) -> bool:
    """Whether two values are equal: object key order does not count, numbers count by value."""
    if left != right:
        return False
    pairs: list[tuple[Any, Any]] = [(left, right)]  # Python's equality goes too far: True == 1
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, bool) is not isinstance(other, bool):
            return False
        if is_object(one):
            pairs.extend((one[key], other[key]) for key in one)
        elif is_array(one):
            pairs.extend(zip(one, other, strict=True))
    return True


def json_digest(value: Any) -> bytes:
    """Return a digest that two values share exactly when they are equal.

    No recursion: a stored value may be nested deeper than the interpreter's stack.
    """
    parts: list[bytes] = []
    rest: list[Any] = [value]
    while rest:
        item = rest.pop()
        if type(item) is str:
            text = item.encode("utf-8", "surrogatepass")
            parts.append(b"s%d:%b" % (len(text), text))
        elif is_object(item):
            parts.append(b"{%d," % len(item))
            rest.extend(part for key in sorted(item) for part in (item[key], key))
        elif is_array(item):
            parts.append(b"[%d," % len(item))
            rest.extend(item)
        elif isinstance(item, float) and item.is_integer():
            parts.append(b"n%d," % int(item))
        elif item is None or isinstance(item, bool):
            parts.append(b"%a," % item)
        else:
            parts.append(b"n%a," % item)
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()
