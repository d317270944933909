"""A call without a task of its own: to its admission in the turn of who reads it, to its reply in the disk's.

A task for each call costs more than the call. So the coroutine that serves one may be driven by hand: it runs until it
waits for the disk, and goes on where the disk answers. The rule that holds here: such a coroutine waits for a `Signal`
and for nothing else. What would have to wait otherwise says so with `need_task` before it has done anything.
"""

from __future__ import annotations

import types
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")


class NeedsTaskError(BaseException):
    """The call cannot be served at once. Nothing of it is done, and no handler of errors is to see this."""


class DroppedError(BaseException):
    """Nobody waits for the call any more."""


class Signal:
    """Something that happens once; what waits for it is told in order, in the turn of whoever sets it."""

    __slots__ = ("_calls", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._calls: list[Callable[[], None]] | None = None

    def set(self) -> None:
        """Let it have happened. Not again.

        Whoever is told may set other signals: those are told after this one, not inside of it, so that a long row of
        them needs no deep stack.
        """
        self.is_set = True
        calls, self._calls = self._calls, None
        if calls:
            _tell(calls)

    def then(self, call: Callable[[], None]) -> None:
        """Have something called when it happens; at once where it has. It must not raise."""
        if self.is_set:
            call()
        elif self._calls is None:
            self._calls = [call]
        else:
            self._calls.append(call)

    async def wait(self) -> None:
        """Wait until it has happened; no turn of the loop where it has, that is most of the time."""
        if self.is_set:
            return
        if _State.driving is not None:
            await _suspend(self)
            return
        event = trio.Event()
        self.then(event.set)
        await event.wait()


class Due:
    """What driven coroutines wait for and nobody has begun yet: their driver does, before it waits itself."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def put(self, call: Callable[[], None]) -> None:
        """Have something begun, once."""
        if call not in self._calls:
            self._calls.append(call)

    def begin(self) -> None:
        """Begin all of it."""
        if self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                call()


class _State:
    """What the thread of the event loop is doing.

    Attributes:
        driving: Where what a driven coroutine waits for is put; None while none is driven.
        telling: What is still to be told; None while nothing is.
    """

    driving: Due | None = None
    telling: deque[Callable[[], None]] | None = None


def _tell(calls: list[Callable[[], None]]) -> None:
    if _State.telling is not None:
        _State.telling.extend(calls)
        return
    _State.telling = telling = deque(calls)
    failure: Exception | None = None
    try:
        while telling:
            try:
                telling.popleft()()
            except Exception as error:  # noqa: BLE001  # the others are told all the same
                failure = failure or error
    finally:
        _State.telling = None
    if failure is not None:
        raise failure


def need_task() -> None:
    """Say that what follows waits for more than the disk.

    Raises:
        NeedsTaskError: The call is served at once. It is to be begun anew, in a task.
    """
    if _State.driving is not None:
        raise NeedsTaskError


def begin_later(call: Callable[[], None]) -> bool:
    """Have something begun soon, where a coroutine is driven by hand; returns whether one is."""
    if _State.driving is None:
        return False
    _State.driving.put(call)
    return True


class AtOnce(Generic[T]):
    """One coroutine, driven by hand.

    Args:
        coroutine: It keeps to the module's rule.
        ended: Called once with its result or its exception, except where it needs a task.
        due: Takes what it waits for.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        ended: Callable[[T | None, BaseException | None], None],
        due: Due,
    ) -> None:
        self._coroutine = coroutine
        self._due = due
        self._ended = ended
        self._waits = False

    def begin(self) -> bool:
        """Drive it until it waits or ends; returns False where it needs a task, and was given up."""
        return self._drive(self._coroutine.send, None)

    def drop(self) -> bool:
        """End its wait with a DroppedError; returns whether it waited."""
        if not self._waits:
            return False
        self._drive(self._coroutine.throw, DroppedError())
        return True

    def _go_on(self) -> None:
        if self._waits and not self._drive(self._coroutine.send, None):
            self._ended(None, RuntimeError("a call needed a task after it had begun without one"))

    def _drive(self, drive: Callable[[Any], Any], value: Any) -> bool:
        before, _State.driving, self._waits = _State.driving, self._due, False
        result: T | None = None
        error: BaseException | None = None
        try:
            signal: Signal = drive(value)
        except StopIteration as end:
            result = end.value
        except NeedsTaskError:
            return False
        except (Exception, DroppedError) as failure:  # noqa: BLE001  # it is handed on
            error = failure
        else:
            self._waits = True
            signal.then(self._go_on)
            return True
        finally:
            _State.driving = before
        try:
            self._ended(result, error)
        finally:
            # its traceback knows this frame: the collector alone would free what the call held
            error = value = None
        return True


@types.coroutine
def _suspend(signal: Signal) -> Generator[Signal, None, None]:
    yield signal
