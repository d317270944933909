"""The daemon's own spans: not loaded and not sent unless asked for; then without ids and content."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.daemon import open_daemon
from support.rpc import Connection

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

CANARY = "sk-canary-77ab"
needs_otel = pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry") is None,
    reason="OpenTelemetry is not installed: pip install 'dshd[otel]'",
)


def test_without_traces_no_part_of_opentelemetry_is_loaded() -> None:
    code = (
        "import sys, dshd.main, dshd.lifecycle, dshd.checking\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("verb", ["serve", "check-config"])
def test_where_opentelemetry_is_missing_the_start_says_how_to_get_it(
    tmp_path: Path, verb: str
) -> None:
    missing = tmp_path / "opentelemetry"
    missing.mkdir()
    (missing / "__init__.py").write_text("raise ImportError")
    done = subprocess.run(
        [sys.executable, "-m", "dshd.main", verb, "--traces"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "DSHD_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 78
    assert "pip install 'dshd[otel]'" in done.stderr


@needs_otel
def test_a_span_ends_where_it_was_measured_and_has_the_labels_alone() -> None:
    exporting: Any = import_module("opentelemetry.sdk.trace.export")
    memory = import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    provider: Any = import_module("opentelemetry.sdk.trace").TracerProvider()
    kept = memory.InMemorySpanExporter()
    provider.add_span_processor(exporting.SimpleSpanProcessor(kept))
    metrics = import_module("dshd.tracing").TracedMetrics(provider.get_tracer("t"))
    metrics.observe("dshd_fsync_seconds", 0.25)
    metrics.observe("dshd_checkpoint_seconds", 0.5, checkpoint="tool")
    metrics.observe("dshd_call_seconds", 0.5, method="session.open")
    metrics.observe("dshd_batch_events", 3)
    metrics.inc("dshd_events", 3)
    provider.shutdown()
    fsync, checkpoint, call = kept.get_finished_spans()
    assert (fsync.name, fsync.end_time - fsync.start_time) == ("fsync", 250_000_000)
    assert (checkpoint.name, dict(checkpoint.attributes)) == (
        "checkpoint",
        {"dshd.checkpoint": "tool"},
    )
    assert (call.name, call.kind.name) == ("session.open", "SERVER")
    assert "dshd_fsync_seconds_count 1" in metrics.render(), "it counts as ever"


@contextmanager
def collector() -> Generator[tuple[str, list[bytes]], None, None]:
    """What takes spans over HTTP on the loopback interface; its address, and the bodies that came."""
    bodies: list[bytes] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # says nothing
            return

    with HTTPServer(("127.0.0.1", 0), Taker) as server:
        running = threading.Thread(target=server.serve_forever, args=(0.05,))
        running.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", bodies
        finally:
            server.shutdown()
            running.join()


def span_names(bodies: list[bytes]) -> set[str]:
    taken = import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    requests = [taken.ExportTraceServiceRequest.FromString(body) for body in bodies]
    resources = [resource for request in requests for resource in request.resource_spans]
    scopes = [scope for resource in resources for scope in resource.scope_spans]
    return {span.name for scope in scopes for span in scope.spans}


@needs_otel
def test_a_daemon_that_traces_sends_its_work_and_no_id_and_no_content(tmp_path: Path) -> None:
    wanted = {"checkpoint", "flush", "fsync", "session.create", "session.open", "checkpoint.tool"}
    with collector() as (address, bodies):
        delay = {"OTEL_BSP_SCHEDULE_DELAY": "50", "NO_PROXY": "*"}
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, **delay}
        with open_daemon(tmp_path, flags=("--traces",), env=env) as daemon:
            with Connection(daemon.socket) as one:
                handle = turns.begin_turn(one, f"id-{CANARY}", "x")
                told = [events.chunk(CANARY)]
                one.call("checkpoint.tool", **handle, **turns.tool("x"), events=told)
                one.call("session.close", id=handle["id"], writer=handle["writer"])
                one.call("session.open", id=handle["id"], access="read")
            deadline = time.monotonic() + 30
            while not wanted <= span_names(list(bodies)) and time.monotonic() < deadline:
                time.sleep(0.05)  # a real daemon sends by the real clock
            assert daemon.stop() == 0
    assert wanted <= span_names(bodies)
    assert not [body for body in bodies if CANARY.encode() in body]


@needs_otel
def test_a_collector_that_does_not_answer_keeps_no_daemon_from_its_end(tmp_path: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "*"}
    with open_daemon(tmp_path, flags=("--traces",), env=env) as daemon:
        with Connection(daemon.socket) as one:
            handle = turns.begin_turn(one, "s")
            one.call("session.close", id="s", writer=handle["writer"])
        assert daemon.stop() == 0
        assert CANARY not in daemon.output()
