from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import dshd.sessions.profile
import dshd.sessions.rules
from dsh_protocol.errors import DshdError, EventInvalidError
from dsh_protocol.events import Header
from dshd.sessions import rules
from dshd.sessions.closers import closers, repairs
from dshd.sessions.fold import Fold
from dshd.sessions.messages import derive
from dshd.sessions.refusals import RULES
from support import events as make
from support.folds import folded, state

Event = dict[str, Any]
HEADER = Header(id="s", created_at=0)

number = st.integers(1, 3)
call_id = st.sampled_from("ab")
seq = st.integers(0, 30)


def replacing(event: Event, start: int, end: int, cited: list[int]) -> Event:
    op = {"op": "replace", "start": start, "end": end}
    return {**event, "surfaceOp": op, "sourceEventSeqs": cited}


def asking(call_ids: list[str]) -> Event:
    return make.assistant(*call_ids)


def events_like_an_agents() -> st.SearchStrategy[Event]:
    """Return events that are mostly well-formed and often in the wrong place."""
    on_surface = st.builds(make.tool_result, call_id) | st.just(make.user())
    nested = st.sampled_from("nm")
    return st.one_of(
        st.builds(make.turn_start, number),
        st.builds(make.turn_end, number, st.sampled_from(["completed", "interrupted"])),
        st.builds(make.step_start, number, number),
        st.builds(make.step_end, number, number),
        st.builds(make.chunk, step=number, turn=number),
        st.builds(asking, st.lists(call_id, max_size=3)),
        st.builds(make.tool_call, call_id),
        st.builds(make.tool_result, call_id),
        st.builds(make.dispatch_start, nested, call_id, call_id),
        st.builds(make.dispatch_end, nested, call_id, call_id),
        st.builds(replacing, on_surface, seq, seq, st.lists(seq, max_size=6)),
        st.sampled_from([make.user(), make.request_header(), make.title(), make.END_SEED]),
    )


def likely_next(fold: Fold) -> list[Event]:
    """Return what a well-behaved agent might append now."""
    turn, step = fold.open_turn, fold.open_step
    if turn is None:
        return [make.turn_start(fold.last_turn + 1), make.title(), make.user()]
    if step is None:
        return [make.step_start(fold.last_step + 1, turn), make.turn_end(turn), make.user()]
    found = [make.chunk(step=step, turn=turn), make.request_header()]
    for call in fold.pending.values():
        started = call.call_seq is not None
        found.append((make.tool_result if started else make.tool_call)(call.call_id, step, turn))
    if not fold.pending:
        answers = [make.assistant(*ids, step=step, turn=turn) for ids in ("", "a", "ab", "ba")]
        found += [make.step_end(step, turn), *answers, make.user()]
    return found


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_admitted_folds_anew_to_the_same_and_can_always_be_closed(
    data: st.DataObject,
) -> None:
    fold, log = Fold(), list[Event]()
    for _ in range(data.draw(st.integers(1, 25))):
        events: list[Event] = [data.draw(st.sampled_from(likely_next(fold)))]
        events += data.draw(st.lists(events_like_an_agents(), max_size=1))
        before, sent = state(fold), copy.deepcopy(events)
        refused: EventInvalidError | None = None
        try:
            log += rules.admit(fold, events, 1000)
        except EventInvalidError as error:
            refused = error
        if refused is not None:
            assert state(fold) == before
            assert refused.facts["index"] < len(events)
            assert refused.facts["rule"]
        assert events == sent
        assert all(event["seq"] == place for place, event in enumerate(log))
        assert state(folded(log)) == state(fold)
    for length in {0, len(log), data.draw(st.integers(0, len(log)))}:
        check_closing(log[:length])


def check_closing(log: list[Event]) -> None:
    fold = folded(log)
    told = repairs(fold, HEADER)
    closing = closers(fold)
    assert bool(closing) == (fold.open_turn is not None)
    assert len(told) == sum(event["type"] == "tool/result" for event in closing)
    for event in closing:
        fold.apply(event)
    assert fold.open_turn is None
    assert fold.pending == {}
    derive([*log, *closing])
    rules.admit(fold, [make.turn_start(fold.last_turn + 1)], 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(events_like_an_agents(), max_size=12))
def test_an_admitted_log_never_ends_a_step_over_an_open_call(events: list[Event]) -> None:
    fold = Fold()
    asked: dict[str, bool] = {}
    for event in [make.turn_start(), make.step_start(), make.assistant("a", "b"), *events]:
        try:
            (stored,) = rules.admit(fold, [event], 0)
        except DshdError:
            continue
        data = stored["data"]
        if stored["type"] == "assistant/message":
            asked = {block["id"]: False for block in data["message"]["content"][1:]}
        elif stored["type"] == "tool/call":
            assert asked[data["callId"]] is False
            asked[data["callId"]] = True
        elif stored["type"] == "tool/result" and stored["surfaceOp"] == "append":
            assert asked.pop(data["message"]["source"]["callId"]) is True
        elif stored["type"] in {"step/end", "turn/end", "user/message"}:
            assert stored.get("surfaceOp", "append") != "append" or asked == {}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
KINDS = st.sampled_from(
    [
        *(event["type"] for event in (make.turn_start(), make.turn_end(), make.step_start())),
        *(event["type"] for event in (make.user(), make.assistant(), make.tool_result())),
        *("assistant/chunk", "tool/call", "tool/code-dispatch", "tool/code-dispatch-start"),
        *("request/header", "request/context", "step/end", "session/title", "acme/new"),
    ]
)
KEYS = (
    "turn",
    "step",
    "message",
    "chunk",
    "callId",
    "subCallId",
    "reason",
    "header",
    "id",
    "role",
    "source",
    "content",
    "kind",
    "op",
    "start",
    "end",
)
SHAPED = st.recursive(
    JUNK | number | call_id,
    lambda inner: (
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=4) | st.lists(inner, max_size=2)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    KINDS,
    SHAPED,
    st.dictionaries(st.sampled_from(["surfaceOp", "sourceEventSeqs", "time", "seq"]), SHAPED),
)
def test_whatever_is_sent_is_admitted_or_refused_and_nothing_else(
    kind: str, body: Any, marks: dict[str, Any]
) -> None:
    opened = [make.turn_start(), make.step_start(), make.assistant("a", "b"), make.tool_call("a")]
    for opening in ([], opened):
        fold = Fold()
        rules.admit(fold, opening, 0)
        before = state(fold)
        try:
            rules.admit(fold, [{"type": kind, "data": body, **marks}], 0)
        except DshdError:
            assert state(fold) == before


def test_every_rule_that_is_used_is_in_the_table() -> None:
    used: set[str] = set()
    for module in (dshd.sessions.profile, dshd.sessions.rules):
        assert module.__file__ is not None
        used |= set(re.findall(r'refuse\(\s*"([a-z-]+)"', Path(module.__file__).read_text("utf-8")))
    assert used <= RULES.keys()
    assert len(used) > 25
