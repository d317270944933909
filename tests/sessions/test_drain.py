from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from dsh_protocol.errors import InternalFaultError, NoSpaceError, WriterLostError
from dshd.sessions.at_once import AtOnce, Due
from dshd.sessions.drain import Drain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from dsh_protocol.errors import DshdError
    from dsh_protocol.events import Event, Header
    from dshd.storage.store import HolderRecord, Snapshot

WINDOW = 0.2


class FakeHandle:
    """Keeps batches in memory; fails and blocks when told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.materialised = False
        self.failures: list[Exception] = []
        self.gate: threading.Event | None = None
        self.began = threading.Semaphore(0)

    @property
    def header(self) -> Header:
        raise NotImplementedError

    @property
    def next_seq(self) -> int:
        return sum(map(len, self.batches))

    @property
    def size_bytes(self) -> int:
        return self.next_seq

    def read(self, offset: int = 0, length: int | None = None) -> Iterator[Event]:
        raise NotImplementedError

    def append(self, events: Sequence[Event], holder: HolderRecord | None = None) -> None:
        self.began.release()
        if self.gate is not None:
            self.gate.wait(10)
        if self.failures:
            raise self.failures.pop(0)
        self.materialised = True
        self.batches.append([event["seq"] for event in events])

    def flush(self, holder: HolderRecord | None = None) -> None:
        self.materialised = True

    def snapshot(self) -> Snapshot | None:
        return None

    def keep(self, snapshot: Snapshot) -> bool:
        return False

    def read_holder(self) -> HolderRecord | None:
        return None

    def write_holder(self, holder: HolderRecord) -> None:
        raise NotImplementedError

    def clear_holder(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        return


class Seen:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.durable: list[int] = []
        self.failed: list[str] = []

    def batch_durable(self, events: Sequence[Event], size: int, seconds: float) -> None:
        self.durable.extend(event["seq"] for event in events)

    def batch_failed(self, error: DshdError, seconds: float) -> None:
        self.failed.append(error.kind)

    def fault(self, error: BaseException) -> InternalFaultError:
        return InternalFaultError("a defect", incident=type(error).__name__)


class Driven:
    """A wait that is driven by hand, and how it ended."""

    def __init__(self, drain: Drain, target: int) -> None:
        self.ended: list[BaseException | None] = []
        self.due = Due()
        self.over = trio.Event()

        def end(_result: object, error: BaseException | None) -> None:
            self.ended.append(error)
            self.over.set()

        assert AtOnce(drain.wait_durable(target), end, self.due).begin()


class NoHolder:
    """No holder record is ever due."""

    def due_holder(self) -> HolderRecord | None:
        return None

    def note_holder(self, record: HolderRecord) -> None:
        raise NotImplementedError


class Bench:
    """A drain with what it works on."""

    def __init__(self) -> None:
        self.handle = FakeHandle()
        self.seen = Seen()
        self.drain = Drain(self.handle, window=WINDOW, observer=self.seen, holder=NoHolder())

    def admit(self, count: int = 1) -> int:
        first = self.drain.next_seq
        events: list[dict[str, Any]] = [
            {"type": "x", "seq": first + at, "time": 0, "data": None} for at in range(count)
        ]
        self.drain.admit_nowait(events, 10 * count)
        return self.drain.next_seq

    async def wait_write_begun(self) -> None:
        await trio.to_thread.run_sync(self.handle.began.acquire)


@pytest.fixture
async def bench(nursery: trio.Nursery) -> AsyncGenerator[Bench, None]:
    made = Bench()
    nursery.start_soon(made.drain.run)
    yield made
    if made.handle.gate is not None:
        made.handle.gate.set()
    nursery.cancel_scope.cancel()


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock()


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0.02)


async def test_a_batch_is_written_when_the_window_of_its_first_event_ends(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    began = trio.current_time()
    for _ in range(20):
        bench.admit()
        await trio.sleep(0.009)
    await bench.wait_write_begun()
    await trio.testing.wait_all_tasks_blocked()
    assert bench.handle.batches[0] == list(range(20))
    assert trio.current_time() - began == pytest.approx(WINDOW, abs=0.02)


async def test_a_waiter_starts_an_attempt_at_once(bench: Bench) -> None:
    end = bench.admit(3)
    with trio.fail_after(5):
        await bench.drain.wait_durable(end)
    assert bench.handle.batches == [[0, 1, 2]]
    assert bench.drain.clean


async def test_concurrent_waiters_share_one_attempt(bench: Bench) -> None:
    ends = [bench.admit() for _ in range(5)]
    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as nursery:
        for end in ends:
            nursery.start_soon(bench.drain.wait_durable, end)
    assert bench.handle.batches == [[0, 1, 2, 3, 4]]


async def test_events_admitted_during_a_write_go_into_the_next_batch(bench: Bench) -> None:
    bench.handle.gate = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.drain.wait_durable, bench.admit())
        await bench.wait_write_begun()
        nursery.start_soon(bench.drain.wait_durable, bench.admit(2))
        await trio.testing.wait_all_tasks_blocked()
        bench.handle.gate.set()
    assert bench.handle.batches == [[0], [1, 2]]


async def test_a_waiter_is_released_when_its_own_events_are_durable_not_later(bench: Bench) -> None:
    done: list[int] = []

    async def wait(target: int) -> None:
        await bench.drain.wait_durable(target)
        done.append(target)

    first_gate = bench.handle.gate = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, bench.admit())
        await bench.wait_write_begun()
        nursery.start_soon(wait, bench.admit())
        second_gate = bench.handle.gate = threading.Event()
        first_gate.set()
        await bench.wait_write_begun()
        await trio.testing.wait_all_tasks_blocked()
        assert done == [1]
        second_gate.set()
    assert done == [1, 2]


async def test_a_failed_batch_stays_in_front_and_every_waiter_of_it_is_told(bench: Bench) -> None:
    bench.handle.failures.append(NoSpaceError("full"))
    end = bench.admit(2)
    with pytest.raises(NoSpaceError):
        await bench.drain.wait_durable(end)
    bench.admit()
    await bench.drain.wait_durable(end)
    assert bench.handle.batches == [[0, 1, 2]]
    assert bench.seen.failed == ["NO_SPACE"]
    assert bench.drain.failure is None


async def test_after_a_failure_the_timer_is_quiet_also_for_new_events(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    bench.handle.failures.append(NoSpaceError("full"))
    with pytest.raises(NoSpaceError):
        await bench.drain.wait_durable(bench.admit())
    bench.admit()
    await trio.sleep(10 * WINDOW)
    assert bench.handle.batches == []
    await bench.drain.wait_durable(bench.drain.next_seq)
    assert bench.handle.batches == [[0, 1]]


async def test_a_waiter_that_comes_during_a_failing_write_gets_an_attempt_of_its_own(
    bench: Bench,
) -> None:
    bench.handle.gate = threading.Event()
    bench.handle.failures.append(NoSpaceError("full"))
    outcome: list[str] = []

    async def first(target: int) -> None:
        with pytest.raises(NoSpaceError):
            await bench.drain.wait_durable(target)
        outcome.append("refused")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first, bench.admit())
        await bench.wait_write_begun()
        nursery.start_soon(bench.drain.wait_durable, bench.admit())
        await trio.testing.wait_all_tasks_blocked()
        bench.handle.gate.set()
    assert outcome == ["refused"]
    assert bench.handle.batches == [[0, 1]]


async def test_each_caller_gets_an_error_of_its_own(bench: Bench) -> None:
    bench.handle.gate = threading.Event()
    bench.handle.failures.append(NoSpaceError("full", errno=28))
    errors: list[NoSpaceError] = []

    async def wait(target: int) -> None:
        with pytest.raises(NoSpaceError) as caught:
            await bench.drain.wait_durable(target)
        errors.append(caught.value)

    ends = [bench.admit(), bench.admit()]
    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as nursery:
        for end in ends:
            nursery.start_soon(wait, end)
        await bench.wait_write_begun()
        bench.handle.gate.set()
    assert len({id(error) for error in errors}) == 2
    assert all(error.facts == {"errno": 28} for error in errors)


async def test_a_cancelled_caller_loses_its_wait_not_its_events(bench: Bench) -> None:
    bench.handle.gate = threading.Event()
    end = bench.admit()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.drain.wait_durable, end)
            await bench.wait_write_begun()
            scope.cancel()
    assert scope.cancelled_caught
    bench.handle.gate.set()
    await bench.drain.wait_durable(end)
    assert bench.handle.batches == [[0]]


async def test_a_running_write_ends_before_the_drain_does() -> None:
    made = Bench()
    made.handle.gate = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.drain.run)
        made.admit()
        nursery.start_soon(made.drain.wait_durable, 1)
        await made.wait_write_begun()
        nursery.cancel_scope.cancel()
        made.handle.gate.set()
    assert made.handle.batches == [[0]]
    assert made.drain.durable_seq == 1


async def test_only_abandon_ends_the_wait_for_a_write_that_hangs() -> None:
    made = Bench()
    made.handle.gate = threading.Event()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.drain.run)
            made.admit()
            nursery.start_soon(made.drain.wait_durable, 1)
            await made.wait_write_begun()
            made.drain.abandon()
            nursery.cancel_scope.cancel()
    assert made.drain.durable_seq == 0
    made.handle.gate.set()


async def test_lost_waiters_are_told_and_internal_ones_wait_on(bench: Bench) -> None:
    bench.handle.gate = threading.Event()
    end = bench.admit()
    outcome: list[str] = []

    async def caller() -> None:
        with pytest.raises(WriterLostError):
            await bench.drain.wait_durable(end)
        outcome.append("lost")

    async def owner() -> None:
        await bench.drain.wait_durable(end, losable=False)
        outcome.append("durable")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller)
        nursery.start_soon(owner)
        await bench.wait_write_begun()
        bench.drain.lose_waiters(WriterLostError("gone"))
        await trio.testing.wait_all_tasks_blocked()
        assert outcome == ["lost"]
        bench.handle.gate.set()
    assert outcome == ["lost", "durable"]


async def test_a_store_that_raises_what_it_should_not_fails_the_batch_not_the_session(
    bench: Bench,
) -> None:
    bench.handle.failures.append(ZeroDivisionError("secret text"))
    with pytest.raises(InternalFaultError) as caught:
        await bench.drain.wait_durable(bench.admit())
    assert "secret" not in str(caught.value)
    await bench.drain.wait_durable(1)
    assert bench.handle.batches == [[0]]


@pytest.mark.parametrize(
    ("raised", "told"), [(ZeroDivisionError(), "INTERNAL"), (MemoryError(), "OVERLOADED")]
)
async def test_an_observer_that_raises_fails_nothing_that_is_durable_nor_the_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, raised: Exception, told: str
) -> None:
    def raises(*_: object) -> None:
        raise raised

    monkeypatch.setattr(bench.seen, "batch_durable", raises)
    await bench.drain.wait_durable(bench.admit())
    monkeypatch.undo()
    await bench.drain.wait_durable(bench.admit())
    assert bench.handle.batches == [[0], [1]]
    assert bench.seen.failed == [told]


async def test_room_is_made_by_pushing_the_queue(bench: Bench) -> None:
    bench.admit(10)
    with trio.fail_after(5):
        await bench.drain.wait_room(50, 100)
    assert bench.handle.batches == [list(range(10))]
    assert bench.drain.pending_bytes == 0


async def test_a_full_queue_on_a_failing_disk_answers_the_failure(bench: Bench) -> None:
    bench.handle.failures.append(NoSpaceError("full"))
    with pytest.raises(NoSpaceError):
        await bench.drain.wait_durable(bench.admit(10))
    with pytest.raises(NoSpaceError):
        await bench.drain.wait_room(50, 100)
    assert bench.drain.next_seq == 10


async def test_a_flush_of_an_empty_session_materialises_its_log(bench: Bench) -> None:
    await bench.drain.wait_durable(0, materialise=True)
    assert bench.handle.materialised
    assert bench.handle.batches == []
    assert bench.seen.durable == []


async def test_a_quick_disk_is_waited_for_in_the_turn_of_whoever_wants_the_write(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time: that it is quick is known from the first."""
    monkeypatch.setattr("dshd.sessions.drain._PATIENCE_S", 5.0)
    await bench.drain.wait_durable(bench.admit())
    driven = Driven(bench.drain, bench.admit())
    assert not bench.drain.clean
    driven.due.begin()
    assert bench.drain.clean
    assert driven.ended == [None]


async def test_a_disk_that_hangs_holds_the_loop_for_a_moment_and_loses_nothing(
    bench: Bench,
) -> None:
    await bench.drain.wait_durable(bench.admit())
    bench.handle.gate = threading.Event()
    first = Driven(bench.drain, bench.admit())
    began = time.monotonic()
    first.due.begin()
    later = Driven(bench.drain, bench.admit())
    later.due.begin()
    assert time.monotonic() - began < 1
    assert first.ended == later.ended == []
    threading.Timer(0.05, bench.handle.gate.set).start()
    await bench.drain.wait_durable(bench.drain.next_seq)
    assert first.ended == later.ended == [None]
    assert bench.handle.batches == [[0], [1], [2]]


async def test_what_is_wanted_while_a_write_runs_is_written_when_it_ends(bench: Bench) -> None:
    bench.handle.gate = threading.Event()
    first = Driven(bench.drain, bench.admit())
    first.due.begin()
    await bench.wait_write_begun()
    second, third = (Driven(bench.drain, bench.admit()) for _ in range(2))
    second.due.begin()
    third.due.begin()
    bench.handle.gate.set()
    await bench.drain.wait_durable(bench.drain.next_seq)
    assert bench.handle.batches == [[0], [1, 2]]
    assert first.ended == second.ended == third.ended == [None]


async def test_what_comes_while_a_write_runs_has_its_own_window(bench: Bench) -> None:
    """Nobody waits for it: the drain's task has to see to it."""
    bench.handle.gate = threading.Event()
    Driven(bench.drain, bench.admit()).due.begin()
    await bench.wait_write_begun()
    bench.admit()
    await trio.testing.wait_all_tasks_blocked()
    bench.handle.gate.set()
    await trio.sleep(WINDOW * 2)
    assert bench.handle.batches == [[0], [1]]


async def test_a_driven_wait_is_told_the_failure_and_the_batch_stays(bench: Bench) -> None:
    bench.handle.failures.append(NoSpaceError("full"))
    driven = Driven(bench.drain, bench.admit())
    driven.due.begin()
    await driven.over.wait()
    assert [type(error) for error in driven.ended] == [NoSpaceError]
    await bench.drain.wait_durable(bench.drain.next_seq)
    assert bench.handle.batches == [[0]]


async def test_nothing_is_begun_for_a_drain_whose_task_has_ended(nursery: trio.Nursery) -> None:
    """Its owner closes the log then; what is pending is written when there is a task again."""
    made = Bench()
    driven = Driven(made.drain, made.admit())
    driven.due.begin()
    await trio.testing.wait_all_tasks_blocked()
    assert made.handle.batches == []
    nursery.start_soon(made.drain.run)
    await made.drain.wait_durable(1)
    assert driven.ended == [None]
    nursery.cancel_scope.cancel()
