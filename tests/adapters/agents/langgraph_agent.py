# ruff: noqa: T201  the output is what the test reads
"""The test agent on LangChain's `create_agent`, its own fake chat model and the middleware, sync or async."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bench import PROMPT, TOOLS, Bench, Said
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, SystemMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.prebuilt.chat_agent_executor import _validate_chat_history

from dsh_client.adapters.keys import child_session
from dsh_client.adapters.langchain import Dshd
from dsh_client.adapters.langgraph import DurableGraph

bench = Bench()


class FakeModel(GenericFakeChatModel):
    """The framework's fake, answering by what it receives instead of by a list."""

    def bind_tools(self, tools: Any, **_options: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Any:
        _validate_chat_history([m for m in messages if m.type != "system"])
        answer = bench.model([said(message) for message in messages])
        if isinstance(answer, str):
            message = AIMessage(content=answer)
        else:
            calls = [
                {"id": a.id, "name": a.name, "args": {"what": bench.what(a.name)}} for a in answer
            ]
            message = AIMessage(content="", tool_calls=calls)
        self.messages = iter([message])
        return super()._generate(messages, stop, run_manager, **options)

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Any:
        whole = self._generate(messages, stop, run_manager, **options).generations[0].message
        words = [AIMessageChunk(content=f"{word} ") for word in whole.content.split()]
        for number, call in enumerate(whole.tool_calls):
            told = json.dumps(call["args"])
            first = tool_call_chunk(name=call["name"], id=call["id"], args=told[:5], index=number)
            words += [
                AIMessageChunk(content="", tool_call_chunks=[first]),
                AIMessageChunk(
                    content="", tool_call_chunks=[tool_call_chunk(args=told[5:], index=number)]
                ),
            ]
        for word in words:
            piece = ChatGenerationChunk(message=word)
            if run_manager:
                run_manager.on_llm_new_token(word.content, chunk=piece)
            yield piece


def said(message: Any) -> Said:
    return Said(message.type, message.text, getattr(message, "tool_call_id", None))


def tool(name: str) -> StructuredTool:
    def run(what: str) -> str:
        if name == "look" and "delegate" in bench.options:
            dshd = Dshd(**child_session(), socket=bench.socket)
            model = GenericFakeChatModel(messages=iter([AIMessage("4.20")]))
            expert = create_agent(model, middleware=[dshd])
            expert.invoke({"messages": [{"role": "user", "content": "What does it cost?"}]})
            dshd.recorder.close()
        return bench.body(name)

    async def arun(what: str) -> str:
        return await asyncio.to_thread(bench.body, name)

    return StructuredTool.from_function(run, arun, name=name, description=f"{name} it")


def graph() -> None:
    durable = DurableGraph(bench.session, **bench.settings)
    bench.arm(durable.recorder)
    model = FakeModel(messages=iter([]))
    builder = StateGraph(MessagesState)
    builder.add_node(
        "model",
        lambda state: {
            "messages": [model.invoke([SystemMessage("Be brief."), *state["messages"]])]
        },
    )
    builder.add_node("tools", ToolNode([tool(name) for name in TOOLS], handle_tool_errors=True))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    if bench.options["mode"] == "nested":
        outer = StateGraph(MessagesState)
        outer.add_node("clerk", builder.compile())
        outer.add_edge(START, "clerk")
        builder = outer
    state = durable.compile(builder).invoke({"messages": durable.messages(PROMPT)})
    _validate_chat_history(state["messages"])
    print(state["messages"][-1].content)
    durable.recorder.close()


def main() -> None:
    if bench.options.get("mode") in {"graph", "nested"}:
        graph()
        return
    dshd = Dshd(bench.session, **bench.settings)
    bench.arm(dshd.recorder)
    model = FakeModel(messages=iter([]))
    others = []
    if bench.options.get("chain") == "retries":
        others = [
            ModelRetryMiddleware(max_retries=2, initial_delay=0),
            ModelFallbackMiddleware(FakeModel(messages=iter([]))),
            ToolRetryMiddleware(max_retries=2, initial_delay=0),
        ]
    agent = create_agent(
        model, [tool(name) for name in TOOLS], middleware=[dshd, *others], system_prompt="Be brief."
    )
    asked = {"messages": [{"role": "user", "content": PROMPT}]}
    mode = bench.options.get("mode", "sync")
    if mode == "sync":
        state = agent.invoke(asked)
    elif mode == "async":
        state = asyncio.run(agent.ainvoke(asked))
    else:
        told = list(agent.stream(asked, stream_mode=["values", "messages"]))
        state = [value for kind, value in told if kind == "values"][-1]
    _validate_chat_history(state["messages"])
    print(state["messages"][-1].content)
    dshd.recorder.close()


if __name__ == "__main__":
    main()
