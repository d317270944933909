"""LangChain and LangGraph: `create_agent(model, tools, middleware=[Dshd("my-session")])`.

The middleware wraps the model call and every tool call, so that retries and fallbacks that come after it in the list
are inside of it: one logical checkpoint a step. The one rule: put it first; what it raises must reach the caller.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack
from uuid import uuid4

from dsh_client.adapters import langchain_messages as translate
from dsh_client.adapters.effects import declared
from dsh_client.adapters.keys import running
from dsh_client.adapters.recorder import Recorder
from dsh_client.adapters.seam import as_list, as_mapping, aside, load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence

    from dsh_client.adapters.effects import Effect
    from dsh_client.adapters.held import Settings
    from dsh_client.shapes import Json

_middleware: Any = load("langchain.agents.middleware", "langchain")
_callbacks: Any = load("langchain_core.callbacks", "langchain")
_config: Any = load("langchain_core.runnables.config", "langchain")
_messages: Any = load("langchain_core.messages", "langchain")
_tools: Any = load("langchain_core.utils.function_calling", "langchain")
_errors: Any = load("langgraph.errors", "langgraph")
_graph: Any = load("langgraph.graph.message", "langgraph")


class Dshd(_middleware.AgentMiddleware):  # type: ignore[misc]  # untyped where LangChain is not installed
    """Keeps an agent's session with the daemon. First in `middleware=`.

    At the start of a run the messages in the agent's state are the session's history, the answers to cut-off calls
    included, then what the caller says. A caller that says again what the turn that was cut off began with goes on
    with it.

    Attributes:
        recorder: The session; `recorder.flush()` opens the latch after a failure, `recorder.close()` gives it up.
    """

    def __init__(self, session: str | None = None, **settings: Unpack[Settings]) -> None:
        """Name the session; see `Settings` for the rest."""
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  an untyped base, as above
        self.recorder = Recorder(session, "langchain", settings)
        self._headers: dict[tuple[int, ...], list[Json]] = {}

    def history(self) -> list[Any]:
        """Return the session's history as LangChain's messages, valid for a provider."""
        return translate.from_log(self.recorder.begin_run())

    # -- the run ------------------------------------------------------------------------------------------------------

    @_middleware.hook_config(can_jump_to=["tools"])  # type: ignore[untyped-decorator]  # as above
    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Put the session's history before what the caller says."""
        return self._begin(state["messages"])

    @_middleware.hook_config(can_jump_to=["tools"])  # type: ignore[untyped-decorator]  # as above
    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Put the session's history before what the caller says."""
        return await aside(self._begin, state["messages"])

    def after_agent(self, state: Any, runtime: Any) -> None:
        """End the turn."""
        self.recorder.end_run()

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        """End the turn."""
        await aside(self.recorder.end_run)

    # -- the model ----------------------------------------------------------------------------------------------------

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Call the model when everything that it sees is durable, and record what it answers."""
        self.take_checkpoint(request.messages, self._header(request))
        with _listening(self.recorder):
            response = handler(request)
        self._answer(response)
        return response

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Call the model when everything that it sees is durable, and record what it answers."""
        header = self._header(request)
        await self.recorder.hurry(self._asking, request.messages, header)
        with _listening(self.recorder):
            response = await handler(request)
        await self.recorder.soon(self._answer, response)
        return response

    # -- tools --------------------------------------------------------------------------------------------------------

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a body when its start is durable; a call that the log has answered is answered from the log."""
        call = request.tool_call
        stored = self._recall(call)
        if stored is not None:
            return stored
        key = self.recorder.start_tool(call["id"], self._effect(request))
        try:
            with running(key, self.recorder.session_id):
                result = handler(request)
        except BaseException as failure:
            self._failed(call["id"], failure)
            raise
        self._finish(request, result)
        return result

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a body when its start is durable; a call that the log has answered is answered from the log."""
        call = request.tool_call
        try:
            stored = await self.recorder.soon(self._recall, call)
            if stored is not None:
                return stored
            effect = self._effect(request)
            key = await self.recorder.hurry(
                self.recorder.starting, call["id"], effect, locked=False
            )
            with running(key, self.recorder.session_id):
                result = await handler(request)
        except BaseException as failure:
            self._failed(call["id"], failure)
            raise
        await self.recorder.soon(self._finish, request, result)
        return result

    # -- inside -------------------------------------------------------------------------------------------------------

    def _begin(self, messages: Sequence[Any]) -> dict[str, Any] | None:
        stored = self.recorder.begin_run()
        recorded = {message["id"] for message in stored}
        fresh = [message for message in messages if message.id not in recorded]
        answered = {call_id for call_id in map(_call_answered, stored) if call_id}
        fresh = [m for m in fresh if not (m.type == "tool" and m.tool_call_id in answered)]
        if all(translate.is_prompt(message) for message in fresh):
            prompts = [translate.to_prompt(message) for message in fresh]
            kept = {id(p) for p in self.recorder.unsaid(prompts)}
            fresh = [m for m, prompt in zip(fresh, prompts, strict=True) if id(prompt) in kept]
        again = self._reissued(fresh)
        if not stored and again is None:
            return None
        everything = [*translate.from_log(stored), *fresh, *([again] if again else [])]
        update: dict[str, Any] = {
            "messages": [_messages.RemoveMessage(id=_graph.REMOVE_ALL_MESSAGES), *everything]
        }
        return {**update, "jump_to": "tools"} if again else update

    def _reissued(self, fresh: Sequence[Any]) -> Any:
        """Record that the calls which may be repeated are issued again; return the message that issues them."""
        prompts = [translate.to_prompt(m) for m in fresh if translate.is_prompt(m)]
        message = self.recorder.reissue(prompts)
        return translate.from_log([message])[0] if message else None

    def take_checkpoint(self, messages: Sequence[Any], header: Json) -> None:
        """Wait until what the model is about to see is durable: messages that the log does not have, and the header."""
        self.recorder.blocking(self._asking, messages, header)

    async def _asking(self, messages: Sequence[Any], header: Json) -> None:
        """Do what `take_checkpoint` does; shared code."""
        fresh = [m for m in messages if not self.recorder.has(m.id)]
        await self._bringing_along(fresh)
        prompts = [m for m in fresh if translate.is_prompt(m) and not self.recorder.has(m.id)]
        results = partial(translate.results_of, fresh)
        await self.recorder.asking(header, [translate.to_prompt(m) for m in prompts], results)

    async def _bringing_along(self, fresh: Sequence[Any]) -> None:
        """Record answers of a model that the caller's own history holds, with their results."""
        results, prompts = partial(translate.results_of, fresh), list[Any]()
        for message in fresh:
            if translate.is_answer(message):
                said = [translate.to_prompt(prompt) for prompt in prompts]
                await self.recorder.adopting(translate.to_answer(message), said, results)
                prompts = []
            elif translate.is_prompt(message):
                prompts.append(message)

    def _answer(self, response: Any) -> None:
        messages: Any = getattr(response, "model_response", response)
        self.take_answer(as_list(getattr(messages, "result", messages)))

    def take_answer(self, messages: Sequence[Any]) -> None:
        """Record an answer, and what the framework itself tells about its calls."""
        results = translate.results_of(messages)
        for message in messages:
            if translate.is_answer(message):
                message.id = message.id or str(uuid4())
                self.recorder.answer(
                    translate.to_answer(message), translate.to_usage(message), results
                )

    def _recall(self, call: Any) -> Any:
        stored = self.recorder.recall(call["id"])
        return None if stored is None else translate.tool_message(call["id"], call["name"], stored)

    def _finish(self, request: Any, result: Any) -> None:
        call_id: str = request.tool_call["id"]
        ends = getattr(request.tool, "return_direct", False) or getattr(result, "goto", None)
        self.recorder.finish_tool(call_id, _result_among(call_id, result), goes_on=not ends)

    def _failed(self, call_id: str, failure: BaseException) -> None:
        if isinstance(failure, _errors.GraphBubbleUp):
            self.recorder.pause_tool(call_id)  # it goes on when the graph is resumed
        else:
            self.recorder.fail_tool(call_id, failure)

    def _effect(self, request: Any) -> Effect | None:
        tool = request.tool
        function = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
        said = declared(tool, function, getattr(tool, "metadata", None))
        return self.recorder.effect_of(request.tool_call["name"], said)

    def _header(self, request: Any) -> Json:
        found: Json = getattr(request.model, "_get_ls_params", dict)()
        config: Json = {
            "provider": found.get("ls_provider") or type(request.model).__name__,
            "model": found.get("ls_model_name") or type(request.model).__name__,
        }
        if found.get("ls_temperature") is not None:
            config["temperature"] = found["ls_temperature"]
        header: Json = {"config": config}
        if request.system_message is not None:
            header["system"] = str(request.system_message.text)
        tools = self._schemas(request.tools)
        return {**header, "tools": tools} if tools else header

    def _schemas(self, tools: Sequence[Any]) -> list[Json]:
        names = tuple(id(tool) for tool in tools)
        if names not in self._headers:
            self._headers = {names: [_schema(tool) for tool in tools]}
        return self._headers[names]


class Listener(_callbacks.BaseCallbackHandler):  # type: ignore[misc]  # as above
    """Records the pieces of an answer where a model streams it; makes none stream."""

    run_inline = True

    def __init__(self, recorder: Recorder) -> None:
        """Record into a session."""
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  an untyped base, as above
        self._recorder = recorder
        self._chunks = translate.Chunks()

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, **rest: Any) -> None:
        """Record a piece."""
        for found in self._chunks.of(chunk):
            self._recorder.chunk(found)


class _PiecesOnly(Listener):
    """A listener that LangChain does not ask about anything else: its own ways of not being interested cost more."""

    ignore_chat_model = ignore_chain = ignore_agent = ignore_retriever = True
    ignore_retry = ignore_custom_event = True


@contextmanager
def _listening(recorder: Recorder) -> Generator[None, None, None]:
    """Have the models that are called inside of the block tell a session of each piece that they stream."""
    config = _config.ensure_config()
    callbacks: Any = config.get("callbacks")
    listener = _PiecesOnly(recorder)
    if hasattr(callbacks, "add_handler"):
        callbacks = callbacks.copy()
        callbacks.add_handler(listener, inherit=True)
    else:
        callbacks = [*(callbacks or ()), listener]
    token = _config.var_child_runnable_config.set({**config, "callbacks": callbacks})
    try:
        yield
    finally:
        _config.var_child_runnable_config.reset(token)


def _schema(tool: Any) -> Json:
    made: Json = _tools.convert_to_openai_tool(tool)
    function: Json = made.get("function", made)
    return {
        "name": str(function.get("name") or function.get("type")),
        "description": str(function.get("description", "")),
        "parameters": function.get("parameters", {}),
    }


def _call_answered(message: Json) -> str | None:
    source = message["source"]
    return source["callId"] if source["kind"] == "tool" else None


def _result_among(call_id: str, result: Any) -> Json:
    """Return the answer to a call, which a tool may hand over inside of a graph command."""
    update: Any = getattr(result, "update", None)
    members = as_mapping(update)
    held: Any = [result] if members is None else members.get("messages", [])
    for message in _flat(held):
        if getattr(message, "tool_call_id", None) == call_id:
            return translate.to_result(message)
    return {"content": []}


def _flat(held: Any) -> Iterable[Any]:
    for one in as_list(held):
        yield from as_list(one)
