"""The one store of a framework that an adapter implements: openai-agents' session. No kit comes with the SDK."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from support.frameworks import case

if TYPE_CHECKING:
    from support.daemon import DaemonProcess

ONLY = pytest.mark.parametrize("framework", [case("openai_agents")])


def arguments(daemon: DaemonProcess) -> dict[str, Any]:
    adapter = importlib.import_module("dsh_client.adapters.openai_agents")
    made: dict[str, Any] = adapter.dshd_session(f"stored-{uuid4()}", socket=str(daemon.socket))
    return made


@ONLY
def test_it_is_a_session_as_the_sdk_checks_it(daemon: DaemonProcess, framework: str) -> None:
    session = arguments(daemon)["session"]
    assert isinstance(session, importlib.import_module("agents.memory").Session)


@ONLY
def test_it_gives_what_the_hooks_recorded_whole_or_the_last_of_it(
    daemon: DaemonProcess, framework: str
) -> None:
    agents, testing = importlib.import_module("agents"), importlib.import_module("agents.testing")
    ours = arguments(daemon)
    session = ours["session"]
    model = testing.ScriptedModel([[testing.assistant_message("4.20")]])
    agent = agents.Agent(name="clerk", model=model)
    config = agents.RunConfig(tracing_disabled=True)

    async def use() -> None:
        assert await session.get_items() == []
        await agents.Runner.run(agent, "What does it cost?", run_config=config, **ours)
        items = await session.get_items()
        assert [item["role"] for item in items] == ["user", "assistant"]
        assert await session.get_items(1) == items[-1:]
        assert await session.get_items(0) == []
        assert await session.pop_item() is None
        assert await session.get_items() == items, "a log keeps what was said"
        with pytest.raises(NotImplementedError, match="begin another one"):
            await session.clear_session()

    asyncio.run(use())
    session.recorder.close()
