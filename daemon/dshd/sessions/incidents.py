"""Incidents: a defect of the daemon is logged here under a number, and only the number crosses the wire."""

from __future__ import annotations

import secrets

import structlog

from dsh_protocol.errors import InternalFaultError

log = structlog.get_logger()


def new_incident(event: str, error: BaseException, **where: str) -> InternalFaultError:
    """Log an error nobody expected and return the one that the caller may see.

    The log gets the type and the frames; the exception's text may hold a session's content and goes nowhere.
    """
    incident = secrets.token_hex(8)
    log.error(event, incident=incident, exc_info=error, **where)
    return InternalFaultError(
        f"the daemon met a defect of its own; its log has the details under incident {incident}",
        incident=incident,
    )
