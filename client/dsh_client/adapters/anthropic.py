"""Raw loops on the anthropic SDK: `dshd = DshdLoop("my-session")`, then `dshd.client(Anthropic())`.

The client's middleware is the gate of the model: it takes the checkpoint, sends, and records the answer. Tools are
gated by `dshd.tool(block)` in a loop of one's own, by `dshd.tools([…])` for the SDK's tool runner. The one rule: the
runner swallows what a tool raises, but the next request of the same client meets the latch.
"""

from __future__ import annotations

import inspect
import json
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from dsh_client.adapters import anthropic_messages as translate
from dsh_client.adapters.effects import Effect, declared
from dsh_client.adapters.keys import in_body_of, running
from dsh_client.adapters.recorder import Recorder
from dsh_client.adapters.seam import aside, load

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Generator,
        Iterator,
        Sequence,
    )

    from dsh_client.adapters.held import Settings
    from dsh_client.shapes import Json

_anthropic: Any = load("anthropic", "anthropic")

_PATHS = ("/v1/messages", "/v1/messages?beta=true")
_OK = 200


class DshdLoop:
    """A session for an agent whose loop is its own, or the SDK's tool runner.

    Attributes:
        recorder: The session; `recorder.flush()` opens the latch after a failure, `recorder.close()` gives it up.
    """

    def __init__(self, session: str | None = None, **settings: Unpack[Settings]) -> None:
        """Name the session; see `Settings` for the rest."""
        self.recorder = Recorder(session, "anthropic", settings)

    def client(self, client: Any) -> Any:
        """Return a client (sync or async) whose requests for messages are checkpointed and recorded."""
        return client.with_middleware(_Gate(self.recorder))

    def messages(self, prompt: Any = None) -> list[Any]:
        """Return `messages=` for the next request: the history, the answers to cut-off calls, and what is said now.

        What the turn that was cut off had begun with is not said twice.
        """
        history = translate.from_log(self.recorder.begin_run())
        if prompt is None or not self.recorder.unsaid([translate.to_prompt(prompt)]):
            return history
        return translate.joined([*history, {"role": "user", "content": prompt}])

    async def amessages(self, prompt: Any = None) -> list[Any]:
        """Return the same, without blocking the event loop."""
        return await aside(self.messages, prompt)

    # -- tools --------------------------------------------------------------------------------------------------------

    @contextmanager
    def tool(self, block: Any, effect: Effect | None = None) -> Generator[RunningTool, None, None]:
        """Gate the body for a `tool_use` block: entered when its start is durable; call `result` inside."""
        key = self.recorder.start_tool(block.id, self.recorder.effect_of(block.name, effect))
        found = RunningTool(block.id, key)
        try:
            with running(key, self.recorder.session_id):
                yield found
        except BaseException as failure:
            self.recorder.fail_tool(block.id, failure)
            raise
        self.recorder.finish_tool(block.id, found.told)

    @asynccontextmanager
    async def atool(
        self, block: Any, effect: Effect | None = None
    ) -> AsyncGenerator[RunningTool, None]:
        """Gate a body the same way, without blocking the event loop."""
        try:
            key = await aside(
                self.recorder.start_tool, block.id, self.recorder.effect_of(block.name, effect)
            )
            found = RunningTool(block.id, key)
            with running(key, self.recorder.session_id):
                yield found
        except BaseException as failure:
            self.recorder.fail_tool(block.id, failure)
            raise
        await self.recorder.soon(self.recorder.finish_tool, block.id, found.told)

    def tools(self, tools: Sequence[Any]) -> list[Any]:
        """Return tools for the SDK's runner (`beta_tool`, `beta_async_tool`) whose bodies are gated.

        The runner does not tell a body which call it runs for: it is the first one not yet begun with that name and
        those arguments.
        """
        for tool in tools:
            _gate(tool, self)
        return list(tools)


class RunningTool:
    """A call whose body runs.

    Attributes:
        idempotency_key: The same after a crash.
        told: The result, as it will be recorded.
    """

    def __init__(self, call_id: str, key: str | None) -> None:
        """Wrap a call that was started."""
        self._call_id = call_id
        self.idempotency_key = key
        self.told: Json = {"content": []}

    def result(self, content: Any, *, is_error: bool = False) -> Json:
        """Say what the body gave; return the `tool_result` block for the next request."""
        self.told = {"content": translate.blocks(content), "isError": is_error}
        block: Json = {"type": "tool_result", "tool_use_id": self._call_id, "content": content}
        return {**block, "is_error": True} if is_error else block


class _Gate(_anthropic.Middleware):  # type: ignore[misc]  # untyped where anthropic is not installed
    """One for each client; inside the SDK's retries, so that an attempt after a failed checkpoint fails too."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known = translate.Known()

    def handle(self, request: Any, call_next: Any) -> Any:
        if not self._is_ours(request):
            return call_next(request)
        self._request(request)
        response = call_next(request)
        if response.status_code == _OK:
            if request.stream:
                _tee(response.http_response, self._recorder, self._stored)
            else:
                self._stored(json.loads(response.http_response.read()))
        return response

    async def handle_async(self, request: Any, call_next: Any) -> Any:
        if not self._is_ours(request):
            return await call_next(request)
        await aside(self._request, request)
        response = await call_next(request)
        if response.status_code == _OK:
            if request.stream:
                _tee_async(response.http_response, self._recorder, self._stored)
            else:
                await aside(self._stored, json.loads(await response.http_response.aread()))
        return response

    def _is_ours(self, request: Any) -> bool:
        """Whether it is a step of the agent's; what a tool's body asks is its own business, under the latch."""
        if in_body_of(self._recorder.session_id):
            self._recorder.check(None)
            return False
        return bool(request.method.lower() == "post" and request.url in _PATHS)

    def _request(self, request: Any) -> None:
        body: Json = request.json
        messages = [translate.plain(message) for message in body["messages"]]
        self._known.add_history(self._recorder)
        results = translate.results_of(messages)
        fresh: list[Json] = []
        for message in messages:
            if message["role"] == "assistant":
                if not self._known.has(message):
                    self._recorder.adopt(translate.to_answer(message), fresh, results)
                    fresh = []
                    self._known.add(message)
            else:
                fresh += [translate.to_prompt(one) for one in self._known.unsaid(message)]
        self._recorder.request(_header(body), fresh, results)
        self._known.said(messages)

    def _stored(self, message: Json) -> None:
        self._known.add(message)
        self._recorder.answer(translate.to_answer(message), translate.to_usage(message))
        if not any(block.get("type") == "tool_use" for block in message["content"]):
            self._recorder.end_run()


def _header(body: Json) -> Json:
    config: Json = {
        "provider": "anthropic",
        "model": body["model"],
        "maxTokens": body.get("max_tokens"),
    }
    if body.get("temperature") is not None:
        config["temperature"] = body["temperature"]
    header: Json = {"config": config}
    if body.get("system"):
        header["system"] = translate.text_or_json(body["system"])
    tools = [
        {
            "name": tool.get("name", tool.get("type")),
            "description": tool.get("description", ""),
            "parameters": tool.get("input_schema", {}),
        }
        for tool in map(translate.plain, body.get("tools") or [])
    ]
    return {**header, "tools": tools} if tools else header


def _gate(tool: Any, loop: DshdLoop) -> None:
    """Put the gate into a tool of the runner; the tool itself stays what the SDK takes."""
    inner, recorder = tool.call, loop.recorder
    effect = declared(tool.func)

    def call(given: Any) -> Any:
        with loop.tool(_call_for(recorder, tool.name, given), effect) as body:
            found = inner(given)
            body.result(found)
        return found

    async def acall(given: Any) -> Any:
        async with loop.atool(_call_for(recorder, tool.name, given), effect) as body:
            found = await inner(given)
            body.result(found)
        return found

    tool.call = acall if inspect.iscoroutinefunction(tool.func) else call


class _Call:
    def __init__(self, call_id: str, name: str) -> None:
        self.id, self.name = call_id, name


def _call_for(recorder: Recorder, name: str, given: Any) -> _Call:
    return _Call(recorder.claim(name, given), name)


def _tee(response: Any, recorder: Recorder, stored: Callable[[Json], None]) -> None:
    """Let a stream pass, and store the message before the caller sees the end of it."""
    inner, pieces = response.iter_bytes, translate.Pieces()

    def iter_bytes(*args: Any) -> Iterator[bytes]:
        for chunk in inner(*args):
            message = pieces.feed(chunk)
            while pieces.fresh:
                recorder.chunk(pieces.fresh.pop(0))
            if message is not None:
                stored(message)
            yield chunk

    response.iter_bytes = iter_bytes


def _tee_async(response: Any, recorder: Recorder, stored: Callable[[Json], None]) -> None:
    inner, pieces = response.aiter_bytes, translate.Pieces()

    async def aiter_bytes(*args: Any) -> AsyncIterator[bytes]:
        async for chunk in inner(*args):
            message = pieces.feed(chunk)
            while pieces.fresh:
                await recorder.achunk(pieces.fresh.pop(0))
            if message is not None:
                await aside(stored, message)
            yield chunk

    response.aiter_bytes = aiter_bytes
