"""The four checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from dsh_protocol.errors import DshdError
from dshd.sessions import checkpoints
from dshd.sessions.asked import Asked

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from dsh_protocol.methods import checkpoint as methods
    from dshd.rpc.context import Context
    from dshd.sessions.session import Session


async def request(context: Context, params: methods.RequestParams) -> dict[str, Any]:
    """Before the model request is sent."""
    asked = Asked(
        params.events or (), params.expected_seq, context.call.size, checkpoints.request_condition
    )
    return await _measured(context, "request", _plain(context, params.id, params.writer, asked))


async def post_step(context: Context, params: methods.PostStepParams) -> dict[str, Any]:
    """After a completed step."""
    asked = Asked(
        params.events or (), params.expected_seq, context.call.size, checkpoints.post_step_condition
    )
    return await _measured(context, "postStep", _plain(context, params.id, params.writer, asked))


async def turn_end(context: Context, params: methods.TurnEndParams) -> dict[str, Any]:
    """At the end of a turn."""
    asked = Asked(
        params.events or (),
        params.expected_seq,
        context.call.size,
        checkpoints.turn_end_condition(params.reason, params.time),
        checkpoints.ends_turn(params.reason),
    )
    return await _measured(context, "turnEnd", _plain(context, params.id, params.writer, asked))


async def tool(context: Context, params: methods.ToolParams) -> dict[str, Any]:
    """Before a tool's body runs."""
    start = checkpoints.ToolStart(
        call_id=params.call_id,
        name=params.name,
        arguments=params.arguments,
        parent_call_id=params.parent_call_id,
        time=params.time,
    )
    asked = Asked(params.events or (), params.expected_seq, context.call.size)
    session = _session(context, params.id)
    served = checkpoints.checkpoint_tool(session, params.writer, start, asked, context.caller())
    return await _measured(context, "tool", served)


def _session(context: Context, session_id: str) -> Session:
    return context.services.registry.writable(session_id)


async def _plain(context: Context, session_id: str, writer: str, asked: Asked) -> dict[str, Any]:
    session = _session(context, session_id)
    return await checkpoints.checkpoint(session, writer, asked, context.caller())


async def _measured(
    context: Context, name: str, served: Awaitable[dict[str, Any]]
) -> dict[str, Any]:
    metrics = context.services.metrics
    began = trio.current_time()
    try:
        result = await served
    except DshdError as error:
        metrics.inc("dshd_checkpoint_failures", checkpoint=name, kind=error.kind)
        raise
    metrics.observe("dshd_checkpoint_seconds", trio.current_time() - began, checkpoint=name)
    return result
