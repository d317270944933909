"""Short ways to write events, as a client sends them and as a log has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Event = dict[str, Any]


def stored(events: Iterable[Event], first_seq: int = 0, time: int = 1000) -> list[Event]:
    """Return events as a log has them: numbered, ten milliseconds apart, surface types appended."""
    log: list[Event] = []
    for place, event in enumerate(events):
        seq = first_seq + place
        whole = {"type": event["type"], "seq": seq, "time": time + 10 * place}
        whole["data"] = event["data"]
        whole |= {key: event[key] for key in event if key not in whole}
        if event["type"] in {"user/message", "assistant/message", "tool/result"}:
            whole.setdefault("surfaceOp", "append")
        log.append(whole)
    return log


def turn_start(turn: Any = 1) -> Event:
    """Return the start of a turn."""
    return {"type": "turn/start", "data": {"turn": turn}}


def turn_end(turn: Any = 1, kind: str = "completed") -> Event:
    """Return the end of a turn for a reason without details."""
    return {"type": "turn/end", "data": {"turn": turn, "reason": {"kind": kind}}}


def step_start(step: Any = 1, turn: Any = 1) -> Event:
    """Return the start of a step."""
    return {"type": "step/start", "data": {"turn": turn, "step": step}}


def step_end(step: Any = 1, turn: Any = 1) -> Event:
    """Return the end of a step."""
    return {"type": "step/end", "data": {"turn": turn, "step": step}}


def user(text: str = "hello", **marks: Any) -> Event:
    """Return a user's message."""
    data = {
        "id": f"u-{text}",
        "role": "user",
        "content": [{"type": "text", "text": text}],
        "source": {"kind": "user"},
    }
    return {"type": "user/message", "data": data, **marks}


def request_header() -> Event:
    """Return a request header of a provider and a model."""
    header = {"config": {"provider": "p", "model": "m"}}
    return {"type": "request/header", "data": {"header": header, "reason": "initial"}}


def chunk(text: str = "a", step: Any = 1, turn: Any = 1) -> Event:
    """Return a piece of streamed text."""
    piece = {"type": "text-delta", "index": 0, "text": text}
    return {"type": "assistant/chunk", "data": {"turn": turn, "step": step, "chunk": piece}}


def assistant(*call_ids: str, step: Any = 1, turn: Any = 1, **marks: Any) -> Event:
    """Return an answer that asks for calls of the tool `t`."""
    blocks: list[Event] = [{"type": "text", "text": "answer"}]
    blocks += [
        {"type": "tool-call", "id": call_id, "name": "t", "arguments": f'{{"for":"{call_id}"}}'}
        for call_id in call_ids
    ]
    message = {
        "id": f"a-{turn}-{step}",
        "role": "assistant",
        "content": blocks,
        "source": {"kind": "model", "provider": "p", "model": "m"},
    }
    data = {"turn": turn, "step": step, "message": message}
    return {"type": "assistant/message", "data": data, **marks}


def tool_call(call_id: str = "a", step: Any = 1, turn: Any = 1) -> Event:
    """Return the start of a call that `assistant` asks for."""
    data = {
        "turn": turn,
        "step": step,
        "callId": call_id,
        "name": "t",
        "arguments": f'{{"for":"{call_id}"}}',
    }
    return {"type": "tool/call", "data": data}


def tool_result(call_id: str = "a", step: Any = 1, turn: Any = 1, **marks: Any) -> Event:
    """Return the result of a call."""
    block = {
        "type": "tool-result",
        "toolCallId": call_id,
        "content": [{"type": "text", "text": "done"}],
        "isError": False,
    }
    message = {
        "id": f"r-{call_id}",
        "role": "user",
        "source": {"kind": "tool", "callId": call_id},
        "content": [block],
    }
    data = {"turn": turn, "step": step, "message": message}
    return {"type": "tool/result", "data": data, **marks}


def dispatch_start(call_id: str = "n", parent: str = "a", root: str = "a") -> Event:
    """Return the start of a nested call."""
    data = {
        "rootCallId": root,
        "parentCallId": parent,
        "subCallId": call_id,
        "name": "sub",
        "arguments": {"x": 1},
    }
    return {"type": "tool/code-dispatch-start", "data": data}


def dispatch_end(call_id: str = "n", parent: str = "a", root: str = "a") -> Event:
    """Return the end of the nested call that `dispatch_start` starts."""
    event = dispatch_start(call_id, parent, root)
    event["data"] |= {"isError": False, "content": []}
    return {**event, "type": "tool/code-dispatch"}


def title(text: str = "a title") -> Event:
    """Return a title of the session."""
    data: Event = {"title": text, "messageSeqs": [], "source": {"kind": "user"}}
    return {"type": "session/title", "data": data}


END_SEED: Event = {"type": "session/end-seed", "data": {}}
