"""What a decoded JSON value is, told so that type checkers follow. Standard library only."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest whole number up to which a double holds every one."""


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Whether a JSON value is an array."""
    return isinstance(value, list)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a JSON value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether a JSON value is a whole number from 0 to 2^53 - 1. `2.0` is one; true and negative zero are none."""
    return is_safe_integer(value) and value >= 0 and math.copysign(1, value) > 0


def is_safe_integer(value: Any) -> bool:
    """Whether a JSON value is a whole number that a double holds exactly. `-2.0` is one; true is none."""
    if type(value) is int:
        return -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER
    return (
        is_number(value) and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER and value == int(value)
    )
