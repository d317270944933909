"""What a session consists of: its immutable header and its events, and what makes one invalid.

The rules here need one event and nothing else; what depends on the log so far is the fold's. A defect is a value, the
name of the rule that is broken, so that the same check serves an append (`EVENT_INVALID`) and a stored log (`LOG_CORRUPT`).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

Event: TypeAlias = dict[str, Any]
"""One event as decoded JSON, its keys in stored order."""

SURFACE_TYPES = frozenset({"user/message", "assistant/message", "tool/result"})
"""The types from which the model's history is derived; every other type is only logged."""

KNOWN_TYPES = frozenset(
    {
        "agent-preset/selected",
        "agent/inbox/spliced",
        "approval/asked",
        "approval/decided",
        "approval/policy",
        "assistant/chunk",
        "assistant/message",
        "command/done",
        "command/run",
        "compaction/end",
        "compaction/prune",
        "compaction/start",
        "compaction/summary",
        "feedback/record",
        "goal/change",
        "hook/invoked",
        "hook/result",
        "llm/retry",
        "llm/retry-started",
        "permission/preset",
        "plan/mode",
        "request/context",
        "request/header",
        "sandbox/mode",
        "schedule/change",
        "session/end-seed",
        "session/title",
        "session/title-llm-request",
        "step/end",
        "step/start",
        "subagent/descriptor",
        "team/member",
        "team/message/delivered",
        "team/message/queued",
        "team/task",
        "todo/write",
        "tool-workflow/agent-end",
        "tool-workflow/agent-start",
        "tool-workflow/run-end",
        "tool-workflow/run-start",
        "tool/call",
        "tool/code-dispatch",
        "tool/code-dispatch-start",
        "tool/result",
        "turn/end",
        "turn/start",
        "user/message",
        "web/deepseek-search-llm-request",
    }
)
"""The vocabulary of format version 0. Any other type is taken only with `ignorable: true`."""


class Header(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The immutable header of a session, as the wire has it.

    Attributes:
        id: Names the session, and its directory.
        created_at: Epoch milliseconds.
        version: Of the format.
        cwd: Absolute; selects the project directory.
        parent_session: Id of the session that this one was forked or delegated from.
        seed_length: How many leading events are the parent's.
        origin: `"subagent"` or absent.
        delegation_depth: 0 for a session that a person began.
        agent_preset: Id of a composition.
    """

    version: int = msgspec.field(default_factory=int)
    id: str
    created_at: int
    cwd: str | None = None
    parent_session: str | None = None
    seed_length: int | None = None
    origin: str | None = None
    delegation_depth: int = msgspec.field(default_factory=int)
    agent_preset: str | None = None


def header_to_wire(header: Header) -> dict[str, Any]:
    """Return the header's wire object, keys in stored order, what is absent left out."""
    members: dict[str, Any] = {
        "version": header.version,
        "id": header.id,
        "createdAt": header.created_at,
        "cwd": header.cwd,
        "parentSession": header.parent_session,
        "seedLength": header.seed_length,
        "origin": header.origin,
        "delegationDepth": header.delegation_depth,
        "agentPreset": header.agent_preset,
    }
    return {key: value for key, value in members.items() if value is not None}


class EventIn(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """An event as a client sends it. What is left out, the daemon gives.

    This class is the schema; events that arrive stay dictionaries and are checked by rule.

    Attributes:
        type: One of the known types, or any other with `ignorable: true`.
        data: Any JSON value.
        seq: Where given, it must be the right one.
        time: Epoch milliseconds; the daemon's clock where absent.
        surface_op: `"append"`, also where absent on a surface type, or `{"op": "replace", "start", "end"}`.
        source_event_seqs: Seqs of the events that this one stands for.
        ignorable: True, or absent.
    """

    type: str
    data: Any
    seq: int | None = None
    time: int | None = None
    surface_op: str | dict[str, Any] | None = None
    source_event_seqs: list[int] | None = None
    ignorable: Literal[True] | None = None
