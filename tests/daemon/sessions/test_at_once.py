from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from dshd.sessions.at_once import (
    AtOnce,
    DroppedError,
    Due,
    NeedsTaskError,
    Signal,
    begin_later,
    need_task,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine


class Driven:
    """A coroutine that is driven by hand, and how it ended."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.ended: list[tuple[Any, BaseException | None]] = []
        self.due = Due()
        self.at_once = AtOnce(coroutine, self._end, self.due)

    def _end(self, result: Any, error: BaseException | None) -> None:
        self.ended.append((result, error))


async def passed_through(wait: Callable[[], Awaitable[None]], said: list[str]) -> str:
    said.append("before")
    try:
        await wait()
    finally:
        said.append("after")
    return "done"


def test_what_waits_for_nothing_has_ended_when_its_beginning_returns() -> None:
    signal, said = Signal(), list[str]()
    signal.set()
    driven = Driven(passed_through(signal.wait, said))
    assert driven.at_once.begin()
    assert driven.ended == [("done", None)]


def test_what_waits_goes_on_in_the_turn_of_whoever_sets_the_signal() -> None:
    signal, said = Signal(), list[str]()
    driven = Driven(passed_through(signal.wait, said))
    assert driven.at_once.begin()
    assert (said, driven.ended) == (["before"], [])
    signal.set()
    assert driven.ended == [("done", None)]


def test_a_wait_that_is_dropped_ends_once_and_the_signal_reaches_nobody() -> None:
    signal, said = Signal(), list[str]()
    driven = Driven(passed_through(signal.wait, said))
    driven.at_once.begin()
    assert driven.at_once.drop()
    assert said == ["before", "after"]
    assert not driven.at_once.drop()
    signal.set()
    assert [type(error) for _, error in driven.ended] == [DroppedError]


def test_what_needs_a_task_is_given_up_before_it_has_done_anything_and_tells_nobody() -> None:
    async def needs(said: list[str]) -> None:
        need_task()
        said.append("done")

    said: list[str] = []
    driven = Driven(needs(said))
    assert not driven.at_once.begin()
    assert (said, driven.ended) == ([], [])
    need_task()  # outside of a driven coroutine nothing is refused


def test_what_needs_a_task_too_late_is_a_defect_that_is_told_and_no_silence() -> None:
    signal = Signal()

    async def needs() -> None:
        await signal.wait()
        need_task()

    driven = Driven(needs())
    assert driven.at_once.begin()
    signal.set()
    assert [type(error) for _, error in driven.ended] == [RuntimeError]


def test_what_a_driven_coroutine_waits_for_is_begun_once_and_not_before_its_driver_says_so() -> (
    None
):
    signal, begun = Signal(), list[str]()

    def begin() -> None:
        begun.append("begun")

    async def waits() -> None:
        assert begin_later(begin)
        assert begin_later(begin)
        await signal.wait()

    assert not begin_later(begin)  # there is nobody who would begin it
    driven = Driven(waits())
    driven.at_once.begin()
    assert begun == []
    driven.due.begin()
    driven.due.begin()
    assert begun == ["begun"]
    signal.set()
    assert driven.ended == [(None, None)]


def test_one_that_drives_another_comes_back_to_what_it_was() -> None:
    """As where a reply lets the next call of a lane go on."""
    outer_signal, inner_signal = Signal(), Signal()
    inner = Driven(passed_through(inner_signal.wait, []))
    inner.at_once.begin()

    async def sets() -> None:
        inner_signal.set()
        with pytest.raises(NeedsTaskError):
            need_task()
        await outer_signal.wait()

    outer = Driven(sets())
    outer.at_once.begin()
    assert inner.ended == [("done", None)]
    need_task()
    outer_signal.set()
    assert outer.ended == [(None, None)]


async def test_tasks_and_driven_coroutines_wait_for_the_same_signal() -> None:
    signal, order = Signal(), list[str]()

    async def task() -> None:
        await signal.wait()
        order.append("task")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(task)
        await trio.testing.wait_all_tasks_blocked()
        driven = Driven(passed_through(signal.wait, order))
        driven.at_once.begin()
        signal.then(lambda: order.append("told"))
        signal.set()
        assert order == ["before", "after", "told"]
    assert order[-1] == "task"
    await signal.wait()
    signal.then(lambda: order.append("late"))
    assert order[-1] == "late"


async def test_a_cancelled_task_waits_no_more_and_the_signal_finds_nothing_of_it() -> None:
    signal = Signal()
    with trio.move_on_after(0):
        await signal.wait()
    signal.set()


def test_a_long_row_of_signals_needs_no_deep_stack_and_keeps_its_order() -> None:
    """As the replies to many calls of one session that wait for the first of them."""
    signals, order = [Signal() for _ in range(10_000)], list[int]()
    for number, (signal, following) in enumerate(pairwise(signals)):

        def go_on(number: int = number, following: Signal = following) -> None:
            order.append(number)
            following.set()

        signal.then(go_on)
    signals[0].set()
    assert order == list(range(9_999))


def test_one_that_raises_keeps_nobody_from_being_told() -> None:
    signal, told = Signal(), list[str]()

    def raises() -> None:
        raise ZeroDivisionError

    signal.then(raises)
    signal.then(lambda: told.append("told"))
    with pytest.raises(ZeroDivisionError):
        signal.set()
    assert told == ["told"]
