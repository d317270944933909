from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.envelope import Request
from dshd.rpc.calls import Call
from dshd.rpc.driving import Driving
from dshd.sessions.at_once import Signal

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture
def no_collector() -> Generator[None, None, None]:
    gc.disable()
    yield
    gc.enable()


class Payload(str):
    """What a call brings along; may be megabytes."""

    __slots__ = ("__weakref__",)


def driven(fails: bool, dropped: bool) -> weakref.ref[Payload]:  # noqa: FBT001  # as parametrized
    """Drive a call to its end, and return what tells whether anything still holds what it brought along."""
    signals = [Signal()]

    async def serve(call: Call) -> Any:
        await signals[0].wait()
        if fails:
            raise ZeroDivisionError(call.request.params["id"])
        return {}

    def ended(_call: Call, _result: object, _error: BaseException | None) -> None:
        pass

    driving = Driving(serve, ended, lambda _: None)
    payload = Payload("x")
    request = Request(1, True, "session.append", {"id": payload})  # noqa: FBT003  # has an id
    assert driving.begin(Call(request, 1))
    if dropped:
        driving.drop()
    else:
        signals[0].set()
    signals.clear()  # as the drain forgets a waiter
    assert not driving.calls
    return weakref.ref(payload)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("fails", [False, True], ids=["answered", "refused"])
@pytest.mark.parametrize("dropped", [False, True], ids=["served", "dropped"])
def test_what_a_call_held_is_free_when_it_has_ended(fails: bool, dropped: bool) -> None:  # noqa: FBT001  # likewise
    """At once: lines of megabytes must not wait for the collector."""
    assert driven(fails, dropped)() is None
