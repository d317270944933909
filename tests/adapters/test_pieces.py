"""A streamed answer of the Responses API, piece by piece, without any framework."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dsh_client.adapters.openai_items import Chunks

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"what":1}'}
SAID = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hello"}],
}


def event(kind: str, **members: Any) -> SimpleNamespace:
    return SimpleNamespace(type=f"response.{kind}", **members)


def test_a_call_tells_its_name_with_its_first_piece_and_nothing_again_at_its_end() -> None:
    chunks = Chunks()
    assert (
        chunks.of(event("output_item.added", output_index=0, item={**CALL, "arguments": ""})) == []
    )
    pieces = [
        chunks.of(event("function_call_arguments.delta", output_index=0, delta=delta))
        for delta in ('{"what"', ":1}")
    ]
    assert pieces == [
        [
            {
                "type": "tool-call-delta",
                "index": 0,
                "id": "c1",
                "argumentsDelta": '{"what"',
                "name": "look",
            }
        ],
        [{"type": "tool-call-delta", "index": 0, "id": "c1", "argumentsDelta": ":1}"}],
    ]
    assert chunks.of(event("output_item.done", output_index=0, item=CALL)) == []


def test_what_came_without_pieces_is_one_piece_at_its_end() -> None:
    chunks = Chunks()
    assert chunks.of(event("output_item.done", output_index=0, item=SAID)) == [
        {"type": "text-delta", "index": 0, "text": "Hello"}
    ]
    (whole,) = chunks.of(event("output_item.done", output_index=1, item=CALL))
    assert (whole["name"], whole["argumentsDelta"]) == ("look", CALL["arguments"])


def test_text_refusals_and_reasoning_are_told_apart_and_other_events_are_nothing() -> None:
    chunks = Chunks()
    told = [
        chunks.of(event(kind, output_index=0, delta="x"))
        for kind in (
            "output_text.delta",
            "refusal.delta",
            "reasoning_summary_text.delta",
            "audio.delta",
        )
    ]
    kinds = [[piece["type"] for piece in pieces] for pieces in told]
    assert kinds == [["text-delta"], ["text-delta"], ["reasoning-delta"], []]
    assert chunks.of(event("created")) == []
