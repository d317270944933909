"""Counts what happened in sessions: a fold over events that keeps numbers only.

The rule: what a fork inherited is counted where it happened, so that ten forks of one session do not make it ten times
as expensive. Where the parent is not among the sessions, the fork with the longest inheritance stands in for it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dsh_client.cli.values import as_list, as_object

NAMES = (
    "turns",
    "interrupted",
    "steps",
    "calls",
    "failedCalls",
    "notStarted",
    "outcomeUnknown",
    "errors",
    "retries",
    "inputTokens",
    "outputTokens",
    "cacheReadTokens",
    "cacheWriteTokens",
    "reasoningTokens",
)
_USAGE = tuple(name for name in NAMES if name.endswith("Tokens"))
_CODES = {"TOOL_NOT_STARTED": "notStarted", "TOOL_OUTCOME_UNKNOWN": "outcomeUnknown"}


class Tally:
    """The figures of some events.

    Attributes:
        figures: A number for each of `NAMES`.
        models: Answers by model.
        tools: Calls by tool.
    """

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self.figures: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.tools: Counter[str] = Counter()

    def take(self, event: dict[str, Any]) -> None:
        """Count one event."""
        kind, data = event.get("type"), as_object(event.get("data"))
        if kind == "turn/start":
            self.figures["turns"] += 1
        elif kind == "step/start":
            self.figures["steps"] += 1
        elif kind == "assistant/message":
            self._answer(data)
        elif kind == "tool/result":
            self._result(data, event)
        elif kind == "compaction/summary":
            self._usage(as_object(data.get("usage")))
        elif kind == "llm/retry":
            self.figures["retries"] += 1
        elif kind == "turn/end":
            ended = as_object(data.get("reason")).get("kind")
            self.figures["interrupted"] += ended == "interrupted"
            self.figures["errors"] += ended == "error"

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.figures.update(other.figures)
        self.models.update(other.models)
        self.tools.update(other.tools)

    def as_wire(self) -> dict[str, Any]:
        """Return all figures, those that are zero too."""
        return {
            **{name: self.figures[name] for name in NAMES},
            "models": dict(self.models.most_common()),
            "tools": dict(self.tools.most_common()),
        }

    def _answer(self, data: dict[str, Any]) -> None:
        message = as_object(data.get("message")) or data
        source = as_object(message.get("source"))
        self.models[str(source.get("model") or "unknown")] += 1
        self._usage(as_object(data.get("usage")))
        for block in map(as_object, as_list(message.get("content"))):
            if block.get("type") == "tool-call":
                self.figures["calls"] += 1
                self.tools[str(block.get("name"))] += 1

    def _result(self, data: dict[str, Any], event: dict[str, Any]) -> None:
        if as_object(event.get("surfaceOp")):
            return  # a result that was shortened for the model happened once
        code = _CODES.get(str(as_object(data.get("error")).get("code")))
        if code is not None:
            self.figures[code] += 1
            return
        message = as_object(data.get("message"))
        block = as_object((as_list(message.get("content")) or [data])[0])
        self.figures["failedCalls"] += block.get("isError") is True

    def _usage(self, usage: dict[str, Any]) -> None:
        for name in _USAGE:
            if type(usage.get(name)) is int:
                self.figures[name] += usage[name]


def first_own_seqs(sessions: list[dict[str, Any]]) -> dict[str, int]:
    """Return, by session id, the seq from which its events are to be counted here."""
    known = {str(session["id"]) for session in sessions}
    orphans: dict[str, tuple[int, str]] = {}
    starts: dict[str, int] = {}
    for session in sessions:
        name, (parent, length) = str(session["id"]), inheritance(session)
        starts[name] = length
        if length and parent not in known:
            orphans[parent] = max(orphans.get(parent, (0, "")), (length, name))
    starts.update({name: 0 for _, name in orphans.values()})
    return starts


def inheritance(session: dict[str, Any]) -> tuple[str, int]:
    """Return a session's parent and how many events it took over from it."""
    header = as_object(session.get("header"))
    length = header.get("seedLength")
    if not header.get("parentSession") or type(length) is not int or length < 0:
        return "", 0
    return str(header["parentSession"]), length
