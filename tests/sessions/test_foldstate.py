"""A fold that was written down and read again goes on as the one that it was taken from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_protocol.events import SURFACE_TYPES, Header
from dsh_protocol.jsontext import decode_stored
from dshd.sessions.closers import closers, committed_repairs, repairs
from dshd.sessions.fold import Fold
from dshd.sessions.foldstate import VERSION, decode_state, encode_state, take_state
from dshd.sessions.surface import SurfaceDefectError
from support import events as make
from support.folds import folded, state
from support.vectors import vectors

Event = dict[str, Any]
HEADER = Header(id="s", created_at=0)

number = st.integers(1, 3)
odd: st.SearchStrategy[Any] = st.sampled_from([None, "1", 1.5, -1, True, [], {"a": "\ud800"}])
call_id = st.sampled_from(["a", "b", "", "\udc00"])
seq = st.integers(0, 30)


def replacing(event: Event, start: int, end: int, cited: list[int]) -> Event:
    op = {"op": "replace", "start": start, "end": end}
    return {**event, "surfaceOp": op, "sourceEventSeqs": cited}


def events() -> st.SearchStrategy[Event]:
    """Return events as agents append them, and as odd logs hold them."""
    on_surface = st.builds(make.tool_result, call_id) | st.just(make.user())
    nested = st.sampled_from("nm")
    turn = number | odd
    return st.one_of(
        st.builds(make.turn_start, turn),
        st.builds(make.turn_end, turn, st.sampled_from(["completed", "interrupted"])),
        st.builds(make.step_start, turn, number),
        st.builds(make.step_end, turn, number),
        st.lists(call_id, max_size=3).map(asking),
        st.builds(make.tool_call, call_id),
        on_surface,
        st.builds(make.dispatch_start, nested, call_id, call_id),
        st.builds(make.dispatch_end, nested, call_id, call_id),
        st.builds(replacing, on_surface, seq, seq, st.lists(seq, max_size=6)),
        st.sampled_from([make.user(), make.request_header(), make.title(), make.END_SEED]),
    )


def again(fold: Fold) -> Fold:
    found = decode_state(encode_state(take_state(fold)))
    assert found is not None
    return found


def asking(ids: list[str]) -> Event:
    """An answer that asks for these calls."""
    return make.assistant(*ids)


def said(fold: Fold) -> dict[str, Any]:
    """Return what a fold says and what it holds for later."""
    return {
        **state(fold),
        "unsettled": fold.unsettled,
        "surface": fold.surface.contents(),
        "closers": closers(fold),
        "repairs": repairs(fold, HEADER),
        "committed_repairs": committed_repairs(fold, HEADER),
    }


def log_of(found: list[Event], *, close_at: int) -> list[Event]:
    """Return a log of those events that fit, closed by recovery once on the way."""
    fold = Fold()
    log: list[Event] = []

    def take(event: Event) -> None:
        whole = {**event, "seq": fold.next_seq, "time": 1000 + fold.next_seq // 4}
        if event["type"] in SURFACE_TYPES:
            whole.setdefault("surfaceOp", "append")
        try:
            fold.apply(whole)
        except SurfaceDefectError:
            return
        log.append(whole)

    for at, event in enumerate(found):
        if at == close_at:
            for closer in closers(fold):
                fold.apply(closer)
                log.append(closer)
        take(event)
    return log


@settings(max_examples=300, deadline=None)
@given(st.lists(events(), max_size=40), seq, st.data())
def test_a_prefix_written_down_and_the_rest_come_to_what_the_whole_comes_to(
    found: list[Event], close_at: int, data: st.DataObject
) -> None:
    log = log_of(found, close_at=close_at)
    cut = data.draw(st.integers(0, len(log)))
    prefix = folded(log[:cut])
    before = said(prefix)
    resumed = again(prefix)
    assert said(resumed) == before
    for event in log[cut:]:
        resumed.apply(event)
    assert said(resumed) == said(folded(log))
    assert said(prefix) == before  # what is applied to the one does not reach the other


def test_every_recorded_crash_is_closed_alike_by_a_fold_that_was_written_down() -> None:
    cases = sorted((vectors() / "crash").glob("*.json"))
    assert cases
    for path in cases:
        case: dict[str, Any] = json.loads(path.read_text())
        stored: list[Event] = case.get("events") or []
        for cut in range(len(stored) + 1):
            resumed = again(folded(stored[:cut]))
            for event in stored[cut:]:
                resumed.apply(event)
            assert said(resumed) == said(folded(stored)), (path.name, cut)


def test_a_state_that_was_taken_does_not_move_with_its_fold() -> None:
    fold = folded(log_of([make.turn_start(1), make.user()], close_at=99))
    taken = take_state(fold)
    before = encode_state(taken)
    for event in make.stored([make.user("more"), make.title()], first_seq=2):
        fold.apply(event)
    fold.surface.nodes.append(99)
    assert encode_state(taken) == before


def test_every_part_of_a_fold_is_written_down() -> None:
    written = set(take_state(Fold())) - {"version"}
    held = {name.lstrip("_") for name in Fold.__slots__} - {"marks", "replaced"}
    assert written == held


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"version":1}',
        b'{"version":2}',
        b"\xff",
    ],
)
def test_what_is_no_state_of_this_version_is_no_fold(text: bytes) -> None:
    assert decode_state(text) is None


def test_a_state_of_another_version_is_no_fold() -> None:
    text = encode_state(take_state(Fold()))
    assert decode_state(text) is not None
    other = {**decode_stored(text), "version": VERSION + 1}
    assert decode_state(json.dumps(other).encode()) is None
