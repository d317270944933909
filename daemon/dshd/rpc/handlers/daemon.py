"""The daemon as a whole, and the greeting of a connection."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsh_protocol import openrpc
from dsh_protocol.errors import ProtocolVersionError
from dsh_protocol.version import FORMAT_VERSION, OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, VERSION
from dshd.metrics import CONTENT_TYPE
from dshd.rpc.condition import degraded, measure
from dshd.sessions.catalogue import counts
from dshd.sessions.ending import unwritten_error
from dshd.settings import SHUTDOWN_FLUSH_S

if TYPE_CHECKING:
    from dsh_protocol.methods import daemon as methods
    from dshd.rpc.context import Context, Services

_NAME = "dshd"


async def initialize(context: Context, params: methods.InitializeParams) -> dict[str, Any]:
    """Take the client's name, and say who answers."""
    if params.protocol_version < OLDEST_PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"the client speaks protocol {params.protocol_version} and daemon {VERSION} speaks"
            f" {PROTOCOL_VERSION}; upgrade the client",
            client=params.protocol_version,
            daemon=PROTOCOL_VERSION,
        )
    context.connection.client = params.client.name
    return {
        "protocolVersion": min(params.protocol_version, PROTOCOL_VERSION),
        "server": _server(context.services),
        "limits": context.services.settings.limits,
        "capabilities": {
            "formatVersion": FORMAT_VERSION,
            "compression": context.services.settings.compression,
            "batches": True,
            "protocolVersions": {"oldest": OLDEST_PROTOCOL_VERSION, "newest": PROTOCOL_VERSION},
        },
    }


async def status(context: Context, params: methods.StatusParams) -> dict[str, Any]:  # noqa: ARG001  # it has none
    """Show the daemon's state and what is wrong, if anything is."""
    services = context.services
    views = await services.catalogue.list_all()
    problems = await degraded(services)
    problems += [view["problem"] for view in views if view["problem"] is not None]
    return {
        "server": _server(services),
        "startedAt": services.started_at,
        "sessions": counts(views),
        "limits": services.settings.limits,
        "socket": services.socket,
        "root": str(services.settings.root),
        "problems": problems,
    }


async def metrics(context: Context, params: methods.MetricsParams) -> dict[str, Any]:  # noqa: ARG001  # it has none
    """Return the metrics as OpenMetrics text."""
    await measure(context.services)
    return {"contentType": CONTENT_TYPE, "text": context.services.metrics.render()}


async def shutdown(context: Context, params: methods.ShutdownParams) -> dict[str, Any]:  # noqa: ARG001  # it has none
    """Make what was admitted durable, answer, then stop; where it cannot be made durable, the answer says so."""
    left = await context.services.registry.flush_all(SHUTDOWN_FLUSH_S)
    context.call.after_reply = context.services.stopping.set
    if left:
        raise unwritten_error(left)
    return {}


async def discover(context: Context, params: methods.DiscoverParams) -> dict[str, Any]:  # noqa: ARG001  # it has none
    """Describe every method."""
    return await context.services.registry.in_reader(openrpc.discover)


def _server(services: Services) -> dict[str, Any]:
    return {
        "name": _NAME,
        "version": VERSION,
        "pid": os.getpid(),
        "instanceId": services.instance_id,
    }
