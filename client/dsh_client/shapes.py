"""The shapes of what an agent records: messages, calls, results, and why a turn ended.

Pure builders, no state. The one rule: what the program leaves out is filled in here, what it gives is taken as it is,
since the daemon is the judge of what may stand in a log. Standard library only.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from dsh_client.exchange import as_object
from dsh_protocol.errors import DshdError

Json = dict[str, Any]
Prompt = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A text, a whole message, or the blocks of one."""

NOT_DISPATCHED: Json = {
    "content": [{"type": "text", "text": "Error: tool call aborted before dispatch"}],
    "isError": True,
    "error": {"name": "AbortError", "code": "ABORTED_BEFORE_DISPATCH"},
}
"""What is recorded for a call that never ran."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for.

    Attributes:
        id: The model's id for it.
        name: The tool.
        arguments: The raw JSON text as the model wrote it.
    """

    id: str
    name: str
    arguments: str

    def parsed(self) -> Any:
        """Return the arguments as a JSON value.

        Raises:
            ValueError: The model did not write JSON.
        """
        return json.loads(self.arguments)


def blocks(content: Prompt) -> list[Json]:
    """Return content blocks: of a text one, of blocks themselves."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, Mapping):
        return [dict(content)]
    return [dict(block) for block in content]


def user_message(content: Prompt) -> Json:
    """Return a user's message; a mapping with a role is one already and keeps what it has."""
    message: Json = {"id": str(uuid.uuid4()), "role": "user"}
    if isinstance(content, Mapping) and "role" in content:
        return {**message, "source": {"kind": "user"}, **content}
    return {**message, "content": blocks(content), "source": {"kind": "user"}}


def assistant_message(content: Prompt, config: Mapping[str, Any]) -> Json:
    """Return the model's message, from the model that `config` names."""
    source = {"kind": "model", "provider": config.get("provider"), "model": config.get("model")}
    message: Json = {"id": str(uuid.uuid4()), "role": "assistant"}
    if isinstance(content, Mapping) and "role" in content:
        return {**message, "source": source, **content}
    return {**message, "content": blocks(content), "source": source}


def asked_calls(message: Mapping[str, Any]) -> list[ToolCall]:
    """Return the calls that an assistant message asks for, in its order."""
    found: list[ToolCall] = []
    for item in message.get("content", ()):
        block = as_object(item)
        if block is not None and block.get("type") == "tool-call":
            found.append(ToolCall(block["id"], block["name"], block["arguments"]))
    return found


def result_message(call_id: str, content: list[Json], *, is_error: bool) -> Json:
    """Return the message that answers a call."""
    answer: Json = {"type": "tool-result", "toolCallId": call_id, "content": content}
    if is_error:
        answer["isError"] = True
    return {
        "id": str(uuid.uuid4()),
        "role": "user",
        "source": {"kind": "tool", "callId": call_id},
        "content": [answer],
    }


def failed_result(failure: BaseException) -> Json:
    """Return what is recorded for a body that raised: the error, or that it was aborted on the way."""
    if isinstance(failure, Exception):
        name, code = type(failure).__name__, _code(failure)
        text = f"Error: {_text(failure)}"
    else:
        name, code = "AbortError", "ABORTED"
        text = "Error: tool call aborted while it ran"
    return {
        "content": [{"type": "text", "text": text}],
        "isError": True,
        "error": {"name": name, "code": code},
    }


def end_reason(failure: BaseException | None) -> Json:
    """Return the reason of a `turn/end` for the exception that left the turn."""
    if failure is None:
        return {"kind": "completed"}
    alone = _alone(failure)
    if isinstance(alone, Exception):
        return {"kind": "error", "error": {"message": _text(alone), "code": _code(alone)}}
    disposed = isinstance(alone, SystemExit | GeneratorExit)
    return {"kind": "aborted", "reason": {"kind": "disposed" if disposed else "user"}}


def _alone(failure: BaseException) -> BaseException:
    """Look into a group of one, as nurseries and task groups raise it; of more, an ordinary error speaks for all."""
    while isinstance(failure, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", failure).exceptions
        failure = next((one for one in members if isinstance(one, Exception)), members[0])
    return failure


def _code(failure: Exception) -> str:
    return failure.kind if isinstance(failure, DshdError) else type(failure).__name__


def _text(failure: Exception) -> str:
    # a lone surrogate (a file name, say) must not keep the error out of the log
    text = str(failure) or type(failure).__name__
    return text.encode("utf-8", "backslashreplace").decode()
