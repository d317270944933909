# ruff: noqa: T201  the output is what the test reads
"""The test agent on the anthropic SDK, its HTTP library's fake transport as the API: own loop, or tool runner."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import httpx2
from anthropic import Anthropic, AsyncAnthropic, beta_async_tool
from bench import PROMPT, TOOLS, Bench, Said

from dsh_client.adapters.anthropic import DshdLoop

bench = Bench()
SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}


def said(messages: list[Any]) -> list[Said]:
    found: list[Said] = []
    asked: set[str] = set()
    for position, message in enumerate(messages):
        assert message["role"] == ("assistant" if position % 2 else "user"), (
            "the roles do not take turns"
        )
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        told = {b["tool_use_id"] for b in blocks if b["type"] == "tool_result"}
        assert told == asked, (told, asked)
        asked = {b["id"] for b in blocks if b["type"] == "tool_use"}
        for block in blocks:
            if block["type"] == "tool_result":
                content = block["content"]
                text = content if isinstance(content, str) else " ".join(b["text"] for b in content)
                found.append(Said("tool", text, block["tool_use_id"]))
            elif block["type"] == "text":
                found.append(Said(message["role"], block["text"]))
    assert not asked
    return found


def respond(request: httpx2.Request) -> httpx2.Response:
    body = json.loads(request.content)
    answer = bench.model(said(body["messages"]))
    if isinstance(answer, str):
        content = [{"type": "text", "text": answer}]
    else:
        content = [
            {"type": "tool_use", "id": a.id, "name": a.name, "input": {"what": bench.what(a.name)}}
            for a in answer
        ]
    message = {
        "id": f"msg_{len(bench.lines('requests'))}_{threading.get_native_id()}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": "end_turn" if isinstance(answer, str) else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    if not body.get("stream"):
        return httpx2.Response(200, json=message)
    return httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, content=streamed(message)
    )


def streamed(message: dict[str, Any]) -> bytes:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": []}}
    ]
    for index, block in enumerate(message["content"]):
        at = {"index": index}
        if block["type"] == "text":
            first, delta = (
                {"type": "text", "text": ""},
                {"type": "text_delta", "text": block["text"]},
            )
        else:
            first = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [{"type": "content_block_start", **at, "content_block": first}]
        events += [
            {"type": "content_block_delta", **at, "delta": delta},
            {"type": "content_block_stop", **at},
        ]
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()


def loop(dshd: DshdLoop, *, stream: bool) -> str:
    transport = httpx2.MockTransport(respond)
    client = dshd.client(Anthropic(api_key="-", http_client=httpx2.Client(transport=transport)))
    tools = [{"name": name, "description": f"{name} it", "input_schema": SCHEMA} for name in TOOLS]
    messages = dshd.messages(PROMPT)
    while True:
        asked = {
            "model": "fake",
            "max_tokens": 100,
            "system": "Be brief.",
            "tools": tools,
            "messages": messages,
        }
        if stream:
            with client.messages.stream(**asked) as events:
                response = events.get_final_message()
        else:
            response = client.messages.create(**asked)
        calls = [block for block in response.content if block.type == "tool_use"]
        if not calls:
            return str(response.content[0].text)
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(lambda block: run(dshd, block), calls))
        messages = [
            *messages,
            {"role": "assistant", "content": response.content},
            {"role": "user", "content": results},
        ]


def run(dshd: DshdLoop, block: Any) -> Any:
    with dshd.tool(block) as tool:
        return tool.result(bench.body(block.name))


async def runner(dshd: DshdLoop) -> str:
    transport = httpx2.MockTransport(respond)
    client = dshd.client(
        AsyncAnthropic(api_key="-", http_client=httpx2.AsyncClient(transport=transport))
    )
    running = client.beta.messages.tool_runner(
        model="fake",
        max_tokens=100,
        thread=False,
        tools=dshd.tools([tool(name) for name in TOOLS]),
        messages=await dshd.amessages(PROMPT),
    )
    message = await running.until_done()
    return str(message.content[0].text)


def tool(name: str) -> Any:
    async def body(what: str) -> str:
        return await asyncio.to_thread(bench.body, name)

    return beta_async_tool(body, name=name, description=f"{name} it", input_schema=SCHEMA)


def main() -> None:
    dshd = DshdLoop(bench.session, **bench.settings)
    bench.arm(dshd.recorder)
    mode = bench.options.get("mode", "loop")
    if mode == "runner":
        bench.options["sequential"] = "yes"  # the runner takes one tool after the other
    print(asyncio.run(runner(dshd)) if mode == "runner" else loop(dshd, stream=mode == "stream"))
    dshd.recorder.close()


if __name__ == "__main__":
    main()
