"""The methods of the daemon as a whole, and of the connection."""

from __future__ import annotations

from typing import Any

import msgspec

from dsh_protocol.limits import Limits  # noqa: TC001  # msgspec reads the annotations
from dsh_protocol.objects import Count, Params, Problem, Result, Server


class Client(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Who connects. A newer client may say more than this; the pid of record is the kernel's."""

    name: str
    version: str
    pid: Count | None = None


class InitializeParams(Params, frozen=True):
    """Say who connects and which protocol it speaks. First by custom; no call requires it."""

    protocol_version: Count
    client: Client


class InitializeResult(Result, frozen=True):
    """Who answers, and what it takes. `capabilities` names what may be absent elsewhere."""

    protocol_version: int
    server: Server
    limits: Limits
    capabilities: dict[str, Any]


class CancelParams(Params, frozen=True):
    """Cancel a call of this connection, by its id. A finished or unknown one is no error."""

    id: int | str


class StatusParams(Params, frozen=True):
    """Show how the daemon is."""


class StatusResult(Result, frozen=True):
    """The daemon's state. `sessions` counts them by state, `problems` is empty when all is well."""

    server: Server
    started_at: int
    sessions: dict[str, int]
    limits: Limits
    socket: str
    root: str
    problems: list[Problem]


class MetricsParams(Params, frozen=True):
    """Read the daemon's metrics."""


class MetricsResult(Result, frozen=True):
    """Metrics in the OpenMetrics text format."""

    content_type: str
    text: str


class ShutdownParams(Params, frozen=True):
    """Stop the daemon; what was admitted is made durable first, or an error names what is given up."""


class DiscoverParams(Params, frozen=True):
    """Describe every method as an OpenRPC document."""
