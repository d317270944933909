"""A handoff of openai-agents: the same conversation with another agent, in the same session."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from support.frameworks import case

if TYPE_CHECKING:
    from support.daemon import DaemonProcess


@pytest.mark.parametrize("framework", [case("openai_agents")])
def test_a_handoff_is_answered_in_the_session_and_the_next_header_shows_who_goes_on(
    daemon: DaemonProcess, framework: str
) -> None:
    agents, testing = importlib.import_module("agents"), importlib.import_module("agents.testing")
    adapter = importlib.import_module(f"dsh_client.adapters.{framework}")
    ours: dict[str, Any] = adapter.dshd_session(f"handed-{uuid4()}", socket=str(daemon.socket))
    asked = testing.function_call("transfer_to_expert", {}, call_id="over")
    answers = testing.ScriptedModel([[testing.assistant_message("4.20")]])
    expert = agents.Agent(name="expert", instructions="Know prices.", model=answers)
    clerk = agents.Agent(
        name="clerk",
        instructions="Be brief.",
        model=testing.ScriptedModel([[asked]]),
        handoffs=[expert],
    )
    config = agents.RunConfig(tracing_disabled=True)
    done = asyncio.run(agents.Runner.run(clerk, "What does it cost?", run_config=config, **ours))
    assert done.final_output == "4.20"
    stored = daemon.call("session.read", id=ours["session"].session_id)["events"]
    headers = [e["data"]["header"] for e in stored if e["type"] == "request/header"]
    assert [header["system"] for header in headers] == ["Be brief.", "Know prices."]
    results = [e["data"] for e in stored if e["type"] == "tool/result"]
    assert [one["message"]["source"]["callId"] for one in results] == ["over"]
    assert "error" not in results[0], "the handoff's call was closed as one that never ran"
    view = daemon.call("session.stat", id=ours["session"].session_id)["session"]
    assert (view["state"], view["turns"]) == ("idle", 1)
    ours["session"].recorder.close()
