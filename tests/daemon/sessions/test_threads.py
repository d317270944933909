from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

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


class Told(Generic[T]):
    """How an errand ended."""

    def __init__(self) -> None:
        self.ended: list[outcome.Outcome[T]] = []
        self._there = trio.Event()
        self.errand = Errand[T](self._end)

    def _end(self, result: outcome.Outcome[T]) -> None:
        self.ended.append(result)
        self._there.set()

    async def wait(self) -> T:
        await self._there.wait()
        return self.ended[0].unwrap()


def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("patience", [0.0, 5.0])
async def test_an_errand_tells_what_its_call_returned_or_raised(patience: float) -> None:
    told = Told[int]()
    told.errand.begin(threading.get_ident, patience)
    assert len(told.ended) == (patience > 0)  # where the loop stood still for it, it has ended
    assert await told.wait() != threading.get_ident()
    failed = Told[None]()
    failed.errand.begin(fail, patience)
    with pytest.raises(ZeroDivisionError):
        await failed.wait()


async def test_the_loop_stands_still_for_an_errand_no_longer_than_it_was_told() -> None:
    gate, told = Gate(), Told[str]()
    began = time.monotonic()
    told.errand.begin(gate, 0.05)
    assert 0.04 <= time.monotonic() - began < 5
    assert told.ended == []
    gate.open.set()
    assert await told.wait() == "done"
    await trio.testing.wait_all_tasks_blocked()
    assert len(told.ended) == 1


async def test_an_errand_that_ends_as_the_patience_with_it_does_ends_once() -> None:
    for number in range(200):
        told = Told[None]()
        told.errand.begin(partial(time.sleep, 0.0001 * (number % 5)), 0.0002)
        await told.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert len(told.ended) == 1


async def test_only_its_owner_ends_the_wait_for_an_errand_and_its_call_goes_on() -> None:
    gate, told = Gate(), Told[str]()
    told.errand.begin(gate)
    told.errand.abandon()
    told.errand.abandon()
    with pytest.raises(AbandonedError):
        await told.wait()
    gate.open.set()
    assert gate.ended.wait(10)
    await trio.testing.wait_all_tasks_blocked()  # what comes late reaches nobody
    assert len(told.ended) == 1


async def test_an_errand_may_end_before_its_beginning_returns() -> None:
    class AtOnce(RealThreads):
        def begin(
            self,
            call: Callable[[], T],
            deliver: Callable[[outcome.Outcome[T]], None],
            patience: float = 0.0,
        ) -> None:
            deliver(outcome.capture(call))

    WORKERS.set(AtOnce())
    told = Told[int]()
    told.errand.begin(threading.get_ident)
    assert [ended.unwrap() for ended in told.ended] == [threading.get_ident()]


@pytest.mark.parametrize(
    ("refusal", "told_as"),
    [
        (RuntimeError("can't start new thread"), OverloadedError),
        (MemoryError(), OverloadedError),
        (ZeroDivisionError(), ZeroDivisionError),
    ],
    ids=["threads", "memory", "something else"],
)
async def test_what_keeps_an_errand_from_being_begun_is_how_it_ends(
    refusal: Exception, told_as: type[Exception]
) -> None:
    class Full(RealThreads):
        def begin(
            self,
            call: Callable[[], T],
            deliver: Callable[[outcome.Outcome[T]], None],
            patience: float = 0.0,
        ) -> None:
            raise refusal

    WORKERS.set(Full())
    told = Told[int]()
    told.errand.begin(threading.get_ident)
    with pytest.raises(told_as):
        await told.wait()
