"""openai-agents: `await Runner.run(agent, "…", **dshd_session("my-session"))`.

The hooks gate the model and the tools, the session gives the history; neither is enough alone, so they come together.
The one rule: what a hook raises reaches the caller (of a tool's hook inside the SDK's `UserError`).
"""

from __future__ import annotations

import json
from collections import Counter
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from dsh_client.adapters import openai_items as translate
from dsh_client.adapters.effects import declared
from dsh_client.adapters.held import Settings
from dsh_client.adapters.keys import Child, child_of
from dsh_client.adapters.openai_agents_streams import Requests, Watched
from dsh_client.adapters.recorder import Recorder
from dsh_client.adapters.seam import aside, load

if TYPE_CHECKING:
    from dsh_client.adapters.effects import Effect
    from dsh_client.shapes import Json

_agents: Any = load("agents", "openai-agents")

_KEY = "dshd_idempotency_key"
_RECORDER = "dshd_recorder"

_child: ContextVar[RunArguments] = ContextVar("dshd_child_run")


class RunArguments(TypedDict):
    """What `Runner.run` takes of us."""

    session: DshdSession
    hooks: DshdHooks


class AllSettings(Settings, total=False):
    """Settings, and the hooks of somebody else.

    Attributes:
        hooks: Called after ours, since `Runner.run` takes one set of hooks only.
    """

    hooks: Any


def dshd_session(session: str | None = None, **settings: Unpack[AllSettings]) -> RunArguments:
    """Return the session and the hooks of a run; use the same for every run of the session in this process."""
    others = settings.pop("hooks", None)
    recorder = Recorder(session, "openai-agents", settings)
    hooks = DshdHooks(recorder, others)
    return {"session": DshdSession(recorder, hooks), "hooks": hooks}


def idempotency_key(context: Any) -> str | None:
    """Return the key of the call that a tool's body runs for, from its `ToolContext`."""
    return getattr(context, _KEY, None)


def child_session(context: Any, name: str = "agent") -> Child:
    """Return the session of an agent that a tool's body starts, for `dshd_session(**child_session(context))`.

    Raises:
        MisuseError: The context is not that of a call which passed its checkpoint.
    """
    recorder: Recorder | None = getattr(context, _RECORDER, None)
    session = recorder.session_id if recorder is not None else None
    return child_of(getattr(context, _KEY, None), session, name)


def agent_tool(
    agent: Any, name: str | None = None, description: str | None = None, **options: Any
) -> Any:
    """Return `agent.as_tool(name, description, …)`, with a session of its own for each call: a child of the caller's.

    Args:
        agent: The agent that works for the caller.
        name: The tool's name.
        description: What it does.
        options: What `as_tool` takes besides; `hooks` are called after ours, `session` is not taken.
    """
    others = options.pop("hooks", None)
    tool = agent.as_tool(name, description, hooks=_ChildHooks(), session=_ChildSession(), **options)
    inner = tool.on_invoke_tool

    async def invoke(context: Any, arguments: str) -> Any:
        child = child_session(context)
        settings: Settings = getattr(context, _RECORDER).inherited
        settings["parent"] = child["parent"]
        ours = dshd_session(child["session"], hooks=others, **settings)
        token = _child.set(ours)
        try:
            return await inner(context, arguments)
        finally:
            _child.reset(token)
            await aside(ours["session"].recorder.close)  # noqa: ASYNC102  a thread closes it, cancelled or not

    tool.on_invoke_tool = invoke
    return tool


class DshdSession:
    """The history of a run, read from the log. What is said and done is recorded by the hooks, not here.

    Attributes:
        recorder: The session; `recorder.flush()` opens the latch after a failure, `recorder.close()` gives it up.
    """

    session_settings: Any = None

    def __init__(self, recorder: Recorder, hooks: DshdHooks) -> None:
        """Read the recorder's session."""
        self.recorder = recorder
        self._hooks = hooks

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.recorder.session_id or ""

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the history as input items, the answers to cut-off calls included."""
        items = translate.from_log(await aside(self.recorder.begin_run, new=False))
        self._hooks.begin(items)
        return items if limit is None else items[max(0, len(items) - limit) :]

    async def add_items(self, items: list[Any]) -> None:
        """Do nothing: the hooks have recorded them."""

    async def pop_item(self) -> Any:
        """Take nothing back: a log keeps what was said."""
        return None

    async def clear_session(self) -> None:
        """Refuse.

        Raises:
            NotImplementedError: Always; a session is deleted with `dshctl`, or a new one is begun.
        """
        raise NotImplementedError(
            "a dshd session is not cleared; begin another one, or delete it with dshctl"
        )


class DshdHooks(_agents.RunHooks):  # type: ignore[misc]  # untyped where openai-agents is not installed
    """The hooks of a run: checkpoints before each request and each tool, everything recorded.

    Attributes:
        recorder: The session.
    """

    def __init__(self, recorder: Recorder, others: Any = None) -> None:
        """Record into a session, and call other hooks after it."""
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  an untyped base, as above
        self.recorder = recorder
        self._others = others
        self._recorded: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._first = True
        self._requests = Requests(recorder)

    def begin(self, history: list[Json]) -> None:
        """Take in what the history of a run holds."""
        self._recorded = Counter(
            translate.key_of(item) for item in history if translate.is_prompt(item)
        )
        self._dropped.clear()

    # -- the model ----------------------------------------------------------------------------------------------------

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: Any, input_items: Any
    ) -> None:
        """Wait until everything that the model is about to see is durable."""
        header = await _header(context, agent, system_prompt)
        await self.recorder.hurry(self._asking, header, input_items)
        self._requests.shown = input_items
        if self._others is not None:
            await self._others.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """Record what the model answered."""
        usage = {
            "inputTokens": response.usage.input_tokens,
            "outputTokens": response.usage.output_tokens,
        }
        self._requests.shown = None
        await self.recorder.soon(self.recorder.answer, translate.to_answer(response.output), usage)
        if self._others is not None:
            await self._others.on_llm_end(context, agent, response)

    # -- tools --------------------------------------------------------------------------------------------------------

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Wait until the start of the call is durable."""
        call_id = _call_id(context)
        try:
            effect = self._effect(tool)
            key = await self.recorder.hurry(self.recorder.starting, call_id, effect, locked=False)
        except BaseException as failure:
            self.recorder.fail_tool(call_id, failure)
            raise
        setattr(context, _KEY, key)
        setattr(context, _RECORDER, self.recorder)
        if self._others is not None:
            await self._others.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        """Record what the tool returned."""
        answer, goes_on = translate.to_result(result), agent.tool_use_behavior == "run_llm_again"
        finish = partial(self.recorder.finish_tool, goes_on=goes_on)
        await self.recorder.soon(finish, _call_id(context), answer)
        if self._others is not None:
            await self._others.on_tool_end(context, agent, tool, result)

    # -- the run ------------------------------------------------------------------------------------------------------

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        """Tell the other hooks."""
        if self._others is not None:
            await self._others.on_agent_start(context, agent)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """End the turn."""
        await aside(self.recorder.end_run)
        if self._others is not None:
            await self._others.on_agent_end(context, agent, output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        """Tell the other hooks; the next request's header shows who answers now."""
        if self._others is not None:
            await self._others.on_handoff(context, from_agent, to_agent)

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _asking(self, header: Json, input_items: list[Any]) -> None:
        """Pass the request's checkpoint with what the log does not have; shared code."""
        self._drop_repeated(input_items)
        items = [translate.plain(item) for item in input_items]
        met: Counter[str] = Counter()
        fresh: list[Json] = []
        for item in filter(translate.is_prompt, items):
            key = translate.key_of(item)
            met[key] += 1
            if met[key] > self._recorded[key]:
                fresh.append(item)
        results = partial(translate.results_of, items)
        await self.recorder.asking(header, [translate.to_prompt(one) for one in fresh], results)
        self._recorded.update(map(translate.key_of, fresh))

    def _drop_repeated(self, input_items: list[Any]) -> None:
        """Take out of the request what the turn that was cut off had begun with and the caller says again.

        The SDK offers the list that it is about to send, and no other place where its own input could be left out.
        """
        if self._first:
            self._first = False
            tail = _last_prompts(input_items)
            prompts = [translate.to_prompt(translate.plain(item)) for item in tail]
            if prompts and not self.recorder.unsaid(prompts):
                self._dropped = Counter(translate.key_of(translate.plain(item)) for item in tail)
        for key, count in self._dropped.items():
            for _ in range(count):
                at = [n for n, item in enumerate(input_items) if _is(item, key)]
                if len(at) > 1:
                    del input_items[at[-1]]

    def _effect(self, tool: Any) -> Effect | None:
        said = declared(
            tool, getattr(tool, "on_invoke_tool", None), getattr(tool, "metadata", None)
        )
        return self.recorder.effect_of(tool.name, said)


class _ChildHooks(_agents.RunHooks):  # type: ignore[misc]  # as above
    """The hooks of the child that the running call has: the SDK takes one set for all calls of a tool."""

    def __getattribute__(self, name: str) -> Any:
        whose: Any = _child.get()["hooks"] if name.startswith("on_") else super()
        return whose.__getattribute__(name)


class _ChildSession:
    """The history of the child that the running call has; likewise."""

    session_settings: Any = None

    @property
    def session_id(self) -> str:
        return _child.get()["session"].session_id

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return await _child.get()["session"].get_items(limit)

    async def add_items(self, items: list[Any]) -> None:
        await _child.get()["session"].add_items(items)

    async def pop_item(self) -> Any:
        return await _child.get()["session"].pop_item()

    async def clear_session(self) -> None:
        await _child.get()["session"].clear_session()


def _is(item: Any, key: str) -> bool:
    found = translate.plain(item)
    return translate.is_prompt(found) and translate.key_of(found) == key


def _last_prompts(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in reversed(items):
        if not translate.is_prompt(translate.plain(item)):
            break
        found.insert(0, item)
    return found


def _call_id(context: Any) -> str:
    call_id = getattr(context, "tool_call_id", None)
    if not isinstance(call_id, str):
        # local shells, computers and patches have no call id in their hooks: they cannot be told apart after a crash
        raise TypeError(
            "this kind of tool gives its hooks no call id, so dshd cannot gate it; use a function tool"
        )
    return call_id


async def _header(context: Any, agent: Any, system_prompt: str | None) -> Json:
    model = agent.model.given if isinstance(agent.model, Watched) else agent.model
    name = model if isinstance(model, str) else getattr(model, "model", None)
    provider = "openai" if model is None or isinstance(model, str) else type(model).__name__
    header: Json = {"config": {"provider": provider, "model": str(name or "default")}}
    if system_prompt:
        header["system"] = system_prompt
    tools: list[Any] = [
        {
            "name": tool.name,
            "description": getattr(tool, "description", "") or "",
            "parameters": getattr(tool, "params_json_schema", None) or {},
        }
        for tool in await agent.get_all_tools(context)
    ]
    return {**header, "tools": json.loads(json.dumps(tools, default=str))} if tools else header
