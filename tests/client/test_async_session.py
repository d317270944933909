"""The asynchronous flavour under both event loops; what a session records is tried in full in the blocking one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from dsh_client.async_session import AsyncSession, open_session
from dsh_client.connection import AsyncClient, connect
from dsh_client.errors import (
    CallTimeoutError,
    ConnectionLostError,
    DaemonUnavailableError,
    LatchedError,
    MisuseError,
)
from dsh_protocol.errors import NoSpaceError, OverloadedError
from support.fake_daemon import FakeDaemon, FakeSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from pathlib import Path

HEADER = {"config": {"provider": "p", "model": "m"}}
CHECKPOINTS = [
    "checkpoint.request",
    "checkpoint.tool",
    "checkpoint.postStep",
    "checkpoint.turnEnd",
]


@pytest.fixture
def daemon() -> Generator[FakeDaemon, None, None]:
    with FakeDaemon() as running:
        yield running


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run a coroutine function under one of the loops, with a limit of its own."""

    def run_under(main: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            with anyio.fail_after(30):
                await main()

        anyio.run(limited, backend=request.param)

    return run_under


def ask(*ids: str) -> list[dict[str, Any]]:
    return [{"type": "tool-call", "id": i, "name": "t", "arguments": "{}"} for i in ids]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the fake does in its threads; it has no event of this loop."""
    while not condition():  # noqa: ASYNC110  see above
        await anyio.sleep(0.002)


class Ran:
    def __init__(self) -> None:
        self.requests = 0
        self.bodies: list[str] = []


async def agent(session: AsyncSession, ran: Ran, calls: tuple[str, ...] = ("c",)) -> None:
    """Run one turn of two steps, its calls side by side."""

    async with session.turn("hello") as turn:
        for content in (ask(*calls), "done"):
            async with turn.step() as step:
                async with step.request(HEADER):
                    ran.requests += 1
                asked = await step.answer(content)

                async def body(number: int, step: Any = step, asked: Any = asked) -> None:
                    async with step.tool(asked[number]) as tool:
                        ran.bodies.append(asked[number].id)
                        await tool.result("ok")

                if len(asked) == 1:
                    await body(0)
                else:
                    async with anyio.create_task_group() as tasks:
                        for number in range(len(asked)):
                            tasks.start_soon(body, number)


# -- the connection


def test_calls_of_many_tasks_share_a_connection_and_get_their_own_answers(
    daemon: FakeDaemon, run: Any
) -> None:
    async def main() -> None:
        async with connect(daemon.path, name="tests") as client, anyio.create_task_group() as tasks:

            async def work(number: int) -> None:
                for turn in range(10):
                    value = number * 100 + turn
                    assert await client.call("echo", value=value, nothing=None) == {"value": value}

            for number in range(8):
                tasks.start_soon(work, number)

    run(main)
    assert daemon.connections == 1
    assert daemon.named("initialize")[0]["client"]["name"] == "tests"


def test_no_daemon_is_told_with_the_path(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(DaemonUnavailableError, match=r"no-such.*dshd serve"):
            async with connect(tmp_path / "no-such"):
                pass

    run(main)


def test_the_blocks_own_exception_is_not_wrapped(daemon: FakeDaemon, run: Any) -> None:
    async def main() -> None:
        daemon.fault("echo", "refuse", OverloadedError("too much"))
        with pytest.raises(OverloadedError, match="too much"):
            async with connect(daemon.path) as client:
                await client.call("echo")

    run(main)


@pytest.mark.parametrize("kind", ["lose-call", "lose-reply", "half-reply", "crash"])
def test_a_lost_connection_fails_the_call_and_the_next_one_is_made_anew(
    daemon: FakeDaemon, run: Any, kind: str
) -> None:
    async def main() -> None:
        async with connect(daemon.path) as client:
            daemon.fault("echo", kind)
            with pytest.raises(ConnectionLostError):
                await client.call("echo", a=1)
            if kind == "crash":
                daemon.start()
            assert await client.call("echo", a=2) == {"a": 2}

    run(main)
    assert daemon.connections == 2


def test_a_late_call_takes_its_connection_with_it(daemon: FakeDaemon, run: Any) -> None:
    async def main() -> None:
        async with connect(daemon.path) as client:
            client.timeout = 0.05
            daemon.fault("echo", "silence")
            with pytest.raises(CallTimeoutError, match="echo"):
                await client.call("echo", a=1)
            client.timeout = 5
            assert await client.call("echo", a=2) == {"a": 2}

    run(main)
    assert daemon.connections == 2


def test_a_cancelled_call_is_cancelled_on_the_wire_and_its_late_answer_reaches_nobody(
    daemon: FakeDaemon, run: Any
) -> None:
    async def main() -> None:
        async with connect(daemon.path) as client:
            daemon.fault("echo", "ignore")
            with anyio.move_on_after(0.05) as scope:
                await client.call("echo", a=1)
            assert scope.cancelled_caught
            assert await client.call("echo", a=2) == {"a": 2}

    run(main)
    assert daemon.connections == 1
    assert daemon.cancelled == [2]


def test_calls_cancelled_at_any_moment_leave_the_connection_whole(
    daemon: FakeDaemon, run: Any
) -> None:
    async def main() -> None:
        async with connect(daemon.path) as client:
            for number in range(60):
                with anyio.move_on_after(number * 0.00003):
                    await client.call("echo", text="x" * 5000, number=number)
                assert await client.call("echo", number=number) == {"number": number}

    run(main)
    assert daemon.connections == 1


def test_leaving_under_a_cancelled_scope_ends_cleanly(daemon: FakeDaemon, run: Any) -> None:
    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with connect(daemon.path) as client:
                await client.call("echo")
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    run(main)


def test_an_error_raised_under_a_cancelled_scope_is_not_swallowed(
    daemon: FakeDaemon, run: Any
) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError), anyio.CancelScope() as scope:  # noqa: PT012  the whole block is what raises
            async with connect(daemon.path):
                scope.cancel()
                raise ZeroDivisionError

    run(main)


# -- sessions


def test_parallel_calls_are_each_dispatched_once_also_when_answers_are_lost(
    daemon: FakeDaemon, run: Any
) -> None:
    ran = Ran()

    async def main() -> None:
        daemon.fault("checkpoint.tool", "lose-reply", skip=1)
        daemon.fault("checkpoint.tool", "half-reply", skip=2)
        async with connect(daemon.path) as client, open_session("s", client=client) as session:
            await agent(session, ran, tuple("abcdef"))

    run(main)
    assert sorted(ran.bodies) == list("abcdef")
    types = daemon.types("s")
    assert types.count("tool/call") == types.count("tool/result") == 6
    assert daemon.sessions["s"].durable == len(types)


@pytest.mark.parametrize("method", ["session.append", *CHECKPOINTS])
def test_an_agent_goes_on_when_its_daemon_is_killed_and_started_again(
    daemon: FakeDaemon, run: Any, method: str
) -> None:
    ran = Ran()

    async def main() -> None:
        async with connect(daemon.path, timeout=5) as client, anyio.create_task_group() as tasks:
            daemon.fault(method, "crash", skip=1 if method == "session.append" else 0)

            async def restart() -> None:
                await until(lambda: not daemon.path.exists())
                daemon.start()

            async with open_session("s", client=client, cwd="/w") as session:
                tasks.start_soon(restart)
                await agent(session, ran)

    run(main)
    assert (ran.requests, ran.bodies) == (2, ["c"])
    assert daemon.types("s")[-1] == "turn/end"
    assert daemon.sessions["s"].durable == 12


@pytest.mark.parametrize("method", CHECKPOINTS)
def test_after_a_failed_checkpoint_nothing_runs_until_a_flush_succeeds(
    daemon: FakeDaemon, run: Any, method: str
) -> None:
    ran = Ran()

    async def main() -> None:
        async with connect(daemon.path) as client, open_session("s", client=client) as session:
            daemon.fault(method, "fail", NoSpaceError("full", errno=28))
            with pytest.raises(NoSpaceError):
                await agent(session, ran)
            before = len(daemon.calls)
            with pytest.raises(LatchedError):
                await agent(session, ran)
            assert len(daemon.calls) == before
            await session.flush()
            await agent(session, Ran())

    run(main)
    assert ran.bodies == ([] if method in CHECKPOINTS[:2] else ["c"])
    assert daemon.types("s").count("turn/end") == 2


@pytest.mark.parametrize("method", CHECKPOINTS)
def test_a_cancelled_checkpoint_runs_nothing_and_leaves_a_closed_turn(
    daemon: FakeDaemon, run: Any, method: str
) -> None:
    ran = Ran()

    async def main() -> None:
        async with connect(daemon.path) as client:
            with anyio.CancelScope() as scope:
                daemon.fault(method, "silence")
                async with anyio.create_task_group() as tasks:

                    async def cancel() -> None:
                        await until(lambda: bool(daemon.named(method)))
                        scope.cancel()

                    tasks.start_soon(cancel)
                    async with open_session("s", client=client) as session:
                        await agent(session, ran)
            assert scope.cancelled_caught
            assert await client.call("echo", a=1) == {"a": 1}

    run(main)
    assert ran.bodies == ([] if method in CHECKPOINTS[:2] else ["c"])
    log = daemon.sessions["s"]
    assert log.events[-1]["type"] == "turn/end"
    assert log.durable == len(log.events)
    assert log.writer is None
    assert daemon.connections == 1
    assert len(daemon.cancelled) == 1


def test_a_cancelled_body_is_recorded_as_aborted(daemon: FakeDaemon, run: Any) -> None:
    async def main() -> None:
        async with connect(daemon.path) as client:
            with anyio.CancelScope() as scope:
                async with open_session("s", client=client) as session, session.turn("x") as turn:  # noqa: SIM117  read more easily nested
                    async with turn.step() as step:
                        await step.request(HEADER)
                        (call,) = await step.answer(ask("a"))
                        async with step.tool(call):
                            scope.cancel()
                            await anyio.sleep_forever()

    run(main)
    events = daemon.sessions["s"].events
    assert [event["type"] for event in events[-3:]] == ["tool/result", "step/end", "turn/end"]
    assert events[-3]["data"]["error"]["code"] == "ABORTED"
    assert events[-1]["data"]["reason"]["kind"] == "aborted"


def test_a_handle_goes_on_after_a_cancelled_wait(daemon: FakeDaemon, run: Any) -> None:
    async def main() -> None:
        async with connect(daemon.path) as client, open_session("s", client=client) as session:
            await session.append([{"type": "a", "data": 1}])
            daemon.fault("session.append", "silence")
            with anyio.move_on_after(0.05):
                await session.append([{"type": "b", "data": 1}])
            await session.append([{"type": "c", "data": 1}])
            assert await session.flush() == 3

    run(main)
    assert daemon.types("s") == ["a", "b", "c"]


def test_a_cancelled_reconnect_is_taken_up_by_the_next_caller(daemon: FakeDaemon, run: Any) -> None:
    async def main() -> None:
        async with connect(daemon.path) as client, open_session("s", client=client) as session:
            await session.append([{"type": "a", "data": 1}])
            await session.flush()
            daemon.cut()
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:

                    async def cancel() -> None:
                        await until(lambda: bool(daemon.named("session.open")))
                        scope.cancel()

                    tasks.start_soon(cancel)
                    await session.append([{"type": "b", "data": 1}])
            await session.append([{"type": "c", "data": 1}])
            await session.flush()

    run(main)
    assert daemon.types("s") == ["a", "b", "c"]


def test_a_request_that_was_never_awaited_is_found_at_the_answer(
    daemon: FakeDaemon, run: Any
) -> None:
    async def main() -> None:
        async with connect(daemon.path) as client, open_session("s", client=client) as session:  # noqa: SIM117  read more easily nested
            async with session.turn("x") as turn, turn.step() as step:
                step.request(HEADER)
                with pytest.raises(MisuseError, match="without a request"):
                    await step.answer("x")

    run(main)


def test_a_session_makes_its_own_client_where_none_is_given(
    daemon: FakeDaemon, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSHD_SOCKET", str(daemon.path))

    async def main() -> None:
        async with open_session("s") as session:
            await session.append([{"type": "a", "data": 1}])
            assert await session.messages() == []

    run(main)
    assert daemon.types("s") == ["a"]


def test_chunks_and_nested_dispatches_have_the_same_shape(daemon: FakeDaemon, run: Any) -> None:
    async def main() -> None:
        async with connect(daemon.path) as client, open_session("s", client=client) as session:  # noqa: SIM117  read more easily nested
            async with session.turn("x") as turn, turn.step() as step:
                async with step.request(HEADER) as request:
                    for number in range(40):
                        await request.chunk({"type": "text-delta", "text": str(number)})
                (call,) = await step.answer(ask("a"))
                async with step.tool(call) as tool:
                    async with tool.dispatch("inner", "[]") as inner:
                        await inner.result("in")
                    await tool.result("out")

    run(main)
    types = daemon.types("s")
    assert types.count("assistant/chunk") == 40
    assert types[-5:-2] == ["tool/code-dispatch-start", "tool/code-dispatch", "tool/result"]


def test_two_sessions_of_one_client_both_survive_its_lost_connection(
    daemon: FakeDaemon, run: Any
) -> None:
    async def main() -> None:
        client = AsyncClient(daemon.path)
        async with (
            client,
            open_session("s", client=client) as one,
            open_session("t", client=client) as other,
        ):
            await one.append([{"type": "a", "data": 1}])
            await other.append([{"type": "a", "data": 1}])
            daemon.cut()
            await one.flush()
            await other.flush()

    run(main)
    assert daemon.types("s") == daemon.types("t") == ["a"]


@pytest.mark.parametrize("method", ["session.create", "session.open", "session.recover"])
def test_a_cancelled_open_leaves_no_handle_behind(
    daemon: FakeDaemon, run: Any, method: str
) -> None:
    if method != "session.create":
        recovery: dict[str, Any] = {"committed": False, "repairs": [], "closers": []}
        stored = [{"type": "turn/start", "data": {"turn": 1}}]
        daemon.sessions["s"] = FakeSession({"id": "s"}, stored, durable=1, recovery=recovery)
    daemon.fault(method, "silence")

    async def main() -> None:
        async with connect(daemon.path) as client:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:

                    async def cancel() -> None:
                        await until(lambda: bool(daemon.named(method)))
                        scope.cancel()

                    tasks.start_soon(cancel)
                    async with open_session("s", client=client):
                        raise AssertionError
            assert await client.call("echo") == {}

    run(main)
    assert daemon.connections == 2
