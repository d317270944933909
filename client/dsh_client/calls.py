"""The calls of an open step, from being asked for to being answered, and how their events name them.

The one rule: what a call has come to is noted here before anything else may depend on it. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsh_client.exchange import as_object
from dsh_client.shapes import blocks, result_message

if TYPE_CHECKING:
    from dsh_client.ledger import Entry
    from dsh_client.shapes import Json, ToolCall


@dataclass(eq=False, slots=True)
class OpenCall:
    """A call that the model asked for in the open step.

    Attributes:
        call: The call.
        entry: Its checkpoint, once that was tried.
        dispatched: Whether its body may have run.
        answered: Whether its result is recorded.
        idempotency_key: From the daemon, once dispatched.
        owed: The result that the daemon wants recorded where it refused.
        nested: How many nested dispatches it has made.
    """

    call: ToolCall
    entry: Entry | None = None
    dispatched: bool = False
    answered: bool = False
    idempotency_key: str | None = None
    owed: Json | None = None
    nested: int = 0

    @property
    def in_log(self) -> bool:
        """Whether its `tool/call` has its place in the log."""
        return self.entry is not None and self.entry.placed


def nested_data(call: ToolCall, outer: OpenCall, root: str) -> Json:
    """Return the five members by which both events of a nested dispatch name it."""
    return {
        "rootCallId": root,
        "parentCallId": outer.call.id,
        "subCallId": call.id,
        "name": call.name,
        "arguments": call.parsed(),
    }


def result_data(found: OpenCall, result: Json) -> Json:
    """Return what the event of a call's result holds, beside its turn and step."""
    content = blocks(result["content"])
    message = result_message(found.call.id, content, is_error=bool(result.get("isError")))
    data: Json = {"message": message}
    error = as_object(result.get("error"))
    if error is not None:
        told = as_object(error.get("info")) or error
        data["error"] = {"name": told.get("name"), "code": told.get("code")}
    if result.get("meta") is not None:
        data["meta"] = result["meta"]
    return data
