"""Claude Agent SDK: `query(prompt=…, options=with_dshd(options, "my-session"))`.

Hooks gate the prompt, the tools, and what the model is asked after a tool: no hook comes before that request, so the
one after the tool takes its checkpoint. The one rule: a tool that may not run is denied **and** the run is to stop,
for either alone lets something further happen. No hook of ours raises, since a hook that raises lets the tool run.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack
from uuid import uuid4

import anyio

from dsh_client.adapters import anthropic_messages
from dsh_client.adapters.claude_children import Children
from dsh_client.adapters.recorder import Recorder
from dsh_client.adapters.seam import as_list, aside, jsonable, load
from dsh_client.errors import MisuseError
from dsh_client.exchange import as_object

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable

    from dsh_client.adapters.held import Settings
    from dsh_client.shapes import Json

_sdk: Any = load("claude_agent_sdk", "claude-agent-sdk")

OVERLAP_S = 600.0
"""How long a call waits for the one before it to tell its result; after that the earlier one counts as failed."""

_HOOK_LIMIT_S = OVERLAP_S * 2

_SHOWN_WITHIN_S = 1.0
"""How long a hook waits for its call's answer to be shown to who watches the messages; they come on two ways."""


def with_dshd(options: Any = None, session: str | None = None, **settings: Unpack[Settings]) -> Any:
    """Return options whose hooks record the run and gate its tools; the caller's own hooks stay."""
    options = options or _sdk.ClaudeAgentOptions()
    gate = DshdHooks(Recorder(session, "claude-agent-sdk", settings), options.model)
    others: dict[str, list[Any]] = options.hooks or {}
    hooks = dict(others)
    for name, hook in gate.hooks().items():
        ours = _sdk.HookMatcher(hooks=[hook], timeout=_HOOK_LIMIT_S)
        if name in {"PreToolUse", "UserPromptSubmit"}:
            ours = replace(ours, on_failure="block")
        hooks[name] = [ours, *hooks.get(name, [])]
    return replace(options, hooks=hooks)


async def watched(messages: AsyncIterable[Any], options: Any) -> AsyncIterator[Any]:
    """Yield the messages of a run, and record the pieces among them: `watched(query(…, options=options), options)`.

    There are pieces where the options have `include_partial_messages=True`.

    Raises:
        MisuseError: The options have no hooks of ours.
    """
    gate = _gate_of(options)
    gate.is_watched = True
    try:
        async for message in messages:
            await gate.saw(message)
            yield message
    finally:
        gate.is_watched = False


def _gate_of(options: Any) -> DshdHooks:
    hooks: dict[str, list[Any]] = options.hooks or {}
    for matcher in hooks.get("PreToolUse", []):
        for hook in matcher.hooks:
            found = getattr(hook, "__self__", None)
            if isinstance(found, DshdHooks):
                return found
    raise MisuseError("these options have no session; make them by with_dshd(options, …) first")


class DshdHooks:
    """The hooks of one session.

    Calls of one answer come one by one, without the answer: each is recorded as a step of its own, and the next waits
    for the result of the one before. A sub-agent has hooks like these, and a session, of its own.

    Attributes:
        recorder: The session; `recorder.flush()` opens the latch after a failure, `recorder.close()` gives it up.
        failure: What stopped the run, since no exception reaches the caller.
        is_watched: Whether somebody shows the run's messages to `saw`.
    """

    def __init__(
        self, recorder: Recorder, model: str | None, children: Children[DshdHooks] | None = None
    ) -> None:
        """Record into a session; the hooks are not told the model. Sub-agents of sub-agents share `children`."""
        self._model = model
        self._children = children or Children(self._child)
        self._is_root = children is None
        self.is_watched = False
        self._shown: set[str] = set()
        self._news = anyio.Event()
        self._pieces = anthropic_messages.Pieces()
        self._first_call: str | None = None
        self._later: dict[str, list[Json]] = {}
        self.recorder = recorder
        self._header: Json = {"config": {"provider": "anthropic", "model": model or "claude-code"}}
        self.failure: BaseException | None = None
        self._open: str | None = None
        self._free: anyio.Event | None = None

    def hooks(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """Return the hooks by the event that they are for."""
        return {
            "UserPromptSubmit": self.prompted,
            "PreToolUse": self.before_tool,
            "PostToolUse": self.after_tool,
            "PostToolUseFailure": self.after_tool,
            "Stop": self.stopped,
            "SubagentStart": self.agent_started,
            "SubagentStop": self.agent_stopped,
        }

    async def prompted(self, told: Any, _call_id: Any, _context: Any) -> Any:
        """Take the checkpoint of the turn's first request; tell the model what became of cut-off calls."""
        try:
            said = await aside(self._prompted, told["prompt"])
        except Exception as failure:  # noqa: BLE001  whatever it is, the run must not go on
            return {"decision": "block", **self._stop(failure)}
        if not said:
            return {}
        return {
            "hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": said}
        }

    async def before_tool(self, told: Any, call_id: Any, _context: Any) -> Any:
        """Let a body run when its start is durable."""
        child = self._children.of(told.get("agent_id"))
        try:
            self._children.check()
            if self._is_root and told.get("agent_id"):
                await aside(self.recorder.check, None)
                return {} if child is None else await child.before_tool(told, call_id, _context)
            await self._turn_comes()
            await self._is_shown(told.get("tool_use_id") or call_id)
            await aside(self._start, told, told.get("tool_use_id") or call_id)
        except Exception as failure:  # noqa: BLE001  likewise
            self._settled()
            denied = {"permissionDecision": "deny", "permissionDecisionReason": str(failure)}
            return {
                "hookSpecificOutput": {"hookEventName": "PreToolUse", **denied},
                **self._stop(failure),
            }
        return {}

    async def after_tool(self, told: Any, call_id: Any, _context: Any) -> Any:
        """Record what a tool gave, or that it failed; take the checkpoint of the request that follows."""
        if self._is_root and told.get("agent_id"):
            child = self._children.of(told["agent_id"])
            return {} if child is None else await child.after_tool(told, call_id, _context)
        call_id = told.get("tool_use_id") or call_id
        failed = "error" in told
        if failed:
            self._children.failed(call_id)
        given = told.get("error") if failed else told.get("tool_response")
        result = {"content": _blocks(given), "isError": failed}
        try:
            await aside(self._finish, call_id, result)
        except Exception as failure:  # noqa: BLE001  likewise
            return self._stop(failure)
        finally:
            if call_id == self._open:
                self._settled()
        return {}

    async def stopped(self, told: Any, _call_id: Any, _context: Any) -> Any:
        """Record the last answer and end the turn."""
        words = told.get("last_assistant_message") or ""
        try:
            if words:
                await self._is_shown(words)
            await aside(self._stopped, words)
        except Exception as failure:  # noqa: BLE001  likewise
            return self._stop(failure)
        return {}

    async def agent_started(self, told: Any, _call_id: Any, _context: Any) -> Any:
        """Give a sub-agent a session of its own, and take the checkpoint of its first request."""
        try:
            begun = self._children.begin(told["agent_id"])
            if begun is not None:
                await aside(begun[0]._prompted, begun[1])  # noqa: SLF001  of the same class
        except Exception as failure:  # noqa: BLE001  likewise
            self._children.failure = failure
            return self._stop(failure)
        return {}

    async def agent_stopped(self, told: Any, call_id: Any, _context: Any) -> Any:
        """End a sub-agent's turn, and give its session up."""
        child = self._children.end(told["agent_id"])
        if child is None:
            return {}
        found = await child.stopped(told, call_id, _context)
        try:
            await aside(child.recorder.close)
        except Exception as failure:  # noqa: BLE001  likewise
            return self._stop(failure)
        return found

    # -- what a watcher shows -----------------------------------------------------------------------------------------

    async def saw(self, message: Any) -> None:
        """Record a piece of the stream; of other messages, note that they were shown."""
        if getattr(message, "parent_tool_use_id", None) is not None:
            return  # a sub-agent's
        if isinstance(message, _sdk.StreamEvent):
            await self._piece(message.event)
        elif isinstance(message, _sdk.AssistantMessage):
            blocks = [getattr(b, "id", None) or getattr(b, "text", None) for b in message.content]
            self._shown.update(block for block in blocks if block)
            self._news.set()
            self._news = anyio.Event()

    async def _piece(self, event: Json) -> None:
        if event.get("type") == "message_start":
            self._pieces, self._first_call = anthropic_messages.Pieces(), None
            if self._open is None and not self.recorder.awaits_answer:
                await aside(self.recorder.request, self._header)
        self._pieces.take(event)
        while self._pieces.fresh:
            piece = self._pieces.fresh.pop(0)
            call_id = piece.get("id")
            self._first_call = self._first_call or call_id
            if call_id == self._first_call or call_id is None:
                await self.recorder.achunk(piece)
            else:
                self._later.setdefault(call_id, []).append(piece)  # for the step that it will have

    async def _is_shown(self, what: str) -> None:
        """Wait until the answer that a hook belongs to was shown, pieces first, where somebody watches."""
        with anyio.move_on_after(_SHOWN_WITHIN_S):
            while self.is_watched and what not in self._shown:
                await self._news.wait()

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _turn_comes(self) -> None:
        """Wait until no other call is open."""
        while self._free is not None:
            with anyio.move_on_after(OVERLAP_S) as waited:
                await self._free.wait()
            if waited.cancelled_caught and self._open is not None:
                self.recorder.fail_tool(self._open, TimeoutError("its result was never told"))
                self._settled()
        self._free = anyio.Event()

    def _settled(self) -> None:
        free, self._free, self._open = self._free, None, None
        if free is not None:
            free.set()

    def _child(self, session: str, settings: Settings) -> DshdHooks:
        recorder = Recorder(session, "claude-agent-sdk", settings)
        return DshdHooks(recorder, self._model, self._children)

    def _stop(self, failure: BaseException) -> Json:
        self.failure = self.failure or failure
        if not self._is_root:
            self._children.failure = self._children.failure or failure
        return {"continue_": False, "stopReason": f"dshd: {failure}"}

    def _prompted(self, prompt: str) -> str:
        self.recorder.begin_run()
        told = [_about(repair) for repair in self.recorder.repairs]
        self.recorder.repairs = []
        message: Json = {
            "id": str(uuid4()),
            "role": "user",
            "source": {"kind": "user"},
            "content": prompt,
        }
        message["content"] = _blocks(prompt)
        self.recorder.request(self._header, [message])
        return "\n".join(told)

    def _start(self, told: Any, call_id: str) -> None:
        self._open = call_id
        if not self.recorder.awaits_answer:
            self.recorder.request(
                self._header
            )  # the model was asked without us: only the log is told
        for piece in self._later.pop(call_id, []):
            self.recorder.chunk(piece)
        arguments = json.dumps(jsonable(told["tool_input"]), ensure_ascii=False)
        block = {
            "type": "tool-call",
            "id": call_id,
            "name": told["tool_name"],
            "arguments": arguments,
        }
        self.recorder.answer({"id": str(uuid4()), "role": "assistant", "content": [block]})
        full = told["tool_name"]
        short = self.recorder.effect_of(
            full.rsplit("__", 1)[-1], None
        )  # as its MCP server calls it
        key = self.recorder.start_tool(call_id, self.recorder.effect_of(full, short))
        self._children.called(told, call_id, key, self.recorder)

    def _finish(self, call_id: str, result: Json) -> None:
        self.recorder.finish_tool(call_id, result)
        self._children.check()
        self.recorder.request(
            self._header
        )  # the model is asked next; or the answer's next call is told

    def _stopped(self, words: str) -> None:
        if not self.recorder.awaits_answer:
            self.recorder.request(self._header)
        self.recorder.answer({"id": str(uuid4()), "role": "assistant", "content": _blocks(words)})
        self.recorder.end_run()


def _about(repair: Json) -> str:
    return f"About the call {repair['callId']} of {repair['name']} {repair['arguments']}: {repair['message']}"


def _blocks(given: Any) -> list[Json]:
    if isinstance(given, str):
        return [{"type": "text", "text": given}] if given else []
    blocks = [as_object(block) or {} for block in as_list(given)]
    if isinstance(given, list) and blocks and all("type" in block for block in blocks):
        return blocks
    return [{"type": "text", "text": json.dumps(jsonable(given), ensure_ascii=False)}]
