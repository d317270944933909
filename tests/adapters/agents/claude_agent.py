# ruff: noqa: T201  the output is what the test reads
"""The test agent on the Claude Agent SDK: the real bundled binary against a Messages API on loopback."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import fake_messages
from bench import PROMPT, TOOLS, Bench, Said
from claude_agent_sdk import (
    AgentDefinition,
    ClaudeAgentOptions,
    ResultMessage,
    create_sdk_mcp_server,
    query,
    tool,
)

from dsh_client.adapters import keys
from dsh_client.adapters.claude import watched, with_dshd

bench = Bench()
recorders: list[Any] = []
QUESTION = "What does it cost?"


def said(messages: list[Any]) -> list[Said]:
    found: list[Said] = []
    for message in messages:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if block["type"] == "tool_result":
                told = block["content"]
                text = told if isinstance(told, str) else " ".join(b.get("text", "") for b in told)
                found.append(Said("tool", text, block["tool_use_id"]))
            elif block["type"] == "text":
                found.append(Said(message["role"], block["text"]))
    return found


def answer(body: dict[str, Any]) -> list[dict[str, Any]]:
    if not any(t["name"].startswith("mcp__bench__") for t in body.get("tools", [])):
        return [{"type": "text", "text": "a title"}]
    history = said(body["messages"])
    if "delegate" in bench.options:
        return team(history)
    cut_off = [
        one
        for one in history
        if one.text.startswith("About the call") or "About the call" in one.text
    ]
    if cut_off:
        bench.note("requests", [vars(one) for one in history])
        return [{"type": "text", "text": "all done"}]
    found = bench.model(history)
    if isinstance(found, str):
        return [{"type": "text", "text": found}]
    return [
        {
            "type": "tool_use",
            "id": f"{a.id}-{os.getpid()}",
            "name": f"mcp__bench__{a.name}",
            "input": {"what": bench.what(a.name)},
        }
        for a in found
    ]


def team(history: list[Said]) -> list[dict[str, Any]]:
    """What the clerk's model and the expert's say: the clerk asks the expert, who looks a price up."""
    bench.note("requests", [vars(one) for one in history])
    answered = any(one.role == "tool" for one in history)
    if any(QUESTION in one.text for one in history if one.role == "user"):
        look = {"id": "inner-look", "name": "mcp__bench__look", "input": {"what": "price"}}
        return [{"type": "text", "text": "4.20"} if answered else {"type": "tool_use", **look}]
    if answered:
        return [{"type": "text", "text": "all done"}]
    asked: dict[str, Any] = {"description": "price", "prompt": QUESTION}
    asked |= {"subagent_type": "expert", "run_in_background": False}
    return [{"type": "tool_use", "id": "call-expert", "name": "Agent", "input": asked}]


def made(name: str) -> Any:
    @tool(name, f"{name} it", {"what": str})
    async def run(arguments: Any) -> Any:
        key = recorders[0].key_for(f"mcp__bench__{name}", arguments)
        with keys.running(key):
            text = await asyncio.to_thread(bench.body, name)
        return {"content": [{"type": "text", "text": text}]}

    return run


async def main() -> None:
    url = fake_messages.serve(answer)
    server = create_sdk_mcp_server("bench", "1", [made(name) for name in TOOLS])
    home = bench.folder / "home"
    home.mkdir(exist_ok=True)
    options = ClaudeAgentOptions(
        mcp_servers={"bench": server},
        allowed_tools=[f"mcp__bench__{name}" for name in TOOLS],
        tools=["Agent"] if "delegate" in bench.options else [],
        agents={
            "expert": AgentDefinition("Knows prices.", "Know prices.", tools=["mcp__bench__look"])
        },
        include_partial_messages=bench.options.get("mode") == "stream",
        model="claude-sonnet-4-5",
        setting_sources=[],
        cwd=str(bench.folder),
        env={
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-ant-not-a-key",
            "CLAUDE_CONFIG_DIR": str(home),
            "DISABLE_TELEMETRY": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
            "HOME": str(home),
        },
    )
    gated = with_dshd(options, bench.session, **bench.settings)
    hooks = gated.hooks["PreToolUse"][0].hooks[0].__self__
    recorders.append(hooks.recorder)
    bench.arm(hooks.recorder)
    found = None
    messages = query(prompt=PROMPT, options=gated)
    if bench.options.get("mode") == "stream":
        messages = watched(messages, gated)
    async for message in messages:
        if isinstance(message, ResultMessage):
            found = message
    print(found.result if found else None)
    if hooks.failure is not None:
        raise hooks.failure
    hooks.recorder.close()


if __name__ == "__main__":
    asyncio.run(main())
