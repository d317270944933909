"""Spans of the daemon's own work by OpenTelemetry, where `dshd serve --traces` asks for them.

The one rule: nothing imports this module but a daemon that was asked to trace, so that all others pay nothing. A span
holds what the labels of a metric hold: no id, no path, no content.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind

from dsh_protocol.version import VERSION
from dshd.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Tracer

_CLOSE_LIMIT_S = 2.0
_NAMES = {
    "dshd_fsync_seconds": "fsync",
    "dshd_flush_seconds": "flush",
    "dshd_checkpoint_seconds": "checkpoint",
}
_CALLS = "dshd_call_seconds"


def open_traces() -> tuple[Metrics, Callable[[], None]]:
    """Return metrics that leave spans, too, and what sends the last of them; it takes two seconds at most.

    Where they go is said by the variables that OpenTelemetry defines, such as `OTEL_EXPORTER_OTLP_ENDPOINT`.
    """
    resource = Resource.create({"service.name": "dshd", "service.version": VERSION})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))

    def close() -> None:
        # A collector that does not answer must not keep the daemon from its end.
        last = threading.Thread(target=provider.shutdown, daemon=True)
        last.start()
        last.join(_CLOSE_LIMIT_S)

    return TracedMetrics(provider.get_tracer("dshd", VERSION)), close


class TracedMetrics(Metrics):
    """Metrics that leave a span for each call, checkpoint, flush and fsync that they are told of.

    Args:
        tracer: Makes the spans. Each stands alone: what a write serves is not known where it is measured.
    """

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Count the value, and leave the span that ends now and took so many seconds."""
        super().observe(name, value, **labels)
        attributes = {f"dshd.{label}": text for label, text in labels.items()}
        if name == _CALLS:
            self._leave(labels["method"], value, attributes, SpanKind.SERVER)
        elif name in _NAMES:
            self._leave(_NAMES[name], value, attributes, SpanKind.INTERNAL)

    def _leave(self, name: str, seconds: float, attributes: dict[str, str], kind: SpanKind) -> None:
        ended = time.time_ns()
        began = ended - int(seconds * 1e9)
        span = self._tracer.start_span(name, kind=kind, attributes=attributes, start_time=began)
        span.end(ended)
