# ruff: noqa: INP001, T201  an example is a script, and prints
"""openai-agents, durable by one line; its scripted model needs no network and no key.

pip install . openai-agents && dshd serve &
python client/examples/with_openai_agents.py my-session     kill -9 it where you like, and run it again
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.testing.model import ModelStep
from agents.tool_context import ToolContext  # noqa: TC002  the SDK reads the annotation

from dsh_client.adapters.openai_agents import dshd_session, idempotency_key


def clerk(call: Any) -> Any:
    """Ask for the payment, then tell what came of it."""
    last = call.input[-1]
    if last.get("type") == "function_call_output":
        return [assistant_message(f"The tool said: {last['output']}")]
    return [function_call("pay", {"amount": "4.20"}, call_id="pay-1")]


@function_tool
def pay(context: ToolContext[Any], amount: str) -> str:
    """Pay an amount."""
    return f"paid {amount} under {idempotency_key(context)}"


async def main() -> None:
    """Run one turn."""
    model = ScriptedModel([ModelStep.respond(clerk), ModelStep.respond(clerk)])
    agent = Agent(name="clerk", model=model, tools=[pay])
    config = RunConfig(tracing_disabled=True)
    result = await Runner.run(
        agent, "Pay for the tea.", run_config=config, **dshd_session(sys.argv[1])
    )
    print(result.final_output)


asyncio.run(main())
