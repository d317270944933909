from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_protocol.events import envelope_defect, message_defect
from dshd.sessions.fold import Fold
from dshd.sessions.messages import derive
from dshd.sessions.surface import Surface, SurfaceDefectError
from dshd.sessions.values import json_digest, json_equal
from support.events import assistant, stored, tool_result, user
from support.logs import sha256
from support.vectors import vectors

if TYPE_CHECKING:
    from collections.abc import Iterable


def apply_until_refused(
    fold: Fold, events: Iterable[dict[str, Any]]
) -> tuple[int, str, list[int]] | None:
    """Return where and why an event is refused, and the surface before it; None where none is."""
    for index, event in enumerate(events):
        before = list(fold.surface.nodes)
        try:
            fold.apply(event)
        except SurfaceDefectError as defect:
            assert fold.surface.nodes == before
            return index, defect.rule, before
    return None


def test_every_recorded_list_of_events_folds_to_the_recorded_surface() -> None:
    cases = json.loads((vectors() / "surface.json").read_bytes())["cases"]
    for case in cases:
        fold, expected = Fold(), case["fold"]
        refused = apply_until_refused(fold, case["events"])
        if expected["accepted"]:
            assert refused is None, case["name"]
            assert fold.surface.nodes == expected["nodes"], case["name"]
            assert fold.surface.generation == len(expected["replacements"]), case["name"]
        else:
            wanted = (expected["at_index"], expected["reason"], expected["nodes_before"])
            assert refused == wanted, case["name"]
    assert len(cases) > 70


def test_every_recorded_list_that_makes_a_session_gives_the_recorded_messages() -> None:
    for case in json.loads((vectors() / "surface.json").read_bytes())["cases"]:
        expected = case["session"]
        events = case["events"]
        defects = [defect for event in events if (defect := envelope_defect(event))]
        defects += [defect for event in events if (defect := message_defect(event))]
        if not expected["accepted"]:
            refused = apply_until_refused(Fold(), events)
            found = [*defects, refused[1] if refused else None]
            assert expected["reason"] in found, case["name"]
            continue
        assert defects == [], case["name"]
        messages = derive(events).messages
        assert messages == expected["messages"], case["name"]
        assert sha256(messages) == expected["messages_sha256"], case["name"]


def test_a_part_of_a_log_folds_from_its_first_seq() -> None:
    for window in json.loads((vectors() / "surface.json").read_bytes())["windows"]:
        fold = Fold(window["base_seq"])
        refused = apply_until_refused(fold, window["events"])
        if window["accepted"]:
            assert refused is None, window["name"]
            assert fold.surface.nodes == window["nodes"], window["name"]
            assert fold.surface.generation == window["replace_generation"], window["name"]
        else:
            assert refused is not None, window["name"]
            assert refused[1] == window["reason"], window["name"]


def test_going_back_restores_appends_replacements_and_what_a_rewrite_is_held_against() -> None:
    surface = Surface()
    log = stored(
        [
            user("one"),
            assistant("a"),
            tool_result("a"),
            tool_result(
                "a", surfaceOp={"op": "replace", "start": 2, "end": 2}, sourceEventSeqs=[2]
            ),
            user("all", surfaceOp={"op": "replace", "start": 0, "end": 1}, sourceEventSeqs=[0, 1]),
            user("after"),
        ]
    )
    surface.apply(log[0])
    outer = surface.mark()
    surface.apply(log[1])
    surface.apply(log[2])
    inner = surface.mark()
    for _ in range(2):
        for event in log[3:]:
            surface.apply(event)
        assert (surface.nodes, surface.generation) == ([4, 3, 5], 2)
        surface.rollback(inner)
        assert (surface.nodes, surface.generation) == ([0, 1, 2], 0)
    surface.rollback(outer)
    assert surface.nodes == [0]
    assert surface.position(0) == 0
    assert surface.position(2) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(JSON, JSON)
def test_values_have_one_digest_exactly_when_they_are_equal(left: Any, right: Any) -> None:
    assert (json_digest(left) == json_digest(right)) == json_equal(left, right)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ({"a": 1, "b": [2]}, {"b": [2.0], "a": 1.0}, True),
        (True, 1, False),
        ([False], [0], False),
        ({"a": {"b": True}}, {"a": {"b": 1}}, False),
        ([], {}, False),
        (["ab"], ["a", "b"], False),
        ([[1], 2], [[1, 2]], False),
        (None, False, False),
        ("\ud800", "\ud800", True),
        ({"a": None}, {}, False),
        (0.5, 0.5, True),
    ],
)
def test_equality_is_that_of_json(left: Any, right: Any, *, equal: bool) -> None:
    assert json_equal(left, right) is equal
    assert json_equal(right, left) is equal
    assert (json_digest(left) == json_digest(right)) is equal


def test_a_digest_is_taken_of_values_nested_deeper_than_the_stack() -> None:
    value: Any = 1
    for _ in range(20_000):
        value = [value]
    assert len(json_digest(value)) == hashlib.blake2b(digest_size=16).digest_size
