"""What is counted and told of each attempt of a session's drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from dshd.sessions.incidents import new_incident

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh_protocol.errors import DshdError, InternalFaultError
    from dsh_protocol.events import Event
    from dshd.sessions.registry import Registry

log = structlog.get_logger()

_SEALING = frozenset({"SESSION_SEALED", "LOG_CHANGED"})


class SessionObserver:
    """Counts a session's attempts and passes durable events on. As `DrainObserver`."""

    def __init__(self, registry: Registry, session_id: str) -> None:
        self._registry = registry
        self._session_id = session_id
        self._sealed = False

    def batch_durable(self, events: Sequence[Event], size: int, seconds: float) -> None:
        """Count the batch and tell those who follow the session."""
        metrics = self._registry.metrics
        metrics.inc("dshd_flushes")
        metrics.inc("dshd_events", len(events))
        metrics.observe("dshd_flush_seconds", seconds)
        metrics.observe("dshd_batch_events", len(events))
        self._registry.batch_durable(self._session_id, events, size)

    def batch_failed(self, error: DshdError, seconds: float) -> None:
        """Count and log the failure."""
        self._registry.metrics.inc("dshd_flush_failures", kind=error.kind)
        if error.kind in _SEALING and not self._sealed:
            self._sealed = True
            self._registry.metrics.inc("dshd_sessions_sealed")
        log.warning(
            "session.flush_failed", session=self._session_id, kind=error.kind, seconds=seconds
        )

    def fault(self, error: BaseException) -> InternalFaultError:
        """Log a defect of the store under an incident."""
        return new_incident("session.flush_fault", error, session=self._session_id)
