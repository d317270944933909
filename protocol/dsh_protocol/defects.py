"""What makes one event invalid, by rules that need that event and nothing else.

A defect is a value, the name of the broken rule, so that the same check serves an append (`EVENT_INVALID`) and a stored
log (`LOG_CORRUPT`). The checks read decoded JSON and change nothing; whatever they are given, they answer.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dsh_protocol.jsontypes import is_array, is_count, is_object, is_safe_integer
from dsh_protocol.vocabulary import SURFACE_TYPES, Event

if TYPE_CHECKING:
    from collections.abc import Mapping

_REQUIRED_KEYS = frozenset({"type", "seq", "time", "data"})
_KEYS = _REQUIRED_KEYS | {"sourceEventSeqs", "surfaceOp", "ignorable"}
_REPLACE_KEYS = frozenset({"op", "start", "end"})
_ADAPTER_DEFAULTS = frozenset({"reasoningEffort", "maxTokens"})

RULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "header-cwd": "the header's cwd is not an absolute path",
        "header-parent-session": "the header's parentSession is not a string",
        "header-retired-fields": "the header has the retired fields sandboxMode or approvalPolicy",
        "header-seed-length": "the header's seedLength is not a count",
        "invalid-adapter-defaults": "adapterDefaults marks a field that it cannot mark or that config does not have",
        "invalid-envelope": (
            "an event has type (a string), seq (a count), time (whole milliseconds) and data; beside them only "
            "sourceEventSeqs, surfaceOp and ignorable (true)"
        ),
        "invalid-reasoning-effort": "reasoningEffort is not a non-empty string",
        "malformed-turn-end": "turn/end has a turn of 1 or more and a reason with a kind, in the shape of that kind",
        "message-call-id-mismatch": "the result's block and its source name different calls",
        "message-content": "the message's content is not an array",
        "message-model-source": "the message's source is not a model with provider and model",
        "message-source": "the message's source is missing or has no kind",
        "message-tool-block": "the message's content is not exactly one tool-result block with an array as content",
        "message-tool-source": "the message's source is not a tool with a callId",
        "message-unidentified": "the message is missing, has no id, or has another role than its event type wants",
        "not-a-session-header": "the first line is not a session header",
        "request-header-lacks-provider-model": "the header has no config with provider and model",
        "retired-header-delta": "the event type request/header-delta is retired",
        "retired-header-fallback": "a request/header with the reason fallback is retired",
        "retired-mode-set": "the event type mode/set is retired",
        "sources-duplicate": "sourceEventSeqs names an event twice",
        "sources-empty": "sourceEventSeqs is empty, which only an assistant/message may have",
        "sources-not-array": "sourceEventSeqs is not an array",
        "sources-not-counts": "sourceEventSeqs has a member that is not a count",
        "sources-not-earlier": "sourceEventSeqs names an event that is not earlier",
        "sources-on-log-only": "sourceEventSeqs is not for an event of this type",
        "steering-message": "the event type steering/message is retired",
        "flat-tool-result": "a tool/result without a message is a retired shape",
        "surface-op-invalid": "surfaceOp is neither 'append' nor an object",
        "surface-op-invalid-replace": "surfaceOp is not {op: 'replace', start, end} with two counts",
        "surface-op-on-log-only": "surfaceOp is not for an event of this type",
        "turn-end-aborted-bare": "a turn/end that was aborted without a reason is a retired shape",
        "turn-end-disposed": "a turn/end with the reason disposed is a retired shape",
        "turn-end-error": "a turn/end whose reason has the failure beside its kind is a retired shape",
        "turn-start-trigger": "a turn/start with a trigger is a retired shape",
        "unidentified-assistant": "an assistant/message with content and provenance is a retired shape",
        "unidentified-user": "a user/message without id and role is a retired shape",
        "unknown-event-type": "the event's type is outside the vocabulary, and it is not marked ignorable",
    }
)
"""Every rule of this module, and that of the vocabulary, with what it says."""


def defect_text(rule: str) -> str:
    """Return what a rule says, for a person; the rule's own name where it is not one of this module's."""
    return RULES.get(rule, rule)


def envelope_defect(event: Any) -> str | None:
    """Return `invalid-envelope` where keys or their types are not an event's, else None.

    `surfaceOp` and `sourceEventSeqs` are only allowed here; `surface_metadata_defect` looks into them.
    """
    if not is_object(event):
        return "invalid-envelope"
    keys = event.keys()
    good = (
        keys <= _KEYS
        and keys >= _REQUIRED_KEYS
        and isinstance(event["type"], str)
        and is_count(event["seq"])
        and is_safe_integer(event["time"])
        and event.get("ignorable", True) is True
    )
    return None if good else "invalid-envelope"


def surface_metadata_defect(event: Event) -> str | None:
    """Return the rule that `surfaceOp` or `sourceEventSeqs` break by themselves, else None.

    That a replaced range exists and is cited depends on the log, and is not looked at.
    """
    has_sources = "sourceEventSeqs" in event
    kind = event.get("type")
    if not isinstance(kind, str) or kind not in SURFACE_TYPES:
        if "surfaceOp" in event:
            return "surface-op-on-log-only"
        return "sources-on-log-only" if has_sources else None
    defect = _surface_op_defect(event.get("surfaceOp"))
    return defect or (_sources_defect(event) if has_sources else None)


def _surface_op_defect(surface_op: Any) -> str | None:
    if surface_op == "append":
        return None
    if not is_object(surface_op):
        return "surface-op-invalid"
    good = (
        surface_op.keys() == _REPLACE_KEYS
        and surface_op["op"] == "replace"
        and is_count(surface_op["start"])
        and is_count(surface_op["end"])
    )
    return None if good else "surface-op-invalid-replace"


def _sources_defect(event: Event) -> str | None:
    sources = event["sourceEventSeqs"]
    if not is_array(sources):
        return "sources-not-array"
    if not all(map(is_count, sources)):
        return "sources-not-counts"
    if not sources and event["type"] != "assistant/message":
        return "sources-empty"
    if len(set(sources)) != len(sources):
        return "sources-duplicate"
    seq = event.get("seq")
    if is_count(seq) and any(source >= seq for source in sources):
        return "sources-not-earlier"
    return None


def message_defect(event: Event) -> str | None:
    """Return the rule that an event's data breaks where the format has one for its type, else None.

    Messages, `request/header` and `turn/end` have rules. A retired shape breaks them too: ask `retired_shape` first.
    """
    data = event.get("data")
    match event.get("type"):
        case "user/message":
            return _identity_defect(data, "user")
        case "assistant/message":
            return _assistant_defect(_member(data, "message"))
        case "tool/result":
            return _result_defect(_member(data, "message"))
        case "request/header":
            return _request_header_defect(_member(data, "header"))
        case "turn/end":
            return None if data is None or _is_turn_end(data) else "malformed-turn-end"
        case _:
            return None


def _member(value: Any, key: str) -> Any:
    return value.get(key) if is_object(value) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _identity_defect(message: Any, role: str) -> str | None:
    if not is_object(message):
        return "message-unidentified"
    if not _is_text(message.get("id")) or message.get("role") != role:
        return "message-unidentified"
    if not _is_text(_member(message.get("source"), "kind")):
        return "message-source"
    return None if is_array(message.get("content")) else "message-content"


def _assistant_defect(message: Any) -> str | None:
    defect = _identity_defect(message, "assistant")
    if defect is not None:
        return defect
    source = message["source"]
    good = (
        source["kind"] == "model"
        and _is_text(source.get("provider"))
        and _is_text(source.get("model"))
    )
    return None if good else "message-model-source"


def _result_defect(message: Any) -> str | None:
    defect = _identity_defect(message, "user")
    if defect is not None:
        return defect
    source, content = message["source"], message["content"]
    if source["kind"] != "tool" or not _is_text(source.get("callId")):
        return "message-tool-source"
    block = content[0] if len(content) == 1 else None
    if _member(block, "type") != "tool-result" or not is_array(_member(block, "content")):
        return "message-tool-block"
    if _member(block, "toolCallId") != source["callId"]:
        return "message-call-id-mismatch"
    return None


def _request_header_defect(header: Any) -> str | None:
    config = _member(header, "config")
    if not _is_text(_member(config, "provider")) or not _is_text(_member(config, "model")):
        return "request-header-lacks-provider-model"
    if "reasoningEffort" in config and not _is_text(config["reasoningEffort"]):
        return "invalid-reasoning-effort"
    marks = header.get("adapterDefaults", {})
    good = is_object(marks) and all(
        key in _ADAPTER_DEFAULTS and mark is True and key in config for key, mark in marks.items()
    )
    return None if good else "invalid-adapter-defaults"


def _is_turn_end(data: Any) -> bool:
    """Whether it is a turn's end in today's shape; kinds that are not known here are plugins' and free."""
    if not is_object(data) or data.keys() != {"turn", "reason"}:
        return False
    reason = data["reason"]
    if not is_count(data["turn"]) or data["turn"] < 1 or not _is_text(_member(reason, "kind")):
        return False
    if reason["kind"] == "aborted":
        return reason.keys() == {"kind", "reason"} and _is_text(_member(reason["reason"], "kind"))
    if reason["kind"] == "error":
        failure = reason.get("error")
        return reason.keys() == {"kind", "error"} and is_object(failure)
    return True


def retired_shape(event: Event) -> str | None:
    """Return the name of the retired shape that an event has, else None.

    Older programs wrote them under the same format version. They are read as stored, never written.
    """
    kind, data = event.get("type"), event.get("data")
    if kind == "request/header-delta":
        return "retired-header-delta"
    if kind == "mode/set":
        return "retired-mode-set"
    if kind == "steering/message":
        return "steering-message"
    return _retired_data(kind, data) if is_object(data) else None


def _retired_data(kind: Any, data: dict[str, Any]) -> str | None:
    match kind:
        case "request/header":
            return "retired-header-fallback" if data.get("reason") == "fallback" else None
        case "turn/start":
            return "turn-start-trigger" if "trigger" in data else None
        case "turn/end":
            return _retired_reason(data.get("reason"))
        case _:
            return _retired_message(kind, data)


def _retired_message(kind: Any, data: dict[str, Any]) -> str | None:
    keys = data.keys()
    if kind == "user/message" and not keys & {"id", "role"} and keys >= {"content", "source"}:
        return "unidentified-user"
    if kind == "assistant/message" and "message" not in keys and "provenance" in keys:
        return "unidentified-assistant"
    if kind == "tool/result" and "message" not in keys and "callId" in keys:
        return "flat-tool-result"
    return None


def _retired_reason(reason: Any) -> str | None:
    match _member(reason, "kind"):
        case "aborted" if reason.keys() == {"kind"}:
            return "turn-end-aborted-bare"
        case "disposed":
            return "turn-end-disposed"
        case "error" if "error" not in reason and ("failure" in reason or "message" in reason):
            return "turn-end-error"
        case _:
            return None
