"""The idempotency key of the call whose body runs here: `idempotency_key()`, in any tool under any adapter.

The one rule: the same call has the same key after a crash, so what a tool changes can be asked whether it was done.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

_current: ContextVar[str | None] = ContextVar("dshd_idempotency_key", default=None)


def idempotency_key() -> str | None:
    """Return the key of the running call; None outside of a tool's body, or of a call that has none."""
    return _current.get()


@contextmanager
def running(key: str | None) -> Generator[None, None, None]:
    """Make a key the current one inside the block."""
    token = _current.set(key)
    try:
        yield
    finally:
        _current.reset(token)
