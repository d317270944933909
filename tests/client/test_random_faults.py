"""Whatever goes wrong on the way, in whatever order: the log is whole, the seqs are dense, every body ran once."""

from __future__ import annotations

import threading
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_client.blocking import Client
from dsh_client.session import open_session
from support.fake_daemon import FakeDaemon

HEADER = {"config": {"provider": "p", "model": "m"}}
KINDS = ["lose-call", "lose-reply", "half-reply", "crash"]
RECORDING = {
    "session.append",
    "session.flush",
    "checkpoint.request",
    "checkpoint.tool",
    "checkpoint.postStep",
    "checkpoint.turnEnd",
}


@given(plan=st.dictionaries(st.integers(0, 30), st.sampled_from(KINDS), max_size=8))
@settings(max_examples=60, deadline=None)
def test_lost_calls_answers_and_daemons_in_any_order_leave_one_of_everything(
    plan: dict[int, str],
) -> None:
    bodies: list[str] = []
    with FakeDaemon() as daemon:
        count = 0

        def follow_plan(method: str, _params: dict[str, Any]) -> None:
            nonlocal count
            if method in RECORDING:
                kind = plan.get(count)
                count += 1
                if kind is not None:
                    daemon.fault(method, kind)
                if kind == "crash":
                    threading.Timer(0.005, daemon.start).start()

        daemon.on_call = follow_plan
        client = Client(daemon.path, timeout=20)
        with open_session("s", client=client) as session:
            for _ in range(2):
                with session.turn("hello") as turn, turn.step() as step:
                    step.request(HEADER)
                    calls = [
                        {"type": "tool-call", "id": i, "name": "t", "arguments": "{}"} for i in "ab"
                    ]
                    for call in step.answer(calls):
                        with step.tool(call) as tool:
                            bodies.append(call.id)
                            tool.result("ok")
        client.close()
        log = daemon.sessions["s"]
        types = [event["type"] for event in log.events]
    turn_types = ["assistant/message", *["tool/call", "tool/result"] * 2, "step/end", "turn/end"]
    opening = ["turn/start", "step/start", "user/message"]
    assert types == [*opening, "request/header", *turn_types, *opening, *turn_types]
    assert log.durable == len(types)
    assert bodies == ["a", "b", "a", "b"]
    for event in log.events:
        if event["type"] == "tool/result":
            (cited,) = event["sourceEventSeqs"]
            called = event["data"]["message"]["source"]["callId"]
            assert log.events[cited]["data"]["callId"] == called
