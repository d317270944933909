"""Both flavours against a real `dshd`: its process is killed, stopped and started again under a working agent."""

from __future__ import annotations

import os
import runpy
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import dsh_client
from dsh_client import async_session
from dsh_client.blocking import Client
from dsh_client.connection import connect
from dsh_client.errors import CallTimeoutError, DaemonUnavailableError, LatchedError
from dsh_client.session import Session, open_session
from dsh_protocol.errors import EventInvalidError, SessionBusyError
from support.daemon import DaemonProcess, open_daemon

if TYPE_CHECKING:
    from collections.abc import Generator

HEADER = {"config": {"provider": "p", "model": "m"}}


@pytest.fixture
def daemon(tmp_path: Path) -> Generator[DaemonProcess, None, None]:
    with open_daemon(tmp_path) as running:
        yield running


@pytest.fixture
def client(daemon: DaemonProcess) -> Generator[Client, None, None]:
    one = Client(daemon.socket, timeout=20)
    yield one
    one.close()


def ask(*ids: str) -> list[dict[str, Any]]:
    return [{"type": "tool-call", "id": i, "name": "t", "arguments": "{}"} for i in ids]


def types(daemon: DaemonProcess, session_id: str) -> list[str]:
    return [event["type"] for event in daemon.call("session.read", id=session_id)["events"]]


def one_step(session: Session, bodies: list[str]) -> None:
    with session.turn("hello") as turn, turn.step() as step:
        step.request(HEADER)
        for call in step.answer(ask("c")):
            with step.tool(call) as tool:
                bodies.append(call.id)
                tool.result("ok")


def test_the_example_does_its_task_and_goes_on_in_the_same_session(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = Path(dsh_client.__file__).parents[1] / "examples" / "plain_loop.py"
    monkeypatch.setenv("DSHD_SOCKET", str(daemon.socket))
    main = runpy.run_path(str(example))["main"]
    for _ in range(2):
        assert main("example", "What is 2 and 40?") == "The sum is 42."
    log = types(daemon, "example")
    assert log.count("turn/end") == log.count("tool/result") == 2


@pytest.mark.parametrize("moment", ["start", "request", "tool", "body", "result", "step", "turn"])
def test_an_agent_goes_on_with_its_open_turn_when_the_daemon_is_killed(
    daemon: DaemonProcess, client: Client, moment: str
) -> None:
    def maybe(now: str) -> None:
        if now == moment:
            daemon.kill()
            daemon.start()

    bodies: list[str] = []
    with open_session("s", client=client) as session:
        with session.turn("hello") as turn:
            maybe("start")
            with turn.step() as step:
                maybe("request")
                step.request(HEADER)
                (call,) = step.answer(ask("c"))
                maybe("tool")
                with step.tool(call) as tool:
                    bodies.append(call.id)
                    maybe("body")
                    tool.result("ok")
                    maybe("result")
            maybe("step")
        maybe("turn")
    assert bodies == ["c"]
    assert types(daemon, "s") == [
        "turn/start",
        "step/start",
        "user/message",
        "request/header",
        "assistant/message",
        "tool/call",
        "tool/result",
        "step/end",
        "turn/end",
    ]


def test_an_untouched_handle_on_an_old_session_survives_its_daemon(
    daemon: DaemonProcess, client: Client
) -> None:
    with open_session("s", client=client) as session:
        one_step(session, [])
    with open_session("s", client=client) as session:
        daemon.kill()
        daemon.start()
        one_step(session, [])
    log = types(daemon, "s")
    assert log.count("turn/end") == 2
    assert log[-1] == "turn/end"


def test_parallel_calls_of_threads_run_once_each_under_a_daemon_that_is_killed(
    daemon: DaemonProcess, client: Client
) -> None:
    bodies: list[str] = []
    with (
        open_session("s", client=client) as session,
        session.turn("x") as turn,
        turn.step() as step,
    ):
        step.request(HEADER)
        calls = step.answer(ask(*"abcdef"))

        def body(number: int) -> None:
            with step.tool(calls[number]) as tool:
                bodies.append(calls[number].id)
                if number == 2:
                    daemon.kill()
                    daemon.start()
                tool.result(str(number))

        threads = [threading.Thread(target=body, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(bodies) == list("abcdef")
    log = types(daemon, "s")
    assert log.count("tool/call") == log.count("tool/result") == 6
    assert log[-1] == "turn/end"


def test_a_stopped_daemon_lets_nothing_run_and_the_session_goes_on_afterwards(
    daemon: DaemonProcess, client: Client
) -> None:
    bodies: list[str] = []
    client.timeout = 1.5
    with open_session("s", client=client) as session:
        with session.turn("x") as turn, turn.step() as step:
            step.request(HEADER)
            (call,) = step.answer(ask("a"))
            os.kill(daemon.pid, signal.SIGSTOP)
            try:
                with pytest.raises(CallTimeoutError), step.tool(call):
                    bodies.append("never")
                with pytest.raises(LatchedError):
                    step.request(HEADER)
            finally:
                os.kill(daemon.pid, signal.SIGCONT)
            session._handle._patience = 20  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  only the stop is short
            session.flush()
        one_step(session, bodies)
    assert bodies == ["c"]
    log = types(daemon, "s")
    assert log.count("tool/call") == log.count("tool/result") == 2


def test_a_daemon_that_is_gone_lets_nothing_run(daemon: DaemonProcess, client: Client) -> None:
    bodies: list[str] = []
    client.timeout = 1.5
    with pytest.raises(DaemonUnavailableError), open_session("s", client=client) as session:  # noqa: PT012  the whole block is what raises
        daemon.kill()
        one_step(session, bodies)
    assert bodies == []


def test_a_second_agent_is_told_who_is_at_work(daemon: DaemonProcess, client: Client) -> None:
    with open_session("s", client=client) as session:
        one_step(session, [])
        with (
            Client(daemon.socket) as second,
            pytest.raises(SessionBusyError) as busy,
            open_session("s", client=second),
        ):
            pass
    assert busy.value.facts["holder"]["pid"] == os.getpid()


def test_a_refused_event_does_not_disturb_what_comes_after(
    daemon: DaemonProcess, client: Client
) -> None:
    with open_session("s", client=client) as session:
        with pytest.raises(EventInvalidError):
            session.append([{"type": "no/such-type", "data": {}}])
        one_step(session, [])
    assert types(daemon, "s")[-1] == "turn/end"


def test_chunks_and_nested_dispatches_pass_the_rules_of_the_log(
    daemon: DaemonProcess, client: Client
) -> None:
    with (
        open_session("s", client=client) as session,
        session.turn("x") as turn,
        turn.step() as step,
    ):
        with step.request(HEADER) as request:
            request.chunk({"type": "block-start", "index": 0, "blockType": "text"})
            for number in range(80):
                request.chunk({"type": "text-delta", "index": 0, "text": str(number)})
        (call,) = step.answer(ask("a"))
        with step.tool(call) as tool:
            with tool.dispatch("inner", '{"k": 1}') as inner:
                inner.result("in")
            with pytest.raises(ZeroDivisionError), tool.dispatch("inner", "{}"):
                raise ZeroDivisionError
            tool.result("out")
    log = types(daemon, "s")
    assert log.count("assistant/chunk") == 81
    assert log.count("tool/code-dispatch") == log.count("tool/code-dispatch-start") == 2


def test_a_failed_turn_leaves_a_history_that_the_next_one_can_use(
    daemon: DaemonProcess, client: Client
) -> None:
    with open_session("s", client=client) as session:
        with pytest.raises(ZeroDivisionError), session.turn("x") as turn, turn.step() as step:  # noqa: PT012  the whole block is what raises
            step.request(HEADER)
            first, _ = step.answer(ask("a", "b"))
            with step.tool(first):
                raise ZeroDivisionError
        one_step(session, [])
        roles = [message["role"] for message in session.messages()]
    assert roles == ["user", "assistant", "user", "user", "user", "assistant", "user"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_tasks_run_their_calls_once_while_the_daemon_is_killed(
    daemon: DaemonProcess, backend: str
) -> None:
    bodies: list[str] = []

    async def main() -> None:
        async with (
            connect(daemon.socket, timeout=20) as client,
            async_session.open_session("s", client=client) as session,
            session.turn("x") as turn,
            turn.step() as step,
        ):
            await step.request(HEADER)
            calls = await step.answer(ask(*"abcdef"))

            async def body(number: int) -> None:
                async with step.tool(calls[number]) as tool:
                    bodies.append(calls[number].id)
                    if number == 2:
                        await anyio.to_thread.run_sync(daemon.kill)
                        await anyio.to_thread.run_sync(daemon.start)
                    await tool.result(str(number))

            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(body, number)

    anyio.run(main, backend=backend)
    assert sorted(bodies) == list("abcdef")
    log = types(daemon, "s")
    assert log.count("tool/call") == log.count("tool/result") == 6


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_agent_leaves_a_closed_turn(daemon: DaemonProcess, backend: str) -> None:
    async def main() -> None:
        async with connect(daemon.socket) as client:
            with anyio.CancelScope() as scope:
                async with (
                    async_session.open_session("s", client=client) as session,
                    session.turn("x") as turn,
                    turn.step() as step,
                ):
                    await step.request(HEADER)
                    first, _ = await step.answer(ask("a", "b"))
                    async with step.tool(first):
                        scope.cancel()
                        await anyio.sleep_forever()
            async with async_session.open_session("s", client=client) as session:
                assert session.repairs == []

    anyio.run(main, backend=backend)
    assert types(daemon, "s")[-6:] == [
        "tool/call",
        "tool/result",
        "tool/call",
        "tool/result",
        "step/end",
        "turn/end",
    ]
