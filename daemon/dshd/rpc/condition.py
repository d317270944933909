"""How the daemon is: gauges that are read when somebody asks, and what is degraded and why.

The one rule: nothing here waits for a session. What the disk is asked (its free space) is asked in a thread.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dshd.mounts import network_warning
from dshd.sessions.views import live_view
from dshd.storage.jsonl.closed import closed_projects

if TYPE_CHECKING:
    from dshd.metrics import Metrics
    from dshd.rpc.context import Services
    from dshd.sessions.registry import Registry

LOW_SPACE_BYTES = 64 * 1024 * 1024
"""Below this the daemon says that space is low: what is pending at one time would hardly fit."""

STATES = ("idle", "active", "interrupted")
_PAGE = resource.getpagesize()


async def measure(services: Services) -> None:
    """Set the gauges that hold for this moment."""
    metrics, registry = services.metrics, services.registry
    _measure_sessions(metrics, registry)
    free = await registry.in_reader(free_bytes, services.settings.root)
    metrics.set("dshd_disk_free_bytes", -1 if free is None else free)
    _measure_process(metrics)


def _measure_sessions(metrics: Metrics, registry: Registry) -> None:
    live = list(registry.live.values())
    states = Counter(live_view(session)["state"] for session in live)
    for state in STATES:
        metrics.set("dshd_sessions", states[state], state=state)
    metrics.set("dshd_pending_events", sum(len(one.drain.pending) for one in live))
    metrics.set("dshd_pending_bytes", sum(one.drain.pending_bytes for one in live))
    metrics.set("dshd_open_tool_calls", sum(len(one.fold.pending) for one in live))
    metrics.set("dshd_log_bytes", sum(one.handle.size_bytes for one in live))
    metrics.set("dshd_sessions_failing", sum(one.drain.failure is not None for one in live))
    metrics.set("dshd_subscriptions", registry.watchers.count)


def _measure_process(metrics: Metrics) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    metrics.set("process_cpu_seconds", used.ru_utime + used.ru_stime)
    with suppress(OSError, ValueError):
        resident = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        metrics.set("process_resident_memory_bytes", resident * _PAGE)
        metrics.set("process_open_fds", sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1)
    metrics.set("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def free_bytes(root: Path) -> int | None:
    """What this user may still write where the root lies; None where that cannot be told. Blocking."""
    try:
        found = os.statvfs(root)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def read_only(root: Path) -> bool:
    """Whether the root lies on what is mounted for reading alone. Blocking."""
    try:
        return bool(os.statvfs(root).f_flag & os.ST_RDONLY)
    except OSError:
        return False


async def degraded(services: Services) -> list[dict[str, Any]]:
    """What is wrong with the daemon as a whole; the sessions' own problems are in their views."""
    root = services.settings.root
    free = await services.registry.in_reader(free_bytes, root)
    found = _disk_problems(str(root), free)
    if await services.registry.in_reader(read_only, root):
        text = f"the root {str(root)!r} is mounted read-only; sessions can be read, and nothing can be kept"
        found.append(_problem("WRITE_FAILED", text, str(root)))
    for path in await services.registry.in_reader(closed_projects, root):
        text = f"{path!r} is no directory of this user that can be read; the sessions in it are not shown: see to it"
        found.append(_problem("UNSAFE_PATH", text, path))
    remote = await services.registry.in_reader(network_warning, root)
    if remote is not None:
        found.append(_problem("UNSAFE_PATH", remote, str(root)))
    unreachable = services.unreachable()
    if unreachable is not None:
        found.append(_problem("UNSAFE_PATH", unreachable, services.socket))
    if not services.places.available_tokens:
        most = services.settings.limits.max_connections
        text = f"all {most} connections are taken (maxConnections); new clients are turned away"
        found.append(_problem("OVERLOADED", text, None))
    return found


def _disk_problems(root: str, free: int | None) -> list[dict[str, Any]]:
    if free is None:
        text = f"the root {root!r} cannot be looked at; see that it is mounted and readable"
        return [_problem("WRITE_FAILED", text, root)]
    if free < LOW_SPACE_BYTES:
        text = f"{free} bytes are free where the root lies; appends will be refused when there are none"
        return [_problem("NO_SPACE", text, root)]
    return []


def _problem(kind: str, message: str, path: str | None) -> dict[str, Any]:
    return {"kind": kind, "message": message, "path": path, "offset": None}


async def one_line(services: Services) -> str:
    """The state in a line, for the service manager."""
    problems = await degraded(services)
    text = services.registry.summary()
    return text if not problems else f"{text}; degraded: {problems[0]['message']}"
