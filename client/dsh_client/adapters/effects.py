"""What a tool's body does to the world outside, as its author declares it, and what that allows after a crash.

Pure. The one rule: a tool that says nothing counts as one with side effects, so nothing is repeated without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from dsh_client.adapters.seam import as_mapping

Effect: TypeAlias = Literal["read-only", "idempotent", "side-effect"]
EFFECTS: tuple[Effect, ...] = ("read-only", "idempotent", "side-effect")

EVENT_TYPE = "dshd/tool-effect"
"""Recorded before the `tool/call` it belongs to, in the same durable batch; `ignorable`: readers may skip it."""

_ATTRIBUTE = "__dshd_effect__"

Body = TypeVar("Body", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A call that began and whose outcome a crash took away; what a `verify` hook is asked about.

    Attributes:
        id: The model's id for it.
        name: The tool.
        arguments: The raw JSON text as the model wrote it.
        idempotency_key: What the body was given; look for it where the effect would be.
        effect: What the tool says of itself, if it does.
    """

    id: str
    name: str
    arguments: str
    idempotency_key: str | None
    effect: Effect | None


class Ask:
    """What a `verify` hook returns when it cannot tell: the model is told to find out or to ask the user."""


ASK = Ask()

Verify: TypeAlias = Callable[[Unfinished], Any]
"""Returns the call's result as it was found to be (text or blocks), or `ASK`."""


def effect(kind: Effect) -> Callable[[Body], Body]:
    """Return a decorator that declares what a tool's function does: `@effect("read-only")`."""
    if kind not in EFFECTS:
        raise ValueError(f"effect {kind!r} is none of {', '.join(EFFECTS)}")

    def mark(body: Body) -> Body:
        setattr(body, _ATTRIBUTE, kind)
        return body

    return mark


def declared(*places: Any) -> Effect | None:
    """Return what a tool says of itself: by the decorator, by `effect` in its metadata, or by MCP annotations.

    Args:
        *places: The tool, its function, its metadata; the first that says something counts.
    """
    for place in places:
        metadata = as_mapping(place)
        said: Any = _of_mapping(metadata) if metadata is not None else None
        said = said or getattr(place, _ATTRIBUTE, None)
        for known in EFFECTS:
            if said == known:
                return known
    return None


def repeatable(kind: Effect | None) -> bool:
    """Whether running the body again can do no harm."""
    return kind in {"read-only", "idempotent"}


def _of_mapping(metadata: Mapping[str, Any]) -> str | None:
    if metadata.get("effect"):
        return str(metadata["effect"])
    annotations: Any = metadata.get("annotations", metadata)
    if _hint(annotations, "readOnlyHint"):
        return "read-only"
    return "idempotent" if _hint(annotations, "idempotentHint") else None


def _hint(annotations: Any, name: str) -> bool:
    members = as_mapping(annotations)
    return bool(getattr(annotations, name, None) if members is None else members.get(name))
