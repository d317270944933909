"""The events beside the talk, each in one short line; what only serves the machine gives none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsh_client.cli.render.model import Mark
from dsh_client.cli.values import as_list, as_object

if TYPE_CHECKING:
    from dsh_client.cli.render.model import Json

_QUIET = {
    "agent/inbox/spliced",
    "request/context",
    "llm/retry-started",
    "session/title-llm-request",
    "compaction/prune",
    "compaction/start",
    "web/deepseek-search-llm-request",
}
_WORDS = {
    "session/end-seed": "a writer took over here",
    "plan/mode": "plan mode",
    "todo/write": "to-do list",
    "sandbox/mode": "sandbox",
    "permission/preset": "permissions",
    "approval/policy": "approval policy",
    "agent-preset/selected": "agent preset",
    "goal/change": "goal",
    "hook/invoked": "hook called",
    "hook/result": "hook answered",
    "compaction/end": "compaction ended",
    "compaction/summary": "history compacted",
    "feedback/record": "feedback",
    "command/run": "command",
    "command/done": "command done",
}
_LONGEST = 160
_TONES = {"session/end-seed": "good", "compaction/summary": "warn"}


def mark_of(kind: str, seq: int, time: Any, data: Json) -> Mark | None:
    """Return the mark of an event, or None where a reader would not miss it."""
    if kind in _QUIET:
        return None
    text = _WORDS.get(kind, kind)
    detail = _detail(kind, data)
    return Mark(seq, time, kind, f"{text}: {detail}" if detail else text, _TONES.get(kind, "plain"))


def retry_text(data: Json) -> str:
    """Say that a model call is tried again, and why."""
    failure = as_object(data.get("failure"))
    why = failure.get("message") or failure.get("code") or failure.get("kind") or "no reason given"
    limit = f" of {data['maxRetries']}" if isinstance(data.get("maxRetries"), int) else ""
    return f"retry {data.get('retry')}{limit} after {data.get('delayMs')} ms: {why}"


def approval_text(kind: str, data: Json) -> str:
    """Say what was asked of a person, or decided."""
    if kind == "approval/decided":
        return f"approval {data.get('outcome')}"
    why = f": {data['reason']}" if data.get("reason") else ""
    return f"approval asked for {data.get('toolName')}{why}"


def ended_text(reason: Json) -> str:
    """Say how a turn ended, beyond the kind."""
    error = as_object(reason.get("error"))
    if error:
        return f"{error.get('code')}: {error.get('message')}"
    inner = as_object(reason.get("reason"))
    return str(inner.get("kind") or "")


def _detail(kind: str, data: Json) -> str:
    if kind == "todo/write":
        todos = [as_object(one) for one in as_list(data.get("todos"))]
        done = sum(one.get("status") == "completed" for one in todos)
        return f"{done} of {len(todos)} done"
    if kind == "compaction/summary":
        shadowed = len(as_list(data.get("shadowedSeqs")))
        return f"a summary stands for {shadowed} earlier messages"
    if kind == "goal/change":
        goal = as_object(data.get("goal"))
        return " ".join(str(one) for one in (data.get("operation"), goal.get("objective")) if one)
    if kind in {"hook/invoked", "hook/result"}:
        named = (data.get(key) for key in ("point", "handlerId", "decision"))
        return " ".join(str(one) for one in named if one)
    if kind == "plan/mode":
        return "on" if data.get("active") else "off"
    parts = [
        str(value) if len(data) == 1 else f"{key} {value}"
        for key, value in data.items()
        if isinstance(value, str | int) and not key.endswith("Id")
    ]
    text = ", ".join(parts) or (json.dumps(data) if data else "")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
