from __future__ import annotations

import pytest
import trio
import trio.testing

from dsh_protocol.envelope import Request
from dsh_protocol.errors import CallCancelledError
from dshd.rpc.calls import Call


def lane(count: int) -> list[Call]:
    """Calls on one session, each behind the one before it."""
    calls: list[Call] = []
    for number in range(count):
        before = calls[-1] if calls else None
        calls.append(Call(Request(number, True, "session.stat", {"id": "s"}), 1, before=before))  # noqa: FBT003  # has an id
    return calls


async def test_a_call_that_is_cancelled_in_its_lane_lets_nobody_overtake_those_before_it() -> None:
    first, cancelled, last = lane(3)
    begun: list[Call] = []

    async def serve(call: Call) -> None:
        await trio.lowlevel.checkpoint()
        begun.append(call)

    async with trio.open_nursery() as nursery:
        cancelled.cancel()
        with pytest.raises(CallCancelledError):
            await cancelled.run(serve)
        nursery.start_soon(cancelled.wait_turn_to_answer)
        nursery.start_soon(last.run, serve)
        await trio.testing.wait_all_tasks_blocked()
        assert begun == []
        first.note_admitted()
        await trio.testing.wait_all_tasks_blocked()
        assert begun == [last]
        first.answered.set()
