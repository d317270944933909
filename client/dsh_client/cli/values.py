"""Values taken apart without trusting their shape: an odd answer prints oddly and never crashes."""

from __future__ import annotations

from typing import Any, TypeGuard


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object, or an empty one where `value` is something else."""
    return value if _is_object(value) else {}


def as_list(value: Any) -> list[Any]:
    """Return a JSON array, or an empty one where `value` is something else."""
    return value if _is_list(value) else []


def count(text: str) -> int:
    """Return a number of things from the command line; argparse names this function in its refusal."""
    value = int(text)
    if value < 0:
        raise ValueError
    return value


_UNITS = {"s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def duration(text: str) -> int:
    """Return the milliseconds of `30d`, `12h`, `2w`, `45min` or `90s`; argparse names this function in its refusal."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    if not (number.isascii() and number.isdigit()) or text[len(number) :] not in _UNITS:
        raise ValueError(f"{text!r} is no age such as 30d")
    return int(number) * _UNITS[text[len(number) :]]


def has_utf8(text: str) -> bool:
    """Whether a word of the command line is text. One that was not UTF-8 there names nothing here."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
