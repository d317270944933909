"""What a tool's body may know of the call that it runs for, under any adapter: its key, and a session for a sub-agent.

The one rule: the same call has the same key after a crash, so what a tool changes can be asked whether it was done.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from dsh_client.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Generator


class Child(TypedDict):
    """What an adapter is given for an agent that works for a call: `Dshd(**child_session())`."""

    session: str
    parent: str


@dataclass(frozen=True, slots=True)
class _Body:
    key: str | None
    session: str | None


_current: ContextVar[_Body | None] = ContextVar("dshd_running_body", default=None)


def idempotency_key() -> str | None:
    """Return the key of the running call; None outside of a tool's body, or of a call that has none."""
    body = _current.get()
    return None if body is None else body.key


def child_session(name: str = "agent") -> Child:
    """Return the session of an agent that the running call starts, and its parent; the same one for the same call.

    Args:
        name: Tells the agents of one call apart; part of the session's id.

    Raises:
        MisuseError: No call runs here.
    """
    body = _current.get()
    if body is None:
        raise MisuseError(
            "no tool's body runs here; ask for a child session inside of the tool that starts the agent"
        )
    return child_of(body.key, body.session, name)


def child_of(key: str | None, session: str | None, name: str = "agent") -> Child:
    """Return the same for a call whose key is at hand.

    Raises:
        MisuseError: There is no such call.
    """
    if key is None or session is None:
        raise MisuseError("a call without a key starts no agent with a session of its own")
    return {"session": f"{name}-{key.removeprefix('dshd1-')}", "parent": session}


def in_body_of(session: str | None) -> bool:
    """Whether a tool's body of that session runs here: what it asks a model is the body's own business."""
    body = _current.get()
    return body is not None and body.session is not None and body.session == session


@contextmanager
def running(key: str | None, session: str | None = None) -> Generator[None, None, None]:
    """Make a call the running one inside the block."""
    token = _current.set(_Body(key, session))
    try:
        yield
    finally:
        _current.reset(token)
