"""A session's tasks and its handle, where the machine or somebody else ends or refuses what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import trio
import trio.testing

from dsh_protocol.errors import DshdError
from dsh_protocol.events import Header
from dsh_protocol.limits import DEFAULT_LIMITS
from dshd.metrics import Metrics
from dshd.sessions import keeping
from dshd.sessions.asked import Asked
from dshd.sessions.claims import Taker
from dshd.sessions.registry import Registry
from dshd.sessions.threads import WORKERS, RealThreads
from dshd.storage.jsonl.store import open_store
from support import events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dshd.sessions.session import Session

T = TypeVar("T")
WINDOW_S = 3600.0


class Sparing(RealThreads):
    """Has no thread for closing."""

    async def __call__(
        self,
        call: Callable[..., T],
        *args: Any,
        limiter: trio.CapacityLimiter,
        abandon_on_cancel: bool,
    ) -> T:
        if getattr(call, "__name__", "") == "close":
            raise RuntimeError("can't start new thread")
        return await super().__call__(
            call, *args, limiter=limiter, abandon_on_cancel=abandon_on_cancel
        )


@pytest.fixture
def taker() -> Taker:
    return Taker(object(), 0, None, "client")


def registry_of(root: Path, nursery: trio.Nursery) -> Registry:
    return Registry(
        open_store(root),
        limits=DEFAULT_LIMITS,
        window=WINDOW_S,
        metrics=Metrics(),
        nursery=nursery,
    )


async def made(registry: Registry, taker: Taker) -> Session:
    """Create a session that has one event admitted and none written."""
    session = await registry.create(
        lambda name: Header(id=name, created_at=1, cwd="/w"), "s", taker
    )
    assert session.claim is not None
    await session.admit(session.claim.writer, Asked([events.title("one")], 0, 100))
    return session


def tasks_of(nursery: trio.Nursery) -> trio.Nursery:
    """The nursery of the one session's own tasks."""
    owners = [task for task in nursery.child_tasks if task.name.endswith("._run_session")]
    return owners[0].child_nurseries[0]


async def test_what_is_pending_outlives_the_tasks_of_its_session(
    tmp_path: Path, taker: Taker
) -> None:
    async with trio.open_nursery() as nursery:
        registry = registry_of(tmp_path / "root", nursery)
        session = await made(registry, taker)
        assert session.claim is not None
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            tasks_of(nursery).cancel_scope.cancel()
        await session.wait_durable(session.claim)
        assert session.durable_seq == 1
        assert await registry.shut_down(5)
        await registry.wait_ended(5)
        assert registry.live == {}


async def test_a_session_that_is_ended_while_there_is_no_thread_can_be_opened_again(
    tmp_path: Path, taker: Taker
) -> None:
    WORKERS.set(Sparing())
    async with trio.open_nursery() as nursery:
        registry = registry_of(tmp_path / "root", nursery)
        session = await made(registry, taker)
        assert session.claim is not None
        await registry.close("s", session.claim.writer)
        await session.gone.wait()
        again = await registry.open_write("s", taker, None, takeover=False)
        assert again is not session
        assert again.durable_seq == 1
        assert await registry.shut_down(5)
        await registry.wait_ended(5)


async def test_a_defect_in_what_nobody_waits_for_does_not_end_the_session(
    tmp_path: Path, taker: Taker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = trio.Event()

    def raises(*_: object) -> None:
        kept.set()
        raise ZeroDivisionError

    monkeypatch.setattr(keeping, "REST_S", 0.0)
    monkeypatch.setattr(keeping, "take_state", raises)
    async with trio.open_nursery() as nursery:
        registry = registry_of(tmp_path / "root", nursery)
        session = await made(registry, taker)
        assert session.claim is not None
        await session.wait_durable(session.claim)
        await kept.wait()
        await session.admit(session.claim.writer, Asked([events.title("two")], 1, 100))
        await session.wait_durable(session.claim)
        assert session.durable_seq == 2
        assert await registry.shut_down(5)
        await registry.wait_ended(5)


async def test_what_was_checked_before_events_were_measured_is_checked_again(
    tmp_path: Path, taker: Taker
) -> None:
    large = [events.title("x" * 3_000_000)] * 3
    async with trio.open_nursery() as nursery:
        registry = registry_of(tmp_path / "root", nursery)
        session = await made(registry, taker)
        assert session.claim is not None
        writer, refused = session.claim.writer, list[str]()

        async def admit(asked: Asked) -> None:
            try:
                await session.admit(writer, asked)
            except DshdError as error:
                refused.append(error.kind)

        async with trio.open_nursery() as other:
            other.start_soon(admit, Asked(large, 1, 9_000_100))
            for _ in range(2):  # it has begun by now, and pauses after each of the three
                await trio.lowlevel.checkpoint()
            await admit(Asked([events.title("small")], 1, 100))
        assert refused == ["SEQ_CONFLICT"]
        assert [event["data"]["title"] for event in await session.read(1)] == ["small"]
        assert await registry.shut_down(5)
        await registry.wait_ended(5)
