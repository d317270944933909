"""The daemon's own figures, printed as OpenMetrics text.

The one rule: the names and labels are a closed table, and no label holds anything that a client chose freely
(no session id, no path), so that the number of series is bounded.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]
_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_BUCKETS_COUNT = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 1000.0, 5000.0, 20000.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name (a counter's without `_total`), kind, meaning, labels and, for a histogram, bounds."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "dshd_build_info", "gauge", "Version of the running program, as a label.", ("version",)
        ),
        Family("dshd_start_time_seconds", "gauge", "When the daemon started, in Unix time."),
        Family("dshd_connections", "gauge", "Open connections."),
        Family("dshd_connections_opened", "counter", "Connections accepted."),
        Family(
            "dshd_accept_failures",
            "counter",
            "Connections not accepted for want of descriptors or memory.",
        ),
        Family("dshd_peers_refused", "counter", "Connections closed unread.", ("reason",)),
        Family(
            "dshd_connections_turned_away", "counter", "Connections beyond maxConnections, told so."
        ),
        Family(
            "dshd_connections_overdue",
            "counter",
            "Connections ended by a deadline: hello, frame or unsent.",
            ("deadline",),
        ),
        Family(
            "dshd_calls",
            "counter",
            "Calls answered; kind is OK or an error kind.",
            ("method", "kind"),
        ),
        Family(
            "dshd_call_seconds",
            "histogram",
            "From reading a call to its reply.",
            ("method",),
            _BUCKETS_S,
        ),
        Family(
            "dshd_notifications_dropped", "counter", "Notifications not carried out.", ("reason",)
        ),
        Family("dshd_sessions", "gauge", "Live sessions by state.", ("state",)),
        Family(
            "dshd_sessions_failing",
            "gauge",
            "Live sessions whose last write failed; see the problems.",
        ),
        Family("dshd_events", "counter", "Events made durable."),
        Family("dshd_pending_events", "gauge", "Events admitted and not yet durable."),
        Family("dshd_pending_bytes", "gauge", "Size of the events admitted and not yet durable."),
        Family("dshd_flushes", "counter", "Batches made durable."),
        Family(
            "dshd_flush_failures", "counter", "Batches that could not be made durable.", ("kind",)
        ),
        Family("dshd_flush_seconds", "histogram", "Write and sync of one batch.", (), _BUCKETS_S),
        Family(
            "dshd_batch_events", "histogram", "Events in one durable batch.", (), _BUCKETS_COUNT
        ),
        Family("dshd_fsync_seconds", "histogram", "One sync of one file.", (), _BUCKETS_S),
        Family("dshd_written_bytes", "counter", "Bytes written to logs and what lies beside them."),
        Family("dshd_log_bytes", "gauge", "Size of the logs of live sessions."),
        Family("dshd_open_tool_calls", "gauge", "Calls of live sessions without a result."),
        Family(
            "dshd_checkpoint_seconds",
            "histogram",
            "A checkpoint's wait.",
            ("checkpoint",),
            _BUCKETS_S,
        ),
        Family(
            "dshd_checkpoint_failures", "counter", "Checkpoints refused.", ("checkpoint", "kind")
        ),
        Family("dshd_repairs", "counter", "Unanswered calls told to a new writer.", ("code",)),
        Family("dshd_recoveries", "counter", "Interrupted turns closed."),
        Family("dshd_sessions_sealed", "counter", "Sessions sealed after a failed append."),
        Family("dshd_subscriptions", "gauge", "Open subscriptions."),
        Family(
            "dshd_subscriptions_lagged", "counter", "Subscriptions ended because they fell behind."
        ),
        Family(
            "dshd_disk_free_bytes", "gauge", "Free space where the root lies; -1 where unknown."
        ),
        Family("process_cpu_seconds", "counter", "Computing time of the daemon."),
        Family("process_resident_memory_bytes", "gauge", "Memory of the daemon."),
        Family("process_open_fds", "gauge", "Open descriptors of the daemon."),
        Family("process_max_fds", "gauge", "Descriptors that it may have."),
    )
}


@dataclass(slots=True)
class _Histogram:
    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0


@dataclass(slots=True)
class Metrics:
    """Counters, gauges and histograms of one daemon. Safe to use from any thread."""

    _values: dict[tuple[str, tuple[str, ...]], float] = field(
        default_factory=dict[tuple[str, tuple[str, ...]], float]
    )
    _histograms: dict[tuple[str, tuple[str, ...]], _Histogram] = field(
        default_factory=dict[tuple[str, tuple[str, ...]], _Histogram]
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def inc(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter, or to a gauge (there also below zero)."""
        key = _key(name, labels)
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        key = _key(name, labels)
        with self._lock:
            self._values[key] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Count one value (seconds, or what the histogram's name says)."""
        key = _key(name, labels)
        with self._lock:
            histogram = self._histograms.get(key)
            if histogram is None:
                bounds = FAMILIES[name].bounds
                histogram = self._histograms[key] = _Histogram(bounds, [0] * (len(bounds) + 1))
            histogram.counts[bisect_left(histogram.bounds, value)] += 1
            histogram.total += value

    def value(self, name: str, **labels: str) -> float:
        """Return a counter's or a gauge's value; 0 where it was never touched."""
        with self._lock:
            return self._values.get(_key(name, labels), 0)

    def render(self) -> str:
        """Return everything as OpenMetrics text; its type is `CONTENT_TYPE`."""
        with self._lock:
            values = sorted(self._values.items())
            histograms = [
                (key, list(h.counts), h.total) for key, h in sorted(self._histograms.items())
            ]
        lines: list[str] = []
        for family in FAMILIES.values():
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines.append(f"# HELP {family.name} {family.meaning}")
            suffix = "_total" if family.kind == "counter" else ""
            lines += [
                f"{family.name}{suffix}{_labelled(family, labels)} {_number(value)}"
                for (name, labels), value in values
                if name == family.name
            ]
            for (name, labels), counts, total in histograms:
                if name == family.name:
                    lines += _histogram_lines(family, labels, counts, total)
        return "\n".join([*lines, "# EOF", ""])


_PLAIN: dict[str, tuple[str, tuple[str, ...]]] = {
    family.name: (family.name, ()) for family in FAMILIES.values() if not family.labels
}
_LABELS = {family.name: family.labels for family in FAMILIES.values()}


def _key(name: str, labels: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    if not labels and name in _PLAIN:
        return _PLAIN[name]
    wanted = _LABELS[name]
    if tuple(labels) == wanted:  # as it is mostly said
        return name, tuple(labels.values())
    if len(labels) != len(wanted):
        raise ValueError(f"metric {name!r} has the labels {wanted!r}, got {tuple(labels)!r}")
    return name, tuple(labels[label] for label in wanted)


def _histogram_lines(
    family: Family, labels: tuple[str, ...], counts: list[int], total: float
) -> Iterator[str]:
    seen = 0
    own = _pairs(family, labels)
    bucket = f"{family.name}_bucket{{{own}{',' if own else ''}"
    for bound, count in zip((*family.bounds, float("inf")), counts, strict=True):
        seen += count
        yield f'{bucket}le="{_number(bound)}"}} {seen}'
    braced = f"{{{own}}}" if own else ""
    yield f"{family.name}_sum{braced} {_number(total)}"
    yield f"{family.name}_count{braced} {seen}"


def _labelled(family: Family, values: tuple[str, ...]) -> str:
    return f"{{{_pairs(family, values)}}}" if values else ""


def _pairs(family: Family, values: tuple[str, ...]) -> str:
    pairs = zip(family.labels, values, strict=True)
    return ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return repr(int(value)) if isinstance(value, int) else repr(value)
