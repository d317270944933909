from __future__ import annotations

import hashlib
import json
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_protocol.jsontext import decode_stored, encode
from dshd.storage.jsonl.rows import RowDefectError, expand, pack
from support.vectors import vectors


def golden(table: str) -> list[dict[str, Any]]:
    text = (vectors() / "packing.json").read_bytes()
    cases: list[dict[str, Any]] = json.loads(text)[table]
    return cases


def test_every_recorded_batch_is_packed_to_the_recorded_rows() -> None:
    for case in golden("encoder"):
        rows = pack(case["events"])
        assert [decode_stored(row) for row in rows] == case["rows"], case["name"]
        text = b"".join(row + b"\n" for row in rows)
        assert hashlib.sha256(text).hexdigest() == case["text_sha256"], case["name"]


def test_every_recorded_row_expands_to_the_recorded_events_or_is_refused() -> None:
    for case in golden("decoder"):
        line = case["line"].encode()
        if "error" in case:
            with pytest.raises(RowDefectError):
                expand(line)
        else:
            assert expand(line) == case["events"], case["name"]
            assert encode(expand(line)) == encode(case["events"]), case["name"]


def chunk(seq: int, text: str) -> dict[str, Any]:
    body = {"type": "text-delta", "index": 0, "text": text}
    data = {"turn": 1, "step": 1, "chunk": body}
    return {"type": "assistant/chunk", "seq": seq, "time": 1000 + seq, "data": data}


def test_without_packing_every_event_is_a_row() -> None:
    events = [chunk(k, "x") for k in range(5)]
    assert pack(events, pack_chunks=False) == [encode(event) for event in events]
    assert len(pack(events)) == 1


numbers = st.one_of(st.integers(0, 2), st.just(1.5))
texts = st.text(max_size=4)
Members: TypeAlias = st.SearchStrategy[dict[str, Any]]
named: dict[str, st.SearchStrategy[Any]] = {"name": st.sampled_from(["", "f"])}
text_delta: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(["text-delta", "reasoning-delta"]),
    "index": numbers,
    "text": texts,
}
tool_delta: dict[str, st.SearchStrategy[Any]] = {
    "type": st.just("tool-call-delta"),
    "index": numbers,
    "id": st.sampled_from(["", "c1"]),
    "argumentsDelta": texts,
}
deltas: Members = st.one_of(
    st.fixed_dictionaries(text_delta), st.fixed_dictionaries(tool_delta, optional=named)
)
steps = st.tuples(numbers, st.integers(-5, 5), deltas, st.booleans())


@given(st.lists(steps, max_size=12))
def test_whatever_is_packed_expands_to_the_same_events(members: list[Any]) -> None:
    events: list[dict[str, Any]] = []
    for seq, (turn, gap, delta, plain) in enumerate(members):
        time = (events[-1]["time"] if events else 1000) + gap
        data = {"turn": turn, "step": 1, "chunk": delta}
        kind = "assistant/chunk" if plain else "llm/retry"
        events.append({"type": kind, "seq": seq, "time": time, "data": data})
    rows = pack(events)
    assert len(rows) <= len(events)
    assert [event for row in rows for event in expand(row)] == events


@pytest.mark.parametrize("text", ["," * 9_000_000, '["\\' * 3_000_000, "{\\" * 3_000_000])
def test_a_large_text_is_not_taken_for_many_values(text: str) -> None:
    event = {"type": "llm/retry", "seq": 0, "time": 1, "data": text}
    assert expand(pack([event])[0]) == [event]


def test_a_row_of_too_many_values_is_refused_before_it_is_read() -> None:
    for row in (b"[" + b"0," * 2_100_000 + b"0]", b'{"x":[' + b'"",' * 2_100_000 + b'""]}'):
        with pytest.raises(RowDefectError, match="two million values"):
            expand(row)
