"""A session in the Agent Trajectory Interchange Format, version 1.7: what happened, step by step, for other tools.

The rule: only what the format has a place for stands outside of `extra`; an answer that a recovery wrote says
so there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsh_client.cli import times
from dsh_client.cli.figures import tokens_in
from dsh_client.cli.render.model import USAGE, Call, Model, Said, Step, Turn, usage_of
from dsh_client.cli.render.openai import functions, plain_text, well_formed
from dsh_client.cli.values import as_object
from dsh_protocol.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_client.cli.render.model import Json

_FORMAT = "ATIF-v1.7"


def render(model: Model) -> Json:
    """Return the trajectory."""
    header = model.requests[-1][1] if model.requests else {}
    steps = list(_steps(model, header))
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    ordered = [{"step_id": step.pop("step_id"), **step} for step in steps]
    usage = usage_of([step for _, step in model.steps])
    agent: Json = {"name": str(model.header.get("agentPreset") or "dshd"), "version": VERSION}
    if name := as_object(header.get("config")).get("model"):
        agent["model_name"] = str(name)
    if tools := functions(header):
        agent["tool_definitions"] = tools
    return {
        "schema_version": _FORMAT,
        "session_id": well_formed(model.id),
        "agent": agent,
        "steps": ordered,
        "final_metrics": _total(usage, len(ordered)),
        "extra": {"state": model.session.get("state"), "header": model.header},
    }


def _steps(model: Model, header: Json) -> Iterator[Json]:
    if isinstance(header.get("system"), str) and header["system"]:
        yield {"source": "system", "message": well_formed(header["system"])}
    for item in model.items:
        if isinstance(item, Turn):
            for part in item.items:
                if isinstance(part, Step):
                    yield from _step(part, item)
                elif isinstance(part, Said):
                    yield _said(part, item)
        elif isinstance(item, Said):
            yield _said(item, None)


def _step(step: Step, turn: Turn) -> Iterator[Json]:
    """Yield what was put into a step, then the answer with its calls and what came of them."""
    spoken = [item for item in step.items if isinstance(item, Said)]
    for said in spoken:
        if said.role != "assistant":
            yield _said(said, turn)
    answers = [said for said in spoken if said.role == "assistant"]
    if not answers and not step.calls:
        return
    yield {**_answer(step, answers), **_copied(turn)}


def _answer(step: Step, answers: list[Said]) -> Json:
    blocks = [block for said in answers for block in said.blocks]
    result: Json = {
        **_when(step.answer_time or step.time),
        "source": "agent",
        "message": plain_text(blocks),
    }
    if step.model:
        result["model_name"] = step.model
    thought = "\n".join(str(b.get("text") or "") for b in blocks if b.get("type") == "reasoning")
    if thought:
        result["reasoning_content"] = well_formed(thought)
    if step.calls:
        result["tool_calls"] = [_call(call) for call in step.calls]
        if results := [_result(call) for call in step.calls if call.result is not None]:
            result["observation"] = {"results": results}
    if step.usage:
        result["metrics"] = _metrics(step.usage)
    if any(said.draft or said.cut for said in answers):
        result["extra"] = {"interrupted": True}
    return result


def _copied(turn: Turn | None) -> Json:
    return {"is_copied_context": True} if turn is not None and turn.inherited else {}


def _said(said: Said, turn: Turn | None) -> Json:
    person = said.role == "user" and said.kind == "user"
    source = "user" if person else "agent" if said.role == "assistant" else "system"
    step: Json = {**_when(said.time), "source": source, "message": plain_text(said.blocks)}
    if not person:
        step["extra"] = {"kind": said.kind}
    return {**step, **_copied(turn)}


def _call(call: Call) -> Json:
    arguments: Any = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    found: Json = {"tool_call_id": well_formed(call.id), "function_name": call.name}
    if isinstance(arguments, dict):
        found["arguments"] = arguments
    else:
        found["arguments"] = {}
        found["extra"] = {"raw_arguments": call.arguments}
    return found


def _result(call: Call) -> Json:
    found: Json = {
        "source_call_id": well_formed(call.id),
        "content": plain_text(call.result or []),
        "extra": {"fate": call.fate},
    }
    if call.code:
        found["extra"]["code"] = call.code
    if call.repaired:
        found["extra"]["written_by"] = "recovery"
    return found


def _metrics(usage: dict[str, int]) -> Json:
    cached = usage.get("cacheReadTokens", 0)
    metrics: Json = {
        "prompt_tokens": tokens_in(usage),
        "completion_tokens": usage.get("outputTokens", 0),
    }
    if cached:
        metrics["cached_tokens"] = cached
    extra = {name: usage[name] for name in USAGE[3:] if usage.get(name)}
    if extra:
        metrics["extra"] = extra
    return metrics


def _total(usage: dict[str, int], steps: int) -> Json:
    metrics = _metrics(usage)
    total: Json = {
        "total_prompt_tokens": metrics["prompt_tokens"],
        "total_completion_tokens": metrics["completion_tokens"],
    }
    if "cached_tokens" in metrics:
        total["total_cached_tokens"] = metrics["cached_tokens"]
    return {**total, "total_steps": steps}


def _when(time: Any) -> Json:
    text = times.rfc3339(time)
    return (
        {"timestamp": text}
        if text.endswith("Z") and len(text) == len("2026-08-21T09:00:00.000Z")
        else {}
    )
