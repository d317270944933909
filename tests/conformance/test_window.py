"""The suite about the window, over a handle in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from conformance.memory import MemoryStorage
from conformance.suite import header
from conformance.window import LENGTH, WINDOW, Timed, Unwatched
from dshd.sessions.drain import Drain

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.cases import Case
    from dshd.storage.store import SessionHandle


class Bench:
    """A drain over a handle in memory, and a clock that jumps when nothing else is to be done."""

    def __init__(self) -> None:
        self.handle: SessionHandle = MemoryStorage().open().create(header())

    def run(self, test: Callable[[Drain], Any]) -> None:
        """See `Timed`."""

        async def main() -> None:
            unwatched = Unwatched()
            drain = Drain(self.handle, window=LENGTH, observer=unwatched, holder=unwatched)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drain.run)
                await test(drain)
                nursery.cancel_scope.cancel()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


@pytest.mark.parametrize("case", WINDOW.cases, ids=[case.name for case in WINDOW.cases])
def test_what_nobody_waits_for_is_written_in_time(case: Case[Timed]) -> None:
    case.check(Bench())
