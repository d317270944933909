# ruff: noqa: T201, PLC0415  the output is what the test reads; a framework is imported where it is installed
"""What an adapter adds to its framework's own loop: steps with and without it, in turns, in one process.

`cost_agent.py FRAMEWORK SOCKET RUNS STEPS` prints JSON: milliseconds per step of each run, `without`, `with`, and
`by hand`: the same checkpoints without a framework. A step is a request to a fake model that answers at once, and the
one tool that it asks for.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Callable


class Case(NamedTuple):
    """A run with the adapter, whose session is opened before the time is taken."""

    recorder: Any
    run: Callable[[], Any]


class Clock:
    """Takes the time of one run after the other."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {"without": [], "by hand": [], "with": []}

    def run(self, name: str, steps: int, agent: Callable[[], Any]) -> None:
        gc.collect()
        began = time.perf_counter()
        agent()
        self.taken[name].append((time.perf_counter() - began) * 1000 / steps)


def call_id(number: int) -> str:
    return f"call-{number}-{uuid4()}"


def langgraph(socket: str, steps: int) -> tuple[Callable[[], Any], Callable[[], Case]]:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    from dsh_client.adapters.langchain import Dshd

    class Model(GenericFakeChatModel):
        def bind_tools(self, _tools: Any, **_options: Any) -> Any:
            return self

        def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
            done = sum(message.type == "tool" for message in messages)
            call = {"id": call_id(done), "name": "look", "args": {"what": "price"}}
            again = AIMessage("", tool_calls=[call])
            self.messages = iter([AIMessage("done") if done == steps - 1 else again])
            return super()._generate(messages, *args, **options)

    def look(what: str) -> str:
        """Look."""
        return f"{what}: 4.20"

    asked = {"messages": [{"role": "user", "content": "Look."}]}

    def agent(middleware: list[Any]) -> Any:
        made = create_agent(Model(messages=iter([])), [look], middleware=middleware)
        return made.invoke(asked, {"recursion_limit": 10 * steps})

    def durable() -> Case:
        dshd = Dshd(None, socket=socket)
        return Case(dshd.recorder, lambda: agent([dshd]))

    return lambda: agent([]), durable


def pydantic_ai(socket: str, steps: int) -> tuple[Callable[[], Any], Callable[[], Case]]:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from dsh_client.adapters.pydantic_ai import Dshd

    def model(messages: list[Any], _info: Any) -> ModelResponse:
        done = sum(message.kind == "response" for message in messages)
        if done == steps - 1:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("look", {"what": "price"}, call_id(done))])

    async def look(what: str) -> str:
        """Look."""
        return f"{what}: 4.20"

    def agent(capabilities: list[Any]) -> Any:
        made = Agent(FunctionModel(model), tools=[look], capabilities=capabilities)
        return asyncio.run(made.run("Look.", usage_limits=None))

    def durable() -> Case:
        dshd = Dshd(None, socket=socket)
        return Case(dshd.recorder, lambda: agent([dshd]))

    return lambda: agent([]), durable


def openai_agents(socket: str, steps: int) -> tuple[Callable[[], Any], Callable[[], Case]]:
    from agents import Agent, FunctionTool, RunConfig, Runner
    from agents.memory import SQLiteSession
    from agents.testing import ScriptedModel, assistant_message, function_call
    from agents.testing.model import ModelStep

    from dsh_client.adapters.openai_agents import dshd_session

    def respond(call: Any) -> Any:
        items = call.input if isinstance(call.input, list) else []
        done = sum(item.get("type") == "function_call_output" for item in items)
        if done == steps - 1:
            return [assistant_message("done")]
        return [function_call("look", {"what": "price"}, call_id=call_id(done))]

    async def look(_context: Any, _arguments: str) -> str:
        return "price: 4.20"

    schema = {
        "type": "object",
        "properties": {"what": {"type": "string"}},
        "required": ["what"],
        "additionalProperties": False,
    }
    tool = FunctionTool(
        name="look", description="Look.", params_json_schema=schema, on_invoke_tool=look
    )

    def agent(settings: dict[str, Any]) -> Any:
        model = ScriptedModel([ModelStep.respond(respond) for _ in range(steps)])
        made = Agent(name="clerk", model=model, tools=[tool])
        config = RunConfig(tracing_disabled=True)
        return asyncio.run(
            Runner.run(made, "Look.", run_config=config, max_turns=steps + 1, **settings)
        )

    def durable() -> Case:
        ours = dshd_session(None, socket=socket)
        return Case(ours["session"].recorder, lambda: agent(dict(ours)))

    # without us the framework's own session keeps the history, in memory
    return lambda: agent({"session": SQLiteSession("s")}), durable


FRAMEWORKS = {
    "langgraph": langgraph,
    "pydantic_ai": pydantic_ai,
    "openai_agents": openai_agents,
}


def by_hand(recorder: Any, steps: int) -> None:
    """Take the same checkpoints with the same events, without a framework around."""
    header = {"config": {"provider": "fake", "model": "fake"}}
    said = {"id": str(uuid4()), "role": "user", "source": {"kind": "user"}}
    prompts = [{**said, "content": [{"type": "text", "text": "Look."}]}]
    for number in range(steps):
        recorder.request(header, prompts)
        block = {"type": "text", "text": "done"}
        prompts, called = [], call_id(number)
        if number < steps - 1:
            block = {"type": "tool-call", "id": called, "name": "look", "arguments": "{}"}
        recorder.answer({"id": str(uuid4()), "role": "assistant", "content": [block]})
        if number < steps - 1:
            recorder.start_tool(called)
            recorder.finish_tool(called, {"content": [{"type": "text", "text": "price: 4.20"}]})
    recorder.end_run()


def main() -> None:
    from dsh_client.adapters.recorder import Recorder

    framework, socket, runs, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    plain, durable = FRAMEWORKS[framework](socket, steps)
    clock = Clock()
    for number in range(runs + 2):
        if number == 2:
            clock = Clock()
        clock.run("without", steps, plain)
        bare = Recorder(None, "cost", {"socket": socket})
        for name, case in (
            ("by hand", Case(bare, lambda bare=bare: by_hand(bare, steps))),
            ("with", durable()),
        ):
            case.recorder.begin_run()
            clock.run(name, steps, case.run)
            case.recorder.close()
    print(json.dumps(clock.taken))


if __name__ == "__main__":
    main()
