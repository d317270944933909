# ruff: noqa: T201  the output is what the test reads
"""The test agent on the openai SDK's tool runner, its HTTP library's fake transport as the API."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import httpx2
from bench import PROMPT, TOOLS, Bench, Said
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_tool_runner import (
    AsyncRegisteredFunction,
    AsyncResponsesToolRunner,
    RegisteredFunction,
    ResponsesToolRunner,
    ToolRunnerError,
)

from dsh_client.adapters import keys
from dsh_client.adapters.openai import DshdRunner

bench = Bench()
MODE = bench.options.get("mode", "sync")
SCHEMA = {
    "type": "object",
    "properties": {"what": {"type": "string"}},
    "required": ["what"],
    "additionalProperties": False,
}


def said(items: Any) -> list[Said]:
    found: list[Said] = []
    asked: set[str] = set()
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            asked.add(item["call_id"])
        elif kind == "function_call_output":
            assert item["call_id"] in asked, "an output without its call"
            asked.discard(item["call_id"])
            found.append(Said("tool", item["output"], item["call_id"]))
        else:
            found.append(Said(item["role"], str(item["content"])))
    assert not asked, f"calls without an output: {asked}"
    return found


def respond(request: httpx2.Request) -> httpx2.Response:
    body = json.loads(request.content)
    answer = bench.model(said(body["input"]))
    number = len(bench.lines("requests"))
    if isinstance(answer, str):
        text = {"type": "output_text", "text": answer, "annotations": []}
        output: list[Any] = [
            {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        ]
    else:
        output = [
            {
                "type": "function_call",
                "id": f"fc_{number}_{a.id}",
                "call_id": a.id,
                "name": a.name,
                "arguments": json.dumps({"what": bench.what(a.name)}),
                "status": "completed",
            }
            for a in answer
        ]
    found = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": body["model"],
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools", []),
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
    }
    if not body.get("stream"):
        return httpx2.Response(200, json=found)
    return httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, content=streamed(found)
    )


def streamed(found: dict[str, Any]) -> bytes:
    """A response as the API streams it: text in two pieces, arguments in two."""
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**found, "status": "in_progress", "output": []}}
    ]
    for index, item in enumerate(found["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            empty: dict[str, Any] = {**item, "status": "in_progress", "content": []}
            part, kind = item["content"][0], "response.output_text.delta"
            words, place = part["text"], {**at, "content_index": 0, "logprobs": []}
            begun = {**at, "content_index": 0, "part": {**part, "text": ""}}
            opening = [{"type": "response.content_part.added", **begun}]
            closing = [{"type": "response.content_part.done", **begun, "part": part}]
        else:
            empty = {**item, "status": "in_progress", "arguments": ""}
            words, place = item["arguments"], dict(at)
            kind, opening, closing = "response.function_call_arguments.delta", [], []
        events += [{"type": "response.output_item.added", "output_index": index, "item": empty}]
        events += [*opening, *({"type": kind, **place, "delta": w} for w in (words[:4], words[4:]))]
        events += [
            *closing,
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]
    events += [{"type": "response.completed", "response": found}]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in numbered).encode()


def declared(name: str) -> Any:
    return {
        "type": "function",
        "name": name,
        "description": f"{name} it",
        "parameters": SCHEMA,
        "strict": True,
    }


def loop(dshd: DshdRunner) -> str:
    functions = [
        RegisteredFunction(declared(name), lambda _given, name=name: bench.body(name))
        for name in TOOLS
    ]
    runner = ResponsesToolRunner(functions=dshd.functions(functions))
    client = OpenAI(api_key="-", http_client=httpx2.Client(transport=httpx2.MockTransport(respond)))
    params = {"model": "fake", "input": dshd.input(PROMPT), "store": False}
    streaming = {"stream": True, "on_event": dshd.on_event} if "stream" in MODE else {}
    response = runner.run(client, params, max_steps=9, ledger=dshd.ledger(), **streaming)
    return str(response.output_text)


async def aloop(dshd: DshdRunner) -> str:
    def body(name: str) -> Any:
        async def run(given: Any) -> str:
            with keys.running(dshd.recorder.key_for(name, given)):
                return await asyncio.to_thread(bench.body, name)

        return run

    functions = [AsyncRegisteredFunction(declared(name), body(name)) for name in TOOLS]
    runner = AsyncResponsesToolRunner(functions=functions)
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(respond))
    client = AsyncOpenAI(api_key="-", http_client=http)
    params = {"model": "fake", "input": await dshd.ainput(PROMPT), "store": False}
    streaming = {"stream": True, "on_event": dshd.aon_event} if "stream" in MODE else {}
    response = await runner.run(client, params, max_steps=9, ledger=dshd.aledger(), **streaming)
    return str(response.output_text)


def main() -> None:
    dshd = DshdRunner(bench.session, model="fake", **bench.settings)
    bench.arm(dshd.recorder)
    try:
        print(asyncio.run(aloop(dshd)) if "async" in MODE else loop(dshd))
    except ToolRunnerError as error:
        raise dshd.failure or error from None
    dshd.recorder.close()


if __name__ == "__main__":
    main()
