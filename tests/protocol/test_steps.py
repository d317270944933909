"""A large line is read in steps, and comes to the same as if it had been read at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_protocol import envelope, jsoncount, jsonscan
from dsh_protocol.envelope import Refusal, Request
from dsh_protocol.jsoncount import count_steps, count_values
from dsh_protocol.jsonscan import Bounds, JsonTextError, drain, scan
from dsh_protocol.limits import Limits

LIMITS = Limits()
BOUNDS = Bounds(max_depth=64, max_values=100_000)
STRINGS = st.text(st.sampled_from('a"\\\n,[]{}:é\u2028😀\ud800\udc00'), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=12,
)
SLICES = (1, 2, 3, 5, 7, 64)


def spellings(value: Any) -> list[bytes]:
    return [
        json.dumps(value, separators=(",", ":")).encode(),
        json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "replace"),
    ]


def outcome(text: bytes) -> Any:
    try:
        return scan(text, BOUNDS)
    except JsonTextError as error:
        return (error.rule, error.offset, error.path)


def in_slices(size: int, text: bytes, enough: int) -> tuple[Any, bool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonscan, "SLICE", size)
        patch.setattr(jsoncount, "SLICE", size)
        return outcome(text), drain(count_steps(text, enough)) > enough


@given(VALUES, st.integers(0, 300), st.sampled_from([b"", b'"', b"\\", b",", b"\xff", b"\x00"]))
def test_the_size_of_a_step_changes_nothing(value: Any, at: int, junk: bytes) -> None:
    for sound in spellings(value):
        text = sound[:at] + junk + sound[at:]
        expected, count = outcome(text), count_values(text, 0)
        for size in SLICES:
            for enough in {0, count - 1, count}:
                found, beyond = in_slices(size, text, enough)
                assert found == expected
                if junk == b"":
                    assert beyond == (count > enough)


def call(events: list[Any], separators: tuple[str, str] | None = (",", ":")) -> bytes:
    params = {"id": "s", "writer": "w", "events": events}
    request = {"jsonrpc": "2.0", "id": 7, "method": "session.append", "params": params}
    return json.dumps(request, separators=separators).encode()


@pytest.mark.parametrize("separators", [(",", ":"), None])
@pytest.mark.parametrize(
    "event",
    [
        {"type": "x", "data": {"text": '\\"\n\u2028😀' * 300_000}},
        {"type": "x", "data": {"é" * 700_000: "y" * 700_000}},
        {"type": "x", "data": [{"n": n} for n in range(30_000)]},
    ],
    ids=["a long text", "a long key", "many values"],
)
def test_large_lines_are_read_as_they_were_written(
    event: Any, separators: tuple[str, str] | None
) -> None:
    read = envelope.parse_line(call([event], separators), LIMITS)
    assert isinstance(read, Request)
    assert read.params["events"] == [event]


def test_a_defect_behind_megabytes_is_placed_at_its_event() -> None:
    line = call([{"type": "x", "data": "y" * 2_000_000}, {"type": "x", "data": "?"}])
    for bad, rule in ((b'"\\ud800"', "lone-surrogate"), (b"-0", "negative-zero")):
        refused = envelope.parse_line(line.replace(b'"?"', bad), LIMITS)
        assert isinstance(refused, Refusal)
        assert (refused.id, refused.error.kind) == (7, "EVENT_INVALID")
        assert (refused.error.facts["index"], refused.error.facts["rule"]) == (1, rule)


def test_a_long_string_that_is_no_json_is_no_json() -> None:
    for tail in (b"\\q", b"\x01", b""):
        line = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"' + b"\\n" * 700_000 + tail
        refused = envelope.parse_line(line, LIMITS)
        assert isinstance(refused, Refusal)
        assert refused.error.kind == "PARSE_ERROR"
        assert refused.error.facts["offset"] == len(line) - len(tail)
