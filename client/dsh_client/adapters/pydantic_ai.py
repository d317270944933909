"""pydantic-ai: `Agent(model, capabilities=[Dshd("my-session")])`.

The capability stands outermost, so that retries and fallbacks are inside of it: one logical checkpoint a step. The one
rule: it never raises what pydantic-ai takes for control flow, so that what it raises ends the run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

from dsh_client.adapters import pydantic_ai_messages as translate
from dsh_client.adapters.effects import declared
from dsh_client.adapters.keys import running
from dsh_client.adapters.recorder import Recorder
from dsh_client.adapters.seam import aside, load

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Sequence

    from dsh_client.adapters.held import Settings
    from dsh_client.shapes import Json

_capabilities: Any = load("pydantic_ai.capabilities", "pydantic-ai-slim")
_exceptions: Any = load("pydantic_ai.exceptions", "pydantic-ai-slim")


class Dshd(_capabilities.AbstractCapability):  # type: ignore[misc]  # untyped where pydantic-ai is not installed
    """Keeps an agent's session with the daemon.

    A run begins with the session's history, the answers to cut-off calls included. A caller that says again what the
    turn that was cut off began with goes on with it. One agent's runs follow each other; runs side by side need a
    session each.

    Attributes:
        recorder: The session; `recorder.flush()` opens the latch after a failure, `recorder.close()` gives it up.
    """

    def __init__(self, session: str | None = None, **settings: Unpack[Settings]) -> None:
        """Name the session; see `Settings` for the rest."""
        self.recorder = Recorder(session, "pydantic-ai", settings)
        self._known: set[tuple[Any, ...]] = set()

    @classmethod
    def get_serialization_name(cls) -> None:
        """Say that a session is not part of an agent's specification."""

    def get_ordering(self) -> Any:
        """Stand outermost."""
        return _capabilities.CapabilityOrdering(position="outermost")

    def history(self) -> list[Any]:
        """Return the session's history as pydantic-ai's messages, valid for a provider."""
        return self._noted(translate.from_log(self.recorder.begin_run()))

    # -- the run ------------------------------------------------------------------------------------------------------

    async def wrap_run(self, ctx: Any, *, handler: Callable[[], Awaitable[Any]]) -> Any:
        """Begin with the session's history; end the turn."""
        stored = await aside(self.history)
        brought = list(ctx.messages)
        ctx.messages[:] = [*stored, *(m for m in brought if not self._is_known(m))]
        try:
            result = await handler()
        except BaseException as failure:
            self.recorder.fail_run(failure)
            raise
        await aside(self.recorder.end_run, translate.results_of(result.all_messages()))
        return result

    async def before_node_run(self, ctx: Any, *, node: Any) -> Any:
        """Say nothing twice, and issue calls again where that is wanted."""
        if type(node).__name__ != "UserPromptNode":
            return node
        prompts = [translate.said(node.user_prompt)] if node.user_prompt is not None else []
        fresh = self.recorder.unsaid(prompts)
        if not fresh:
            again = await aside(self.recorder.reissue)
            if again is not None:
                ctx.messages.extend(self._noted(translate.from_log([again])))
        return node if fresh else replace(node, user_prompt=None)

    # -- the model ----------------------------------------------------------------------------------------------------

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        """Wait until everything that the model is about to see is durable."""
        await self.recorder.hurry(self._asking, request_context)
        return request_context

    async def wrap_model_request(
        self,
        ctx: Any,
        *,
        request_context: Any,
        handler: Callable[[Any], Awaitable[Any]],
    ) -> Any:
        """Record what the model answered at last."""
        response = await handler(request_context)
        await self.recorder.soon(self._answer, response)
        return response

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """Say no: the wrapper below looks on where a caller streams, and must not make `run` ask for a stream."""
        return False

    async def wrap_run_event_stream(self, ctx: Any, *, stream: AsyncIterable[Any]) -> Any:
        """Record the pieces of a streamed answer."""
        chunks = translate.Chunks()
        async for event in stream:
            chunk = chunks.of(event)
            if chunk is not None:
                await self.recorder.achunk(chunk)
            yield event

    # -- tools --------------------------------------------------------------------------------------------------------

    async def wrap_tool_execute(
        self,
        ctx: Any,
        *,
        call: Any,
        tool_def: Any,
        args: Any,
        handler: Callable[[Any], Awaitable[Any]],
    ) -> Any:
        """Run a body when its start is durable."""
        call_id = call.tool_call_id
        effect = self.recorder.effect_of(call.tool_name, declared(tool_def.metadata))
        try:
            key = await self.recorder.hurry(self.recorder.starting, call_id, effect, locked=False)
            with running(key, self.recorder.session_id):
                result = await handler(args)
        except (_exceptions.ToolRetryError, _exceptions.ToolFailedError) as told:
            part = getattr(told, "tool_retry", None) or told.tool_failed
            result_of_it = translate.to_result(part.content, is_error=True)
            await self.recorder.soon(self.recorder.finish_tool, call_id, result_of_it)  # noqa: ASYNC120  # a cancel is the stronger end
            raise
        except (_exceptions.CallDeferred, _exceptions.ApprovalRequired):
            self.recorder.pause_tool(call_id)
            raise
        except BaseException as failure:
            self.recorder.fail_tool(call_id, failure)
            raise
        await self.recorder.soon(self.recorder.finish_tool, call_id, translate.to_result(result))
        return result

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _asking(self, request_context: Any) -> None:
        """Record what the log does not have and pass the request's checkpoint; shared code."""
        messages: list[Any] = list(request_context.messages)
        fresh: list[Json] = []
        results = partial(translate.results_of, messages)
        for message in messages:
            if translate.is_answer(message):
                if not self._is_known(message):
                    await self.recorder.adopting(translate.to_answer(message), fresh, results)
                    self._noted([message])
                    fresh = []
                continue
            parts = [
                p for p in translate.prompt_parts(message) if translate.key_of(p) not in self._known
            ]
            fresh += [translate.to_prompt(part) for part in parts]
            self._noted([message])
        await self.recorder.asking(_header(request_context), fresh, results)

    def _answer(self, response: Any) -> None:
        self._noted([response])
        self.recorder.answer(translate.to_answer(response), translate.to_usage(response))

    def _is_known(self, message: Any) -> bool:
        if translate.is_answer(message):
            return translate.key_of(message) in self._known
        return all(translate.key_of(part) in self._known for part in message.parts)

    def _noted(self, messages: Sequence[Any]) -> list[Any]:
        for message in messages:
            parts = [message] if translate.is_answer(message) else message.parts
            self._known.update(translate.key_of(part) for part in parts)
        return list(messages)


def _header(request_context: Any) -> Json:
    model, parameters = request_context.model, request_context.model_request_parameters
    settings = cast("dict[str, Any]", request_context.model_settings or {})
    config: Json = {"provider": model.system, "model": model.model_name}
    if settings.get("temperature") is not None:
        config["temperature"] = settings["temperature"]
    if settings.get("max_tokens") is not None:
        config["maxTokens"] = settings["max_tokens"]
    header: Json = {"config": config}
    system = "\n\n".join(part.content for part in parameters.instruction_parts or ())
    if system:
        header["system"] = system
    tools = [
        {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": tool.parameters_json_schema,
        }
        for tool in (*parameters.function_tools, *parameters.output_tools)
    ]
    return {**header, "tools": tools} if tools else header
