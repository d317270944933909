"""The reader that judges the product's: what it takes for the same."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from support.logs import same


def test_the_same_json_is_the_same_in_any_order_of_keys_and_nothing_else_is() -> None:
    assert same([{"a": 1, "b": ["\ud800", None]}], [{"b": ["\ud800", None], "a": 1}])
    different: tuple[Any, ...] = (0, False, 0.0, -0.0, None, "", "0", [], {}, [0], [False], [[]])
    for one, other in combinations(different, 2):
        assert not same(one, other), (one, other)
        assert not same({"a": one}, {"a": other}), (one, other)
