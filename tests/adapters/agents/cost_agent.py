# ruff: noqa: T201, PLC0415, C901  the output is what the test reads; a framework is imported where it is installed
"""What an adapter adds to its framework's own loop: steps with and without it, in turns, in one process.

`cost_agent.py FRAMEWORK SOCKET RUNS STEPS` prints JSON, by way: `without`, `with`, `empty` with hooks in the adapter's
places that do nothing, and `by hand`, the same checkpoints without a framework. A step is a request to a fake model
that answers at once, and the one tool that it asks for; `steps` has the milliseconds from each request to the next one,
`runs` those of each run, its beginning and end included, divided by its steps.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Callable


class Case(NamedTuple):
    """A run with the adapter, whose session is opened before the time is taken."""

    recorder: Any
    run: Callable[[], Any]


class Ways(NamedTuple):
    """A framework's loop in three ways: as it is, with empty hooks, and with the adapter."""

    plain: Callable[[], Any]
    empty: Callable[[], Any]
    durable: Callable[[], Case]


class Clock:
    """Takes the time of one run after the other, and of their steps."""

    requests: ClassVar[list[float]] = []

    def __init__(self) -> None:
        ways = ("without", "empty", "by hand", "with")
        self.steps: dict[str, list[float]] = {way: [] for way in ways}
        self.runs: dict[str, list[float]] = {way: [] for way in ways}

    def run(self, way: str, steps: int, agent: Callable[[], Any]) -> None:
        gc.collect()
        self.requests.clear()
        began = time.perf_counter()
        agent()
        self.runs[way].append((time.perf_counter() - began) * 1000 / steps)
        self.steps[way] += [(end - start) * 1000 for start, end in pairwise(self.requests)]


def call_id(number: int) -> str:
    """Make the id of the call that a model asks for, when it does."""
    Clock.requests.append(time.perf_counter())
    return f"call-{number}-{uuid4()}"


def langgraph(socket: str, steps: int) -> Ways:
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware
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

    class Empty(AgentMiddleware):
        def before_agent(self, state: Any, runtime: Any) -> None:
            pass

        def after_agent(self, state: Any, runtime: Any) -> None:
            pass

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

    asked = {"messages": [{"role": "user", "content": "Look."}]}

    def agent(middleware: list[Any]) -> Any:
        made = create_agent(Model(messages=iter([])), [look], middleware=middleware)
        return made.invoke(asked, {"recursion_limit": 10 * steps})

    def durable() -> Case:
        dshd = Dshd(None, socket=socket)
        return Case(dshd.recorder, lambda: agent([dshd]))

    return Ways(lambda: agent([]), lambda: agent([Empty()]), durable)


def pydantic_ai(socket: str, steps: int) -> Ways:
    from pydantic_ai import Agent
    from pydantic_ai.capabilities import AbstractCapability
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

    class Empty(AbstractCapability):
        async def wrap_run(self, _ctx: Any, *, handler: Any) -> Any:
            return await handler()

        async def before_node_run(self, _ctx: Any, *, node: Any) -> Any:
            return node

        async def before_model_request(self, _ctx: Any, request_context: Any) -> Any:
            return request_context

        async def wrap_model_request(self, _ctx: Any, *, request_context: Any, handler: Any) -> Any:
            return await handler(request_context)

        async def wrap_tool_execute(self, _ctx: Any, *, args: Any, handler: Any, **_: Any) -> Any:
            return await handler(args)

    def agent(capabilities: list[Any]) -> Any:
        made = Agent(FunctionModel(model), tools=[look], capabilities=capabilities)
        return asyncio.run(made.run("Look.", usage_limits=None))

    def durable() -> Case:
        dshd = Dshd(None, socket=socket)
        return Case(dshd.recorder, lambda: agent([dshd]))

    return Ways(lambda: agent([]), lambda: agent([Empty()]), durable)


def openai_agents(socket: str, steps: int) -> Ways:
    from agents import Agent, FunctionTool, RunConfig, RunHooks, Runner
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

    class Empty(RunHooks):
        async def on_llm_start(self, *_: Any) -> None:
            pass

        async def on_llm_end(self, *_: Any) -> None:
            pass

        async def on_tool_start(self, *_: Any) -> None:
            pass

        async def on_tool_end(self, *_: Any) -> None:
            pass

    def plain(**settings: Any) -> Any:  # the framework's own session keeps the history, in memory
        return agent({"session": SQLiteSession("s"), **settings})

    return Ways(plain, lambda: plain(hooks=Empty()), durable)


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
    ways = FRAMEWORKS[framework](socket, steps)
    clock = Clock()
    for number in range(runs + 2):
        if number == 2:
            clock = Clock()
        clock.run("without", steps, ways.plain)
        clock.run("empty", steps, ways.empty)
        bare = Recorder(None, "cost", {"socket": socket})
        for name, case in (
            ("by hand", Case(bare, lambda bare=bare: by_hand(bare, steps))),
            ("with", ways.durable()),
        ):
            case.recorder.begin_run()
            clock.run(name, steps, case.run)
            case.recorder.close()
    print(json.dumps({"steps": clock.steps, "runs": clock.runs}))


if __name__ == "__main__":
    main()
