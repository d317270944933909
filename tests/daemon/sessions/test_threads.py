from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import outcome
import pytest
import trio
import trio.testing

from dsh_protocol.errors import OverloadedError
from dshd.sessions.threads import WORKERS, AbandonedError, Errand, RealThreads

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Gate:
    """A call that ends when it may."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.ended = threading.Event()

    def __call__(self) -> str:
        self.open.wait(10)
        self.ended.set()
        return "done"


async def test_an_errand_gives_back_what_its_call_returned_or_raised() -> None:
    assert await Errand[int]().run(threading.get_ident) != threading.get_ident()

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Errand[None]().run(fail)


async def test_a_cancelled_errand_is_seen_to_its_end_and_the_cancel_comes_after_it() -> None:
    gate, seen = Gate(), list[str]()

    async def wait() -> None:
        seen.append(await Errand[str]().run(gate))
        await trio.lowlevel.checkpoint()
        seen.append("after the cancel")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        assert not seen
        gate.open.set()
    assert seen == ["done"]


async def test_only_its_owner_ends_the_wait_for_an_errand_and_its_call_goes_on() -> None:
    gate, errand, told = Gate(), Errand[str](), list[type[BaseException]]()

    async def wait() -> None:
        with pytest.raises(AbandonedError) as caught:
            await errand.run(gate)
        told.append(caught.type)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        errand.abandon()
        errand.abandon()
    assert told == [AbandonedError]
    gate.open.set()
    assert gate.ended.wait(10)
    await trio.testing.wait_all_tasks_blocked()  # what comes late reaches nobody


async def test_an_errand_may_end_before_it_is_waited_for() -> None:
    class AtOnce(RealThreads):
        def begin(
            self, call: Callable[[], T], deliver: Callable[[outcome.Outcome[T]], None]
        ) -> None:
            deliver(outcome.capture(call))

    WORKERS.set(AtOnce())
    assert await Errand[int]().run(threading.get_ident) == threading.get_ident()


@pytest.mark.parametrize(
    "refusal", [RuntimeError("can't start new thread"), MemoryError()], ids=["threads", "memory"]
)
async def test_a_machine_that_gives_no_thread_or_no_memory_says_so(refusal: Exception) -> None:
    class Full(RealThreads):
        def begin(
            self, call: Callable[[], T], deliver: Callable[[outcome.Outcome[T]], None]
        ) -> None:
            raise refusal

    WORKERS.set(Full())
    with pytest.raises(OverloadedError):
        await Errand[int]().run(threading.get_ident)
