"""A session as OpenTelemetry spans (one OTLP/JSON request), by the GenAI conventions of one pinned version.

The rule: what was said, asked and answered is left out unless it is wanted; ids come from the session alone, so that
a second export gives the same spans.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from dsh_client.cli.figures import tokens_in
from dsh_client.cli.render.model import ABORTED, FAILED, UNKNOWN, Said, text_of
from dsh_client.cli.render.openai import well_formed
from dsh_client.cli.values import as_list
from dsh_protocol.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_client.cli.render.model import Call, Json, Model, Step, Turn

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""The conventions that the names below are from; they are not stable, so another version may name them otherwise."""

_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
_BROKEN = (FAILED, UNKNOWN, ABORTED)


def render(model: Model, *, content: bool = False) -> Json:
    """Return the request: a trace for each turn, with `content` also what was said, asked and answered."""
    spans = [span for turn in model.turns for span in _Spans(model, turn, content=content).all()]
    scope: Json = {"name": "dshctl", "version": VERSION}
    resource: Json = {"attributes": _attributes({"service.name": _agent(model)})}
    return {
        "resourceSpans": [
            {
                "resource": resource,
                "scopeSpans": [{"scope": scope, "spans": spans, "schemaUrl": SCHEMA_URL}],
                "schemaUrl": SCHEMA_URL,
            }
        ]
    }


class _Spans:
    """The spans of one turn."""

    def __init__(self, model: Model, turn: Turn, *, content: bool) -> None:
        self._model = model
        self._turn = turn
        self._content = content
        self._trace = sha256(_bytes(f"{model.id}\0{turn.seq}")).hexdigest()[:32]
        self._root = self._id("turn", turn.seq)

    def all(self) -> Iterator[Json]:
        """Yield the turn, then each model call with the tools that it asked for."""
        yield self._agent_span()
        for step in self._turn.steps:
            yield self._chat(step)
            for call in step.calls:
                yield from self._tool(call, self._root)

    def _agent_span(self) -> Json:
        turn, name = self._turn, _agent(self._model)
        found: Json = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
        if self._content and turn.asked:
            found["gen_ai.input.messages"] = _messages("user", turn.asked)
        broken = turn.ended if turn.ended not in {"", "completed"} else ""
        last = max([turn.seq, *(step.end_seq or step.seq for step in turn.steps)])
        end = turn.end_time if turn.end_seq is not None else self._time_at(last)
        span = self._span(f"invoke_agent {name}", _INTERNAL, (turn.time, end), found, broken)
        return {**span, "spanId": self._root}

    def _chat(self, step: Step) -> Json:
        found: Json = {"gen_ai.operation.name": "chat"}
        if step.provider:
            found["gen_ai.provider.name"] = step.provider
        if step.model:
            found["gen_ai.request.model"] = step.model
        if step.finish:
            found["gen_ai.response.finish_reasons"] = [step.finish]
        if step.usage:
            found |= _usage(step.usage)
        if self._content:
            said = [i for i in step.items if isinstance(i, Said) and i.role == "assistant"]
            text = "\n".join(filter(None, (text_of(one.blocks) for one in said)))
            found["gen_ai.output.messages"] = _messages("assistant", text, step.finish)
        begin = step.request_time if step.request_time is not None else step.time
        broken = "" if step.answer_seq is not None else "interrupted"
        times = (begin, step.answer_time if step.answer_seq is not None else step.end_time)
        span = self._span(f"chat {step.model}".rstrip(" "), _CLIENT, times, found, broken)
        return {**span, "spanId": self._id("step", step.seq), "parentSpanId": self._root}

    def _tool(self, call: Call, parent: str) -> Iterator[Json]:
        """Yield a call that was started and those inside of it; one that was not has taken no time."""
        if call.seq is None:
            return
        found: Json = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.id,
        }
        if call.repaired:
            found["dshd.written_by"] = "recovery"
        if self._content:
            arguments = call.arguments
            found["gen_ai.tool.call.arguments"] = (
                arguments if isinstance(arguments, str) else json.dumps(arguments)
            )
            if call.result is not None:
                found["gen_ai.tool.call.result"] = text_of(call.result)
        broken = (call.code or call.fate) if call.fate in _BROKEN or call.end_seq is None else ""
        times = (call.time, call.end_time)
        span = self._span(f"execute_tool {call.name}", _INTERNAL, times, found, broken)
        own = self._id("call", call.seq)
        yield {**span, "spanId": own, "parentSpanId": parent}
        for nested in call.nested:
            yield from self._tool(nested, own)

    def _span(self, name: str, kind: int, times: tuple[Any, Any], found: Json, broken: str) -> Json:
        """Return a span; one without an end has none of its own and takes no time."""
        started = _millis(times[0], _millis(self._turn.time, 0))
        ended = max(_millis(times[1], started), started)
        attributes = {**found, "gen_ai.conversation.id": self._model.id}
        if broken:
            attributes["error.type"] = broken
        return {
            "traceId": self._trace,
            "name": well_formed(name),
            "kind": kind,
            "startTimeUnixNano": str(started * 1_000_000),
            "endTimeUnixNano": str(ended * 1_000_000),
            "attributes": _attributes(attributes),
            **({"status": {"code": _ERROR, "message": well_formed(broken)}} if broken else {}),
        }

    def _time_at(self, seq: int) -> Any:
        return next((tick.time for tick in self._model.ticks if tick.seq == seq), None)

    def _id(self, what: str, seq: int) -> str:
        return sha256(_bytes(f"{self._model.id}\0{what}\0{seq}")).hexdigest()[:16]


def _agent(model: Model) -> str:
    return str(model.header.get("agentPreset") or "dshd")


def _usage(usage: dict[str, int]) -> Json:
    found = {
        "gen_ai.usage.input_tokens": tokens_in(usage),
        "gen_ai.usage.output_tokens": usage.get("outputTokens", 0),
    }
    more = {
        "gen_ai.usage.cache_read.input_tokens": usage.get("cacheReadTokens"),
        "gen_ai.usage.cache_creation.input_tokens": usage.get("cacheWriteTokens"),
    }
    return found | {name: count for name, count in more.items() if count}


def _messages(role: str, text: str, finish: str = "") -> str:
    """Return one message in the shape that the conventions give to an attribute, which is JSON text."""
    message: Json = {"role": role, "parts": [{"type": "text", "content": well_formed(text)}]}
    if finish:
        message["finish_reason"] = finish
    return json.dumps([message], ensure_ascii=False)


def _attributes(values: Json) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> Json:
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(str(one)) for one in as_list(value)]}}
    return {"stringValue": well_formed(str(value))}


def _millis(time: Any, default: int) -> int:
    """Return a stored time that OTLP can carry: it counts nanoseconds in 64 bits."""
    return time if isinstance(time, int) and 0 <= time < 1 << 43 else default


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
