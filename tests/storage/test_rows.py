from __future__ import annotations

import hashlib
import json
import random
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_protocol.jsontext import decode_stored, encode
from dshd.storage.jsonl import rows as under_test
from dshd.storage.jsonl.rows import RowDefectError, expand, pack, unpack
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


def test_times_that_are_whole_floats_are_packed_as_integers_are() -> None:
    events = [chunk(k, "x") for k in range(3)]
    rows = pack([{**event, "time": float(event["time"])} for event in events])
    assert len(rows) == 1
    assert [event for row in rows for event in expand(row)] == events


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


def test_a_row_may_hold_two_million_values() -> None:
    assert len(expand(b"[" + b"0," * 1_999_999 + b"0]")[0]) == 2_000_000
    with pytest.raises(RowDefectError) as caught:
        unpack(b"[" + b"0," * 2_000_000 + b"0]")
    assert caught.value.whole, "another program may mean it"


def bare(line: bytes) -> int:
    """Return how many values a row has, counted a character at a time."""
    found, inside, escaped = 0, False, False
    for byte in line:
        found += not inside and byte in b",[{"
        inside ^= byte == ord('"') and not escaped
        escaped = byte == ord("\\") and not escaped
    return found


def test_values_are_counted_right_however_a_row_is_cut_into_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(7)  # noqa: S311  # the same texts every time
    for piece in [*range(1, 12), 1000]:
        monkeypatch.setattr(under_test, "_PIECE", piece)
        for _ in range(25):
            words = ["".join(rng.choices('\\",[{a', k=rng.randrange(9))) for _ in range(4)]
            line = encode([words, {words[0]: [{}, words[1]]}, {"a": {}, "b": 1}, *words, "\\" * 30])
            monkeypatch.setattr(under_test, "_MAX_VALUES", bare(line))
            assert len(expand(line)) == 1
            monkeypatch.setattr(under_test, "_MAX_VALUES", bare(line) - 1)
            with pytest.raises(RowDefectError, match="two million values"):
                unpack(line)


# ---------------------------------------------------------------------- the one permitted shape

TEXTS: dict[str, Any] = {"turn": 1, "step": 2, "index": 3, "dt": [5, -7], "texts": ["a", "b", "c"]}
TOOLS: dict[str, Any] = {**TEXTS, "id": "call", "name": "f", "args": ["a", "b", "c"]}
del TOOLS["texts"]
SAFE = 2**53 - 1


def row(data: Any, kind: str = "text-chunks", **top: Any) -> bytes:
    return encode({"type": kind, "seq0": 4, "time0": 1000, "data": data, **top})


def reason(line: bytes) -> str:
    with pytest.raises(RowDefectError) as caught:
        unpack(line)
    assert not caught.value.whole
    return str(caught.value).removeprefix("packed row: ")


def test_a_packed_row_expands_to_chunks_one_after_the_other() -> None:
    kinds = {"text-chunks": "text-delta", "reasoning-chunks": "reasoning-delta"}
    for kind, delta in kinds.items():
        bodies = [{"type": delta, "index": 3, "text": text} for text in "abc"]
        assert expand(row(TEXTS, kind)) == expected(bodies)
    named = {"type": "tool-call-delta", "index": 3, "id": "call", "name": "f"}
    bodies = [{**named, "argumentsDelta": text} for text in "abc"]
    assert expand(row(TOOLS, "tool-call-chunks")) == expected(bodies)
    assert expand(row({**TEXTS, "dt": [], "texts": [""]}))[0]["seq"] == 4


def expected(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    times = (1000, 1005, 998)
    return [
        {
            "type": "assistant/chunk",
            "seq": 4 + number,
            "time": times[number],
            "data": {"turn": 1, "step": 2, "chunk": body},
        }
        for number, body in enumerate(bodies)
    ]


def without(data: dict[str, Any], *names: str, **more: Any) -> dict[str, Any]:
    return {**{name: value for name, value in data.items() if name not in names}, **more}


TOP: list[dict[str, Any]] = [
    *({"seq0": wrong} for wrong in (-1, 1.5, "0", None)),
    *({"time0": wrong} for wrong in (None, SAFE + 1, True)),
]
KEYS = (without(TEXTS, "turn"), without(TEXTS, more=1), without(TEXTS, name="f"), TOOLS)
TOOL_KEYS = (without(TOOLS, "id"), without(TOOLS, more=1), TEXTS)
LISTS: list[dict[str, Any]] = [{"texts": "abc"}, {"dt": "ab"}, {"dt": None}, {"texts": {}}]
GAPS: list[list[Any]] = [[], [1], [1, 2, 3]]
NAMES: list[dict[str, Any]] = [{"id": 1}, {"name": 1}, {"name": None}, {"id": None}]
NUMBERS: list[tuple[str, Any]] = [
    (name, wrong) for name in ("turn", "step", "index") for wrong in ("1", True, None)
]
WRONG: dict[str, list[bytes]] = {
    "keys other than type, seq0, time0, data": [
        row(TEXTS, more=1),
        b'{"type":"text-chunks","seq0":0,"time0":0}',
    ],
    "seq0, time0 or data of the wrong type": [row([]), *(row(TEXTS, **top) for top in TOP)],
    "data keys": [*map(row, KEYS), *(row(data, "tool-call-chunks") for data in TOOL_KEYS)],
    "turn, step or index": [
        *(row({**TEXTS, name: wrong}) for name, wrong in NUMBERS),
        *(row({**TOOLS, name: wrong}, "tool-call-chunks") for name, wrong in NUMBERS),
    ],
    "members or gaps are not arrays": [row({**TEXTS, **lists}) for lists in LISTS],
    "number of members and of gaps": [
        *(row({**TEXTS, "dt": gaps}) for gaps in GAPS),
        row({**TEXTS, "texts": [], "dt": []}),
    ],
    "a member is not a string": [row({**TEXTS, "texts": ["a", 1, "c"]})],
    "a gap is not an integer": [
        row({**TEXTS, "dt": [1, gap]}) for gap in (1.5, "1", None, True, SAFE + 1)
    ],
    "id or name is not a string": [row({**TOOLS, **names}, "tool-call-chunks") for names in NAMES],
}


def test_a_packed_row_of_any_other_shape_is_refused_with_what_is_wrong() -> None:
    for what, lines in WRONG.items():
        for line in lines:
            assert reason(line) == what, line


def test_seqs_and_times_may_reach_the_last_safe_integer_and_no_further() -> None:
    assert [one["seq"] for one in expand(row(TEXTS, seq0=SAFE - 2))] == [SAFE - 2, SAFE - 1, SAFE]
    assert reason(row(TEXTS, seq0=SAFE - 1)) == "seqs leave the safe range"
    up, down = {**TEXTS, "dt": [2, -1]}, {**TEXTS, "dt": [-2, 1]}
    assert [one["time"] for one in expand(row(up, time0=SAFE - 2))] == [SAFE - 2, SAFE, SAFE - 1]
    assert [one["time"] for one in expand(row(down, time0=2 - SAFE))] == [2 - SAFE, -SAFE, 1 - SAFE]
    for data, time in ((up, SAFE - 1), (down, 1 - SAFE)):
        assert reason(row(data, time0=time)) == "times leave the safe range"


def test_a_whole_number_may_be_written_with_a_point() -> None:
    line = row({**TEXTS, "dt": [5.0, -7]}, seq0=4.0, time0=1000.0)
    assert expand(line) == expand(row(TEXTS))
    assert all(type(one["seq"]) is int and type(one["time"]) is int for one in expand(line))


def test_what_is_no_packed_row_is_the_one_value_that_it_is() -> None:
    for value in (5, [1], "x", None, {}, {"type": 1}, {"type": "turn/end", "seq0": 1}):
        assert expand(encode(value)) == [value]
    assert reason(b"{bad").startswith("not JSON: ")
    with pytest.raises(RowDefectError) as caught:
        unpack(b"1e999")
    assert caught.value.whole, "another program may mean it"


# ---------------------------------------------------------------------- what is packed


def tool(seq: int, **body: Any) -> dict[str, Any]:
    chunk_of = {"type": "tool-call-delta", "index": 0, "id": "call", "argumentsDelta": "x", **body}
    data = {"turn": 1, "step": 1, "chunk": chunk_of}
    return {"type": "assistant/chunk", "seq": seq, "time": 1000 + seq, "data": data}


def packed(events: list[dict[str, Any]]) -> list[int]:
    """Pack a batch. Returns of how many events each row is made."""
    made = pack(events)
    assert [one for line in made for one in expand(line)] == events
    return [len(expand(line)) for line in made]


def test_a_run_is_packed_from_three_on_and_ends_where_anything_differs() -> None:
    assert packed([chunk(seq, "x") for seq in range(2)]) == [1, 1]
    assert packed([chunk(seq, "x") for seq in range(3)]) == [3]
    assert packed([tool(seq) for seq in range(3)]) == [3]
    assert packed([tool(seq, name="f") for seq in range(3)]) == [3]
    assert packed([tool(seq, name="f" if seq < 3 else "g") for seq in range(6)]) == [3, 3]
    assert packed([tool(seq, id="a" if seq < 3 else "b") for seq in range(6)]) == [3, 3]
    assert packed([tool(seq, index=seq // 3) for seq in range(6)]) == [3, 3]
    mixed = [*(tool(seq) for seq in range(3)), *(chunk(seq, "x") for seq in range(3, 6))]
    assert packed(mixed) == [3, 3]
    gap = [*(chunk(seq, "x") for seq in range(3)), *(chunk(seq, "x") for seq in range(4, 7))]
    assert packed(gap) == [3, 3]
    alone: dict[str, Any] = {"type": "llm/retry", "seq": 3, "time": 1, "data": {}}
    assert packed([*gap[:3], alone, *gap[3:]]) == [3, 1, 3]


def changed(path: tuple[str, ...], value: Any, made: Any = chunk) -> list[dict[str, Any]]:
    """Return a run of four whose third has another value somewhere, or None where there is to be none."""
    events = [made(seq, "x") if made is chunk else made(seq) for seq in range(4)]
    place = events[2]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return events


CHUNK = ("data", "chunk")


def test_an_event_that_a_row_could_not_give_back_stands_alone() -> None:
    shapes: list[tuple[tuple[str, ...], Any]] = [
        (("more",), 1),
        (("time",), 1.5),
        (("time",), SAFE + 1),
        (("data", "more"), 1),
        (("data", "turn"), "1"),
        (("data", "step"), True),
        ((*CHUNK, "more"), 1),
        ((*CHUNK, "index"), None),
        ((*CHUNK, "type"), "other-delta"),
    ]
    texts = [*shapes, ((*CHUNK, "text"), 1), ((*CHUNK, "text"), None)]
    for path, value in texts:
        assert packed(changed(path, value)) == [1, 1, 1, 1], path
    tools = [*shapes, *(((*CHUNK, name), 1) for name in ("id", "name", "argumentsDelta"))]
    for path, value in tools:
        assert packed(changed(path, value, tool)) == [1, 1, 1, 1], path


def test_an_event_whose_parts_are_no_objects_stands_alone() -> None:
    values: tuple[Any, ...] = (1, [], "x", {})
    for path in (("data",), CHUNK):
        for value in values:
            assert packed(changed(path, value)) == [1, 1, 1, 1]


def test_events_before_the_first_seq_or_too_far_apart_are_not_packed() -> None:
    early = [chunk(seq, "x") for seq in (-1, 0, 1)]
    assert [expand(line) for line in pack(early)] == [[one] for one in early]
    apart = [
        {**chunk(seq, "x"), "time": time} for seq, time in enumerate((-SAFE, SAFE, SAFE, SAFE))
    ]
    assert packed(apart) == [1, 3]
    close = [{**chunk(seq, "x"), "time": time} for seq, time in enumerate((0, SAFE, 0, -SAFE))]
    assert packed(close) == [4]
