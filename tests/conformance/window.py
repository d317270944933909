"""When a live session is written without being asked: checks over a clock that the tests turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import trio

from conformance.cases import Suite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsh_protocol.errors import DshdError, InternalFaultError
    from dsh_protocol.events import Event
    from dshd.sessions.drain import Drain
    from dshd.storage.store import HolderRecord, SessionHandle

LENGTH = 0.2


class Timed(Protocol):
    """A handle to write through, and what is to be called in a trio run with a clock that jumps."""

    handle: SessionHandle

    def run(self, test: Callable[[Drain], Any]) -> None:
        """Run an asynchronous test with a drain over the handle."""
        ...


WINDOW: Suite[Timed] = Suite()
holds = WINDOW.holds


class Unwatched:
    """Nobody looks on, and no holder record is ever due."""

    def batch_durable(self, events: Sequence[Event], size: int, seconds: float) -> None:
        """See the drain's observer."""

    def batch_failed(self, error: DshdError, seconds: float) -> None:
        """See the drain's observer."""

    def fault(self, error: BaseException) -> InternalFaultError:
        """See the drain's observer."""
        raise error

    def due_holder(self) -> HolderRecord | None:
        """See the drain's holder."""
        return None

    def note_holder(self, record: HolderRecord) -> None:
        """See the drain's holder."""


def admit(drain: Drain) -> None:
    """Admit one event."""
    seq = drain.next_seq
    data = {"title": f"t{seq}"}
    drain.admit_nowait([{"type": "session/title", "seq": seq, "time": 0, "data": data}], 10)


async def settle() -> None:
    """Let a write that is due come to its end."""
    await trio.sleep(0.03)


@holds("W4", "W6")
def check_every_window_is_that_of_its_first_event(timed: Timed) -> None:
    """Also after a flush, and after a batch that the clock has written: not sooner, not later, and not moved."""

    async def test(drain: Drain) -> None:
        handle = timed.handle
        admit(drain)
        await drain.wait_durable(1)
        for length in (1, 3):
            await trio.sleep(5 * LENGTH)
            admit(drain)
            await trio.sleep(LENGTH * 0.7)
            admit(drain)
            assert handle.next_seq == length
            await trio.sleep(LENGTH * 0.3)
            await settle()
            assert handle.next_seq == length + 2

    timed.run(test)
