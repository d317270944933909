"""What is no JSON never becomes a text: not Python's own objects, not what is not finite, not what has no end."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_protocol.jsonprint import print_json
from dsh_protocol.jsontext import JsonValueError, encode, encode_decoded

decoded = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def holding_itself(kind: type) -> Any:
    value: Any = kind()
    for _ in range(3):  # several ways round, so that no walk may take them all
        if kind is list:
            value.append(value)
        else:
            value[f"k{len(value)}"] = value
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


NO_VALUES: list[tuple[str, Any]] = [
    *((repr(number), number) for number in (math.inf, -math.inf, math.nan)),
    ("set", {1}),
    ("frozenset", frozenset({1})),
    ("bytes", b"x"),
    ("bytearray", bytearray(b"x")),
    ("datetime", datetime(2026, 1, 1, tzinfo=UTC)),
    ("date", date(2026, 1, 1)),
    ("Decimal", Decimal("1.5")),
    ("UUID", UUID(int=1)),
    ("PurePosixPath", PurePosixPath("/x")),
    ("object", object()),
    ("range", range(3)),
    ("4,300 digits", 10**5000),
    ("the key 1", {1: 2}),
    ("the key None", {None: 1}),
    ("the key b", {b"x": 1}),
    ("within itself", holding_itself(list)),
    ("within itself", holding_itself(dict)),
    ("within itself", nested(10_001)),
]


@pytest.mark.parametrize(("named", "value"), NO_VALUES, ids=[name for name, _ in NO_VALUES])
@pytest.mark.parametrize("beside", [(), ("\ud800",), (1.0,), (None,)], ids=repr)
def test_what_is_no_json_value_is_refused_by_what_it_is_and_where(
    named: str, value: Any, beside: tuple[Any, ...]
) -> None:
    with pytest.raises(JsonValueError) as caught:
        encode({"data": [*beside, value]})
    assert named in str(caught.value)
    assert caught.value.path.startswith(f".data[{len(beside)}]")
    with pytest.raises(JsonValueError):
        print_json(value)


@given(decoded)
def test_a_decoded_value_is_printed_alike_with_and_without_the_closer_look(value: Any) -> None:
    assert encode(value) == encode_decoded(value)
