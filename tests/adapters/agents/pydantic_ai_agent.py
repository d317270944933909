# ruff: noqa: T201  the output is what the test reads
"""The test agent on pydantic-ai, its own function model and the capability: run, streamed, iterated."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import itertools

from bench import PROMPT, TOOLS, Bench, Said
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from dsh_client.adapters.keys import child_session
from dsh_client.adapters.pydantic_ai import Dshd

bench = Bench()


def said(messages: list[Any]) -> list[Said]:
    ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
    check_answered(messages)
    found: list[Said] = []
    for message in messages:
        found += [
            Said(p.part_kind, str(getattr(p, "content", "")), call_of(p)) for p in message.parts
        ]
    return found


def call_of(part: Any) -> str | None:
    return part.tool_call_id if part.part_kind == "tool-return" else None


def check_answered(messages: list[Any]) -> None:
    """What providers demand: each answer's calls are answered by the request that follows."""
    for message, follows in itertools.pairwise(messages):
        asked = {p.tool_call_id for p in message.parts if p.part_kind == "tool-call"}
        told = {p.tool_call_id for p in follows.parts if p.part_kind == "tool-return"}
        assert asked <= told, (asked, told)


def function(messages: list[Any], _info: Any) -> ModelResponse:
    answer = bench.model(said(messages))
    if isinstance(answer, str):
        return ModelResponse(parts=[TextPart(answer)])
    return ModelResponse(
        parts=[ToolCallPart(a.name, {"what": bench.what(a.name)}, a.id) for a in answer]
    )


async def stream(messages: list[Any], _info: Any) -> Any:
    await asyncio.sleep(0)
    answer = bench.model(said(messages))
    if isinstance(answer, str):
        yield answer
    else:
        yield {
            number: DeltaToolCall(a.name, f'{{"what": "{bench.what(a.name)}"}}', tool_call_id=a.id)
            for number, a in enumerate(answer)
        }


def tool(name: str) -> Tool:
    async def run(what: str) -> str:
        if name == "look" and "delegate" in bench.options:
            dshd = Dshd(**child_session(), socket=bench.socket)
            model = FunctionModel(lambda _messages, _info: ModelResponse(parts=[TextPart("4.20")]))
            await Agent(model, capabilities=[dshd]).run("What does it cost?")
            dshd.recorder.close()
        return await asyncio.to_thread(bench.body, name)

    return Tool(run, name=name, description=f"{name} it", takes_ctx=False)


async def main() -> None:
    dshd = Dshd(bench.session, **bench.settings)
    bench.arm(dshd.recorder)
    model: Any = FunctionModel(function, stream_function=stream)
    if bench.options.get("chain") == "retries":
        model = FallbackModel(model, FunctionModel(function), fallback_on=(Exception,))
    agent = Agent(
        model,
        tools=[tool(name) for name in TOOLS],
        capabilities=[dshd],
        instructions="Be brief.",
        retries=3,
    )
    mode = bench.options.get("mode", "run")
    if mode == "run":
        result: Any = await agent.run(PROMPT)
        said(result.all_messages())
        print(result.output)
    elif mode == "iter":
        async with agent.iter(PROMPT) as run:
            async for _node in run:
                pass
        print(run.result.output)
    else:
        async with agent.run_stream(PROMPT) as streamed:
            print(await streamed.get_output())
    dshd.recorder.close()


if __name__ == "__main__":
    asyncio.run(main())
