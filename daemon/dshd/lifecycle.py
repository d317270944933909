"""The nursery tree of the daemon. Shutdown is nesting: what began last ends first.

sessions             ends last: every session flushes, then its drain stops
connections        get a deadline, not a cancel, once nobody can connect any more
acceptors        cancelled first, by SIGTERM, SIGINT or daemon.shutdown
"""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from dsh_protocol.errors import EXIT_FAILURE, EXIT_OK, DshdError, RootLockedError
from dsh_protocol.version import VERSION
from dshd import systemd
from dshd.listener import open_listeners, run_acceptor, run_listeners
from dshd.metrics import Metrics
from dshd.rpc.condition import one_line
from dshd.rpc.connection import serve_connection
from dshd.rpc.context import Services
from dshd.rpc.dispatch import Dispatcher
from dshd.rpc.duplex import SocketDuplex
from dshd.rpc.handlers import HANDLERS
from dshd.sessions.catalogue import Catalogue
from dshd.sessions.measured import MeasuredDisk
from dshd.sessions.registry import Registry
from dshd.sessions.search import Search
from dshd.sessions.session import now_ms
from dshd.settings import NO_TRACES, SHUTDOWN_FLUSH_S, CannotStartError
from dshd.storage.jsonl.lock import lock_root
from dshd.storage.jsonl.store import open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from dshd.listener import Listeners
    from dshd.sessions.processes import Peer
    from dshd.settings import Settings
    from dshd.storage.jsonl.lock import RootLock
    from dshd.storage.store import SessionStore

log = structlog.get_logger()

_CONNECTIONS_GRACE_S = 2.0
_END_S = 0.5
"""For the handles to be closed, after the flushes."""
_FAULT_LIMIT_S = 10
_STATUS_EVERY_S = 5.0


async def serve(settings: Settings) -> int:
    """Run the daemon until it is told to stop.

    Returns:
        The exit code: 0, or 1 when admitted events could not be made durable at the end.

    Raises:
        CannotStartError, RootLockedError: It cannot start; nothing was changed.
    """
    started_at = now_ms()
    stopping = trio.Event()
    deafen = _be_deaf_once(stopping)
    with ExitStack() as stack:
        stack.callback(signal.alarm, 0)
        metrics = _open_metrics(settings, stack)
        stack.callback(_lock(settings, started_at).close)
        listeners = stack.enter_context(open_listeners(settings))
        store = open_store(
            settings.root, compression=settings.compression, disk=MeasuredDisk(metrics)
        )
        stack.callback(store.close)
        metrics.set("dshd_build_info", 1, version=VERSION)
        metrics.set("dshd_start_time_seconds", started_at / 1000)
        ground = Ground(
            settings=settings,
            store=store,
            metrics=metrics,
            socket=listeners.address(),
            unreachable=lambda: listeners.problem,
            started_at=started_at,
            stopping=stopping,
        )
        written = await run_sessions(ground, partial(_serve_until_stopped, listeners))
    deafen()
    log.info("daemon.stopped", written=written)
    return EXIT_OK if written else EXIT_FAILURE


def _lock(settings: Settings, started_at: int) -> RootLock:
    try:
        return lock_root(settings.root, socket=str(settings.socket), since=started_at)
    except RootLockedError:
        raise
    except DshdError as error:
        raise CannotStartError(f"the root cannot be locked: {error}") from error


def _open_metrics(settings: Settings, stack: ExitStack) -> Metrics:
    """Return the daemon's metrics, which leave spans where that was asked for; the last are sent on leaving."""
    if not settings.traces:
        return Metrics()
    try:
        from dshd.tracing import open_traces  # noqa: PLC0415  # a daemon that does not trace does not load it
    except ImportError as error:
        raise CannotStartError(NO_TRACES) from error
    metrics, close = open_traces()
    stack.callback(close)
    return metrics


@dataclass(frozen=True, slots=True)
class Ground:
    """What a daemon stands on while it serves; see `Services`."""

    settings: Settings
    store: SessionStore
    metrics: Metrics
    socket: str
    unreachable: Callable[[], str | None]
    started_at: int
    stopping: trio.Event


async def run_sessions(ground: Ground, serve: Callable[[Services], Awaitable[float]]) -> bool:
    """Have sessions live while `serve` runs; then flush and end every one.

    Args:
        ground: What they stand on.
        serve: Returns when it was told to stop: the time that a stop may take counts from there.

    Returns:
        Whether everything that was admitted is durable.
    """
    settings = ground.settings
    async with trio.open_nursery() as sessions:
        registry = Registry(
            ground.store,
            limits=settings.limits,
            window=settings.batch_window_s,
            metrics=ground.metrics,
            nursery=sessions,
        )
        catalogue = Catalogue(registry)
        sessions.start_soon(catalogue.run)
        search = Search(catalogue, ground.store, str(settings.root))
        services = Services(
            settings=settings,
            registry=registry,
            catalogue=catalogue,
            search=search,
            metrics=ground.metrics,
            unreachable=ground.unreachable,
            socket=ground.socket,
            instance_id=secrets.token_hex(8),
            started_at=ground.started_at,
            places=trio.CapacityLimiter(settings.limits.max_connections),
            stopping=ground.stopping,
        )
        told_at = await serve(services)
        search.close()
        written = await registry.shut_down(_left(told_at + SHUTDOWN_FLUSH_S))
        await registry.wait_ended(_left(told_at + SHUTDOWN_FLUSH_S) + _END_S)
        sessions.cancel_scope.cancel()
    return written


def _left(deadline: float) -> float:
    return max(deadline - trio.current_time(), 0.0)


@contextmanager
def _ends_in_time() -> Generator[None, None, None]:
    """Have a fault end the process, whatever is stuck then: it is started again, a daemon that hangs is not.

    Without memory even the event loop fails, and the result of a thread may never arrive. SIGALRM kills like SIGKILL
    does: nothing acknowledged is lost.
    """
    try:
        yield
    except BaseException as error:
        signal.alarm(_FAULT_LIMIT_S)
        if isinstance(error, Exception):
            log.exception("daemon.fault", exc_info=error)
        raise


def _be_deaf_once(stopping: trio.Event) -> Callable[[], None]:
    """Let the signals that stop do what they do by default until they are watched, and nothing once it is stopping.

    Whoever watched a signal gives back the handler that it found, and sends itself again what it did not come to see:
    without this one the second SIGTERM of an impatient user would kill a daemon that is making events durable.

    Returns:
        A function that ignores them for good, to be called at the end: Python takes its own handlers away before the
        process has ended.
    """
    numbers = _stopping_signals()

    def handle(number: int, _frame: object) -> None:
        if not stopping.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def ignore() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    for number in numbers:
        signal.signal(number, handle)
    return ignore


def _stopping_signals() -> list[signal.Signals]:
    """SIGTERM, SIGINT, and SIGHUP unless the daemon was started with it ignored (`nohup`)."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


async def _serve_until_stopped(listeners: Listeners, services: Services) -> float:
    """Accept and serve until the daemon is to stop; then give the connections a little time to end.

    Returns:
        When it was told to stop.
    """
    dispatcher = Dispatcher(HANDLERS)

    async def serve_one(stream: trio.SocketStream, peer: Peer) -> None:
        await serve_connection(services, dispatcher, SocketDuplex(stream), peer)

    async def accept(connections: trio.Nursery) -> None:
        async with trio.open_nursery() as acceptors:
            acceptors.start_soon(_watch_signals, services.stopping)
            acceptors.start_soon(_feed_watchdog, services.registry)
            acceptors.start_soon(_tell_status, services)
            each = partial(
                run_acceptor, connections=connections, serve=serve_one, metrics=services.metrics
            )
            acceptors.start_soon(run_listeners, listeners, services.settings, each)
            systemd.notify("READY=1", f"STATUS=serving {services.socket}")
            log.info("daemon.ready", socket=services.socket, root=services.settings.root)
            await services.stopping.wait()
            systemd.notify("STOPPING=1", "STATUS=making admitted events durable")
            log.info("daemon.stopping")
            services.registry.closing = True
            acceptors.cancel_scope.cancel()

    with _ends_in_time():
        return await run_connections(accept)


async def run_connections(accept: Callable[[trio.Nursery], Awaitable[None]]) -> float:
    """Run connections beside `accept`, which starts them, and a little longer. Returns when `accept` ended."""
    async with trio.open_nursery() as connections:
        await accept(connections)
        told_at = trio.current_time()
        connections.cancel_scope.deadline = told_at + _CONNECTIONS_GRACE_S
    return told_at


async def _watch_signals(stop: trio.Event) -> None:
    """Set `stop` at the first SIGTERM, SIGINT or SIGHUP; more of them change nothing, and SIGUSR1 never does."""
    with trio.open_signal_receiver(*_stopping_signals(), signal.SIGUSR1) as signals:
        async for number in signals:
            if number != signal.SIGUSR1:
                stop.set()


async def _feed_watchdog(registry: Registry) -> None:
    """Tell the service manager that loop and registry work; a slow, full or failing disk does not stop it."""
    interval = systemd.watchdog_interval()
    if interval is None:
        return
    while True:
        if registry.summary():
            systemd.notify("WATCHDOG=1")
        await trio.sleep(interval)


async def _tell_status(services: Services) -> None:
    """Keep the service manager's status line true."""
    if "NOTIFY_SOCKET" not in os.environ:
        return
    while True:
        await trio.sleep(_STATUS_EVERY_S)
        with suppress(DshdError):  # no thread, no descriptor: the next one will tell
            systemd.notify(f"STATUS={await one_line(services)}")
