# ruff: noqa: T201  the output is what the test reads
"""The test agent on openai-agents, its own scripted model and session plus hooks: run or streamed."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from agents import Agent, FunctionTool, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.testing.model import ModelStep
from bench import PROMPT, TOOLS, Bench, Said

from dsh_client.adapters import keys
from dsh_client.adapters.openai_agents import (
    agent_tool,
    child_session,
    dshd_session,
    idempotency_key,
)
from dsh_client.adapters.openai_agents_streams import watched

bench = Bench()


def said(items: Any) -> list[Said]:
    found: list[Said] = []
    asked: set[str] = set()
    for item in items:
        call_id = item.get("call_id")
        kind = item.get("type", "message")
        if kind == "function_call":
            asked.add(call_id)
            continue
        if kind == "function_call_output":
            assert call_id in asked, "an output without its call"
            asked.discard(call_id)
            found.append(Said("tool", item["output"], call_id))
        else:
            found.append(Said(item["role"], str(item["content"])))
    assert not asked, f"calls without an output: {asked}"
    return found


def respond(call: Any) -> Any:
    items = (
        call.input if isinstance(call.input, list) else [{"role": "user", "content": call.input}]
    )
    answer = bench.model(said(items))
    if isinstance(answer, str):
        return [assistant_message(answer)]
    return [function_call(a.name, {"what": bench.what(a.name)}, call_id=a.id) for a in answer]


def tool(name: str) -> FunctionTool:
    async def run(context: Any, _arguments: str) -> str:
        if name == "look" and "delegate" in bench.options:
            ours = dshd_session(**child_session(context), socket=bench.socket)
            expert = Agent(name="expert", model=ScriptedModel([[assistant_message("4.20")]]))
            await Runner.run(expert, "What does it cost?", **ours)
            ours["session"].recorder.close()
        with keys.running(idempotency_key(context)):
            return await asyncio.to_thread(bench.body, name)

    schema = {
        "type": "object",
        "properties": {"what": {"type": "string"}},
        "required": ["what"],
        "additionalProperties": False,
    }
    return FunctionTool(
        name=name, description=f"{name} it", params_json_schema=schema, on_invoke_tool=run
    )


def made(name: str) -> FunctionTool:
    if name != "look" or bench.options.get("delegate") != "tool":
        return tool(name)

    def answer(call: Any) -> Any:
        history = said(call.input)
        bench.note("requests", [vars(one) for one in history])
        if any(one.call_id for one in history):
            return [assistant_message("4.20")]
        return [function_call("look", {"what": "price"}, call_id="inner-look")]

    model = ScriptedModel([ModelStep.respond(answer)] * 2)
    expert = Agent(name="expert", model=model, tools=[tool("look")])
    found: FunctionTool = agent_tool(expert, name, "Ask the expert.", parameters=Question)
    return found


@dataclass
class Question:
    what: str


async def main() -> None:
    ours = dshd_session(bench.session, **bench.settings)
    bench.arm(ours["hooks"].recorder)
    model = watched(ScriptedModel([ModelStep.respond(respond) for _ in range(9)]))
    agent = Agent(
        name="clerk", instructions="Be brief.", model=model, tools=[made(name) for name in TOOLS]
    )
    config = RunConfig(tracing_disabled=True)
    if bench.options.get("mode") == "stream":
        streamed = Runner.run_streamed(agent, PROMPT, run_config=config, **ours)
        async for _event in streamed.stream_events():
            pass
        print(streamed.final_output)
    else:
        result = await Runner.run(agent, PROMPT, run_config=config, **ours)
        said(result.to_input_list())
        print(result.final_output)
    ours["session"].recorder.close()


if __name__ == "__main__":
    asyncio.run(main())
