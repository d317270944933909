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


def has_utf8(text: str) -> bool:
    """Whether a word of the command line is text. One that was not UTF-8 there names nothing here."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
