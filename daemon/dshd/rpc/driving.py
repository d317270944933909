"""The calls of one connection that are served without a task of their own.

The rule that holds here: what they wait for is begun before their connection waits itself, and a call is handed back
once, with its outcome, unless the connection has ended.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from dshd.sessions.at_once import AtOnce, DroppedError, Due

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import trio

    from dshd.rpc.calls import Call

AT_ONCE = frozenset(
    {
        "session.append",
        "checkpoint.request",
        "checkpoint.tool",
        "checkpoint.postStep",
        "checkpoint.turnEnd",
    }
)
"""What an agent waits for in every step."""


class Driving:
    """Drives calls by hand.

    Args:
        serve: Serves one; it waits for the disk and for nothing else, or needs a task.
        ended: Told the outcome.
        connection_ended: Told instead that there is nobody to answer.

    Attributes:
        calls: Those that have not ended, in order.
    """

    def __init__(
        self,
        serve: Callable[[Call], Coroutine[Any, Any, Any]],
        ended: Callable[[Call, Any, BaseException | None], None],
        connection_ended: Callable[[Call], None],
    ) -> None:
        self.calls: dict[Call, None] = {}
        self._serve = serve
        self._ended = ended
        self._connection_ended = connection_ended
        self._due = Due()
        self._dropped = False

    def begin(self, call: Call) -> bool:
        """Serve a call if it is its turn; returns False where it needs a task, and nothing was done."""
        if call.request.method not in AT_ONCE or not call.may_begin:
            return False
        at_once = AtOnce(self._serve(call), partial(self._end, call), self._due)
        call.at_once, self.calls[call] = at_once, None
        begun = at_once.begin()
        if not begun:
            del self.calls[call]
            call.at_once = None
        return begun

    def begin_due(self) -> None:
        """Begin the writes that calls wait for. Whoever reads lines does so before it waits itself."""
        self._due.begin()

    def drop(self) -> None:
        """Give up all of them: the connection has ended, as have the tasks of the others."""
        self._dropped = True
        for call in list(self.calls):
            if call.at_once is not None:
                call.at_once.drop()

    def _end(self, call: Call, result: Any, error: BaseException | None) -> None:
        del self.calls[call]
        call.at_once = None  # the two know each other, and the call may hold megabytes
        if self._dropped:
            self._connection_ended(call)
        elif isinstance(error, DroppedError):
            self._ended(call, None, call.cancelled())
        else:
            self._ended(call, result, error)


def contained(nursery: trio.Nursery, act: Callable[[], None]) -> None:
    """Do something in the turn of whoever tells of the disk; what goes wrong in it is raised in a task."""
    try:
        act()
    except Exception as fault:  # noqa: BLE001  # as above
        nursery.start_soon(fail, fault)


async def fail(fault: Exception) -> None:
    """Raise what went wrong where no task was, as if there had been one."""
    raise fault
