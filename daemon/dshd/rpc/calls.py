"""One call in flight: its place in the order of its session, and what a cancel does to it.

The calls of one connection on one session form a lane: each is admitted after the one before it was, and its reply
goes out after the reply of the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from dsh_protocol.errors import CallCancelledError
from dshd.sessions.at_once import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_protocol.envelope import Request
    from dshd.sessions.asked import Admission
    from dshd.sessions.at_once import AtOnce


@dataclass(eq=False, slots=True)
class Call:
    """A request that is being served.

    Attributes:
        request: As parsed.
        size: Bytes of its line.
        read_at: When it was read, by the loop's clock.
        before: The call before it in its lane, until this one has been answered.
        admitted: Set when the next call of the lane may be admitted.
        answered: Set when its reply is on its way.
        cancel_read: A `$/cancelRequest` for it was read.
        after_reply: Run once the reply is queued.
        in_batch: It is answered together with others.
        at_once: What serves it, where it has no task.
    """

    request: Request
    size: int
    read_at: float = 0.0
    before: Call | None = None
    admitted: Signal = field(default_factory=Signal)
    answered: Signal = field(default_factory=Signal)
    cancel_read: bool = False
    after_reply: Callable[[], None] | None = None
    in_batch: bool = False
    admission: Admission | None = None
    at_once: AtOnce[Any] | None = None
    _held: bool = False
    _scope: trio.CancelScope | None = None

    @property
    def may_begin(self) -> bool:
        """Whether it is its turn to be admitted."""
        return self.before is None or self.before.admitted.is_set

    def note_admission(self, admission: Admission) -> None:
        """Note what the call's events were given, and let the next call of the lane in."""
        self.admission = admission
        self.admitted.set()

    def note_admitted(self) -> None:
        """Let the next call of the lane in."""
        self.admitted.set()

    def is_cancelled(self) -> bool:
        """Whether a cancel was read."""
        return self.cancel_read

    def hold_cancel(self) -> None:
        """From here on the call answers by itself, cancelled or not."""
        self._held = True

    def cancel(self) -> None:
        """Act on a `$/cancelRequest`."""
        self.cancel_read = True
        if self._held:
            return
        if self._scope is not None:
            self._scope.cancel()
        elif self.at_once is not None:
            self.at_once.drop()

    async def run(self, serve: Callable[[Call], Any]) -> Any:
        """Serve the call in its turn.

        Raises:
            CallCancelledError: A cancel came first; what was admitted stays.
        """
        with trio.CancelScope() as self._scope:
            if self.cancel_read:  # while it waited for its task
                self._scope.cancel()
            if self.before is not None:
                await self.before.admitted.wait()
            if not self.cancel_read:  # else nothing is begun that a cancel could leave half told
                return await serve(self)
        raise self.cancelled()

    def cancelled(self) -> CallCancelledError:
        """The answer to a call that a cancel has ended."""
        facts: dict[str, Any] = {}
        if self.admission is not None and self.admission.next_seq > self.admission.first_seq:
            facts["admitted"] = self.admission.facts()
        return CallCancelledError(
            "the call was cancelled before it was done; what it had admitted stays", **facts
        )

    async def wait_turn_to_answer(self) -> None:
        """Let the next call of the lane in, and wait until the replies before this one are on their way."""
        await self.end_admission()
        if self.before is not None:
            await self.before.answered.wait()
            self.before = None

    async def end_admission(self) -> None:
        """Let the next call of the lane in, but not before those that come first: a cancelled call may end at once."""
        if self.before is not None:
            await self.before.admitted.wait()
        self.admitted.set()
