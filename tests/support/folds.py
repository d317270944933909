"""Folds of logs, and all that a fold says, to be compared."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from dshd.sessions.fold import Fold

if TYPE_CHECKING:
    from collections.abc import Iterable

STATE = (
    *("next_seq", "last_time", "last_type", "turns", "last_turn", "open_turn", "open_step"),
    *("last_step", "title", "request_header", "request_context", "committed"),
    *("pending", "calls", "nested", "nested_ids"),
)


def state(fold: Fold) -> dict[str, Any]:
    """Return everything that a fold says, with the order of its calls."""
    found = {name: copy.copy(getattr(fold, name)) for name in STATE}
    found |= {"order": list(fold.pending), "nodes": list(fold.surface.nodes)}
    return found | {"generation": fold.surface.generation}


def folded(events: Iterable[dict[str, Any]]) -> Fold:
    """Return the fold of a stored log."""
    fold = Fold()
    for event in events:
        fold.apply(event)
    return fold
