"""Turns as an agent plays them, over anything that makes calls: a connection or a puppet.

The one rule: these helpers send what a well-behaved agent sends; what a test is about it sends itself.
"""

from __future__ import annotations

from typing import Any, Protocol

from support import events


class Caller(Protocol):
    """What makes calls."""

    def call(self, method: str, /, **params: Any) -> Any:
        """Make a call and return its result."""
        ...


def opening(turn: int = 1) -> list[events.Event]:
    """Return the events before the first model request of a turn."""
    begun = [events.turn_start(turn), events.step_start(1, turn), events.user(f"turn {turn}")]
    return [*begun, events.request_header()]


def begin_turn(caller: Caller, session_id: str, *calls: str, **params: Any) -> dict[str, Any]:
    """Create a session and play its first turn up to a durable answer that asks for `calls`.

    Returns:
        `id` and `writer`, to be passed on with every call.
    """
    made = caller.call("session.create", id=session_id, cwd="/w", **params)
    handle = {"id": session_id, "writer": made["writer"]}
    caller.call("checkpoint.request", **handle, events=opening(), expectedSeq=0)
    if calls:
        asked = [events.assistant(*calls)]
        caller.call("session.append", **handle, events=asked, expectedSeq=4)
        caller.call("session.flush", **handle)
    return handle


def tool(call_id: str) -> dict[str, Any]:
    """Return the parameters that start a call which `events.assistant` asks for."""
    return {"callId": call_id, "name": "t", "arguments": f'{{"for":"{call_id}"}}'}


def end_turn(caller: Caller, handle: dict[str, Any], turn: int = 1) -> dict[str, Any]:
    """End the open step and turn."""
    ended: dict[str, Any] = caller.call(
        "checkpoint.turnEnd",
        **handle,
        events=[events.step_end(1, turn)],
        reason={"kind": "completed"},
    )
    return ended


def write_session(caller: Caller, session_id: str, **params: Any) -> int:
    """Create a session with one whole turn, close it, and return its next seq."""
    handle = begin_turn(caller, session_id, **params)
    caller.call("session.append", **handle, events=[events.assistant()])
    end_turn(caller, handle)
    closed: dict[str, int] = caller.call("session.close", **handle)
    return closed["nextSeq"]


def types(stored: list[events.Event]) -> list[str]:
    """Return the types of events, in order."""
    return [event["type"] for event in stored]
