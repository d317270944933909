"""The four checkpoints: what must be durable before the agent goes on.

A checkpoint that fails answers an error, and then the caller sends no request and runs no body.
"""

from __future__ import annotations

from typing import Any, Literal

from dsh_protocol.objects import Count, Events, Milliseconds, Params, Result


class RequestParams(Params, frozen=True):
    """Before the model is called: everything so far is durable, in an open step with a header in force."""

    id: str
    writer: str
    events: Events | None = None
    expected_seq: Count | None = None


class ToolParams(Params, frozen=True):
    """Before a tool's body runs: the call is recorded and durable. Run it only on `DISPATCH`.

    Attributes:
        arguments: The JSON text as the model wrote it.
        parent_call_id: Makes it a dispatch from inside that call, which flushes nothing.
        time: Of the call's event; the daemon's clock where absent.
        events: Recorded before the call, in the same batch.
    """

    id: str
    writer: str
    call_id: str
    name: str
    arguments: str
    parent_call_id: str | None = None
    time: Milliseconds | None = None
    events: Events | None = None
    expected_seq: Count | None = None


class ToolResult(Result, frozen=True):
    """Whether the body runs.

    Attributes:
        call_seq: Of the event that records the call.
        duplicate: The call had been recorded before; the decision is the first one.
        result: What to record as the call's result where it does not run; null where it does.
    """

    decision: Literal["DISPATCH", "ABORTED_BEFORE_DISPATCH"]
    call_seq: int
    next_seq: int
    durable_seq: int
    idempotency_key: str
    duplicate: bool
    result: dict[str, Any] | None


class PostStepParams(Params, frozen=True):
    """After a step: its message, its results and its end are durable."""

    id: str
    writer: str
    events: Events | None = None
    expected_seq: Count | None = None


class TurnEndParams(Params, frozen=True):
    """Append the turn's end and make it durable.

    Attributes:
        reason: `{"kind": "completed"}` and the like; `interrupted` is refused.
        time: Of the end's event; the daemon's clock where absent.
    """

    id: str
    writer: str
    reason: dict[str, Any]
    time: Milliseconds | None = None
    events: Events | None = None
    expected_seq: Count | None = None
