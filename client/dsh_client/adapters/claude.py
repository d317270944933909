"""Claude Agent SDK: `query(prompt=…, options=with_dshd(options, "my-session"))`.

Hooks gate the prompt and the tools. The model cannot be gated after the first request of a turn, for no hook comes
before it: see ADAPTERS.md. The one rule: a tool that may not run is denied **and** the run is told to stop, for either
alone lets something further happen. No hook of ours raises, since a hook that raises lets the tool run.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack
from uuid import uuid4

import anyio

from dsh_client.adapters.recorder import Recorder
from dsh_client.adapters.seam import as_list, aside, jsonable, load
from dsh_client.exchange import as_object

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dsh_client.adapters.held import Settings
    from dsh_client.shapes import Json

_sdk: Any = load("claude_agent_sdk", "claude-agent-sdk")

OVERLAP_S = 600.0
"""How long a call waits for the one before it to tell its result; after that the earlier one counts as failed."""

_HOOK_LIMIT_S = OVERLAP_S * 2


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


class DshdHooks:
    """The hooks of one session.

    Calls of one answer come one by one, without the answer: each is recorded as a step of its own, and the next waits
    for the result of the one before. Tools of sub-agents run inside of the tool that started the sub-agent.

    Attributes:
        recorder: The session; `recorder.flush()` opens the latch after a failure, `recorder.close()` gives it up.
        failure: What stopped the run, since no exception reaches the caller.
    """

    def __init__(self, recorder: Recorder, model: str | None) -> None:
        """Record into a session; the hooks are not told the model."""
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
        try:
            if told.get("agent_id"):
                await aside(self.recorder.check, None)
                return {}
            await self._turn_comes()
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
        """Record what a tool gave, or that it failed."""
        if told.get("agent_id"):
            return {}
        call_id = told.get("tool_use_id") or call_id
        failed = "error" in told
        given = told.get("error") if failed else told.get("tool_response")
        result = {"content": _blocks(given), "isError": failed}
        try:
            await aside(self.recorder.finish_tool, call_id, result)
        except Exception as failure:  # noqa: BLE001  likewise
            return self._stop(failure)
        finally:
            if call_id == self._open:
                self._settled()
        return {}

    async def stopped(self, told: Any, _call_id: Any, _context: Any) -> Any:
        """Record the last answer and end the turn."""
        try:
            await aside(self._stopped, told.get("last_assistant_message") or "")
        except Exception as failure:  # noqa: BLE001  likewise
            return self._stop(failure)
        return {}

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

    def _stop(self, failure: BaseException) -> Json:
        self.failure = self.failure or failure
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
        self.recorder.start_tool(call_id, self.recorder.effect_of(full, short))

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
