"""How long an asynchronous framework's event loop stands still for a checkpoint, and what becomes of the rest."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
import pytest

from dsh_client.adapters import held, on_loop
from dsh_client.adapters.recorder import Recorder
from dsh_client.errors import ClientError, LatchedError
from dsh_protocol.errors import DshdError
from support.daemon import DaemonProcess, open_daemon
from support.recorded import HEADER, OK, asking, prompt, saying, types

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from pathlib import Path

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
STOPPED_S = 0.15


@pytest.fixture
def own_daemon(tmp_path: Path) -> Generator[DaemonProcess, None, None]:
    with open_daemon(tmp_path) as running:
        yield running


@pytest.fixture
def recorder(own_daemon: DaemonProcess) -> Generator[Recorder, None, None]:
    settings: Any = {"socket": str(own_daemon.socket), "timeout": 20.0}
    made = Recorder(f"on-loop-{uuid4()}", "test", settings)
    made.begin_run()
    yield made
    with suppress(DshdError):
        made.close()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What went to a thread."""
    gone: list[str] = []
    before: Callable[..., Awaitable[Any]] = vars(held)["aside"]

    async def aside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        gone.append(function.__name__)
        return await before(function, *args, **kwargs)

    monkeypatch.setattr(held, "aside", aside)
    return gone


@contextmanager
def stopped(daemon: DaemonProcess) -> Generator[None, None, None]:
    """Let the daemon stand still, and go on a while later by itself."""
    os.kill(daemon.pid, signal.SIGSTOP)
    later = threading.Timer(STOPPED_S, os.kill, (daemon.pid, signal.SIGCONT))
    later.start()
    try:
        yield
    finally:
        later.join()


class Ticking:
    """A task beside, which tells for how long the loop stood still."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = time.monotonic()
        while True:
            await anyio.sleep(0.001)
            self.longest, last = max(self.longest, time.monotonic() - last), time.monotonic()


async def beside(ticking: Ticking, work: Callable[[], Awaitable[Any]]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ticking.run)
        await anyio.sleep(0.01)
        await work()
        tasks.cancel_scope.cancel()


@BACKENDS
def test_what_is_answered_within_a_moment_needs_no_thread(
    recorder: Recorder, threads: list[str], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_loop, "MOMENT_S", 5.0)

    async def step() -> None:
        await recorder.hurry(recorder.asking, HEADER, [prompt("Look.")])
        recorder.answer(asking("a"))
        key = await recorder.hurry(recorder.starting, "a", locked=False)
        assert key is not None
        recorder.finish_tool("a", OK)

    anyio.run(step, backend=backend)
    assert threads == []


@BACKENDS
def test_a_daemon_that_stands_still_holds_the_loop_for_a_moment_and_the_next_one_not_at_all(
    own_daemon: DaemonProcess, recorder: Recorder, threads: list[str], backend: str
) -> None:
    ticking = Ticking()

    async def steps() -> None:
        with stopped(own_daemon):
            await recorder.hurry(recorder.asking, HEADER, [prompt("Look.")])
        recorder.answer(asking("a", "b"))
        with stopped(own_daemon):
            await recorder.hurry(recorder.starting, "a", locked=False)

    anyio.run(beside, ticking, steps, backend=backend)
    assert threads == ["go_on", "_timed"]
    assert ticking.longest < STOPPED_S * 0.8


@BACKENDS
def test_calls_of_one_answer_wait_side_by_side_in_threads(
    own_daemon: DaemonProcess, recorder: Recorder, backend: str
) -> None:
    keys: list[str | None] = []

    async def start(call_id: str) -> None:
        keys.append(await recorder.hurry(recorder.starting, call_id, locked=False))

    async def steps() -> None:
        await recorder.hurry(recorder.asking, HEADER, [prompt("Look.")])
        recorder.answer(asking("a", "b", "c"))
        with stopped(own_daemon):
            async with anyio.create_task_group() as tasks:
                for call_id in ("a", "b", "c"):
                    tasks.start_soon(start, call_id)

    anyio.run(steps, backend=backend)
    assert len(set(keys)) == 3
    assert types(own_daemon, recorder).count("tool/call") == 3


@BACKENDS
def test_a_cancelled_caller_loses_its_wait_and_what_it_asked_for_is_in_the_log(
    own_daemon: DaemonProcess, recorder: Recorder, backend: str
) -> None:
    async def steps() -> None:
        with stopped(own_daemon), anyio.move_on_after(STOPPED_S / 3) as scope:
            await recorder.hurry(recorder.asking, HEADER, [prompt("Look.")])
        assert scope.cancelled_caught
        recorder.fail_run(RuntimeError("called off"))
        await recorder.hurry(recorder.asking, HEADER, [prompt("Again.")])

    anyio.run(steps, backend=backend)
    recorder.answer(asking())
    recorder.end_run()
    found = types(own_daemon, recorder)
    assert found.count("turn/start") == found.count("turn/end") == 2
    assert found.count("user/message") == 2


@BACKENDS
def test_a_daemon_that_is_gone_is_waited_for_in_a_thread(
    own_daemon: DaemonProcess, recorder: Recorder, threads: list[str], backend: str
) -> None:
    ticking = Ticking()
    recorder.request(HEADER, [prompt("Look.")])
    recorder.answer(asking("a", "b"))
    own_daemon.kill()
    again = threading.Timer(0.3, own_daemon.start)
    again.start()

    async def start() -> None:
        await recorder.hurry(recorder.starting, "a", locked=False)

    anyio.run(beside, ticking, start, backend=backend)
    again.join()
    assert threads == ["go_on"]
    assert ticking.longest < 0.25


@BACKENDS
def test_a_checkpoint_that_failed_closes_the_latch(own_daemon: DaemonProcess, backend: str) -> None:
    settings: Any = {"socket": str(own_daemon.socket), "timeout": 0.3}
    recorder = Recorder(f"on-loop-{uuid4()}", "test", settings)
    recorder.begin_run()

    async def steps() -> None:
        await recorder.hurry(recorder.asking, HEADER, [prompt("Look.")])
        recorder.answer(asking("a"))
        own_daemon.kill()
        with pytest.raises(ClientError):
            await recorder.hurry(recorder.starting, "a", locked=False)
        with pytest.raises(LatchedError):
            await recorder.hurry(recorder.starting, "a", locked=False)

    anyio.run(steps, backend=backend)
    with suppress(DshdError, ClientError):
        recorder.close()


@BACKENDS
def test_what_the_daemon_has_no_room_for_is_sent_in_a_thread(
    own_daemon: DaemonProcess, recorder: Recorder, threads: list[str], backend: str
) -> None:
    ticking = Ticking()

    async def ask() -> None:
        with stopped(own_daemon):
            await recorder.hurry(recorder.asking, HEADER, [prompt("Look. " * 100_000)])

    anyio.run(beside, ticking, ask, backend=backend)
    assert threads == ["go_on"]
    assert ticking.longest < STOPPED_S * 0.8


@BACKENDS
def test_what_is_cancelled_before_there_is_a_thread_is_closed_before_the_caller_goes_on(
    own_daemon: DaemonProcess, recorder: Recorder, backend: str
) -> None:
    """Kept alive by its error it would close whatever turn is open when that is thrown away."""
    kept: list[BaseException] = []

    async def steps() -> None:
        with stopped(own_daemon), anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await recorder.hurry(recorder.asking, HEADER, [prompt("Look.")])
            except BaseException as error:
                kept.append(error)
                raise
        recorder.fail_run(RuntimeError("called off"))
        await recorder.hurry(recorder.asking, HEADER, [prompt("Again.")])
        kept.clear()
        recorder.answer(saying("Yes."))

    anyio.run(steps, backend=backend)
    recorder.end_run()
    found = types(own_daemon, recorder)
    assert found.count("turn/start") == found.count("turn/end") == 2
    assert found[-1] == "turn/end"
    assert "assistant/message" in found
