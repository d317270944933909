"""JSON values of answers, taken apart without trusting their shape: an odd answer prints oddly and never crashes."""

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
