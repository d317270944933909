from __future__ import annotations

import copy
from typing import Any

import pytest

from dsh_protocol.errors import EventInvalidError, SeqConflictError
from dshd.sessions import rules
from dshd.sessions.closers import closers
from dshd.sessions.fold import Fold
from support.events import (
    END_SEED,
    assistant,
    chunk,
    dispatch_end,
    dispatch_start,
    request_header,
    step_end,
    step_start,
    stored,
    title,
    tool_call,
    tool_result,
    turn_end,
    turn_start,
    user,
)
from support.folds import folded, state

NOW = 1_800_000_000_000
Event = dict[str, Any]

OPEN = [turn_start(), step_start(), user(), request_header()]
ASKED = [*OPEN, assistant("a", "b")]
STARTED = [*ASKED, tool_call("a")]


def after(*events: Event) -> Fold:
    """Return a fold of events that a client appended."""
    fold = Fold()
    rules.admit(fold, events, NOW)
    return fold


def refused(fold: Fold, *events: Any) -> EventInvalidError:
    """Return why the events are refused; the fold must be as it was."""
    before = state(fold)
    with pytest.raises(EventInvalidError) as caught:
        rules.admit(fold, events, NOW)
    assert state(fold) == before
    return caught.value


def rule(fold: Fold, *events: Any) -> str:
    """Return the rule that the last of the events breaks."""
    error = refused(fold, *events)
    assert error.facts["index"] == len(events) - 1
    found: str = error.facts["rule"]
    return found


def replacing(event: Event, start: int, end: int, *sources: int) -> Event:
    op = {"op": "replace", "start": start, "end": end}
    return event | {"surfaceOp": op, "sourceEventSeqs": list(sources)}


def changed(event: Event, **data: Any) -> Event:
    return {**event, "data": {**event["data"], **data}}


# completing


def test_an_event_is_completed_in_the_written_order_of_its_keys() -> None:
    sent = {
        "ignorable": True,
        "data": user()["data"],
        "sourceEventSeqs": [0],
        "type": "user/message",
    }
    event = rules.complete(sent, 7, NOW)
    assert list(event.items())[:3] == [("type", "user/message"), ("seq", 7), ("time", NOW)]
    assert list(event)[3:] == ["data", "sourceEventSeqs", "surfaceOp", "ignorable"]
    assert event["surfaceOp"] == "append"
    assert rules.complete({"data": None, "type": "plan/mode"}, 0, NOW) == {
        "type": "plan/mode",
        "seq": 0,
        "time": NOW,
        "data": None,
    }


def test_a_time_that_is_given_is_kept() -> None:
    assert rules.complete({**title(), "time": 5}, 0, NOW)["time"] == 5
    whole = rules.complete({**title(), "time": 5.0}, 0, NOW)["time"]
    assert (whole, type(whole)) == (5, int)


@pytest.mark.parametrize(
    "sent",
    [
        None,
        1,
        [],
        "turn/start",
        {},
        {"type": "session/title"},
        {"data": {}},
        {"type": "", "data": {}},
        {"type": 1, "data": {}},
        {**title(), "extra": 1},
        {**title(), "time": None},
        {**title(), "time": True},
        {**title(), "time": 0.5},
        {**title(), "time": -1},
        {**title(), "time": 10**18},
        {**title(), "seq": None},
        {**title(), "seq": True},
        {**title(), "seq": "0"},
        {**title(), "ignorable": False},
        {**title(), "ignorable": 1},
    ],
)
def test_a_malformed_envelope_is_refused(sent: Any) -> None:
    assert rule(Fold(), sent) == "invalid-envelope"


def test_a_seq_that_is_given_must_be_the_right_one() -> None:
    fold = after(turn_start())
    with pytest.raises(SeqConflictError) as caught:
        rules.admit(fold, [{**step_start(), "seq": 1}, {**user(), "seq": 1}], NOW)
    assert caught.value.facts == {"index": 1, "expected": 2, "got": 1}
    assert fold.next_seq == 1
    rules.admit(fold, [{**step_start(), "seq": 1}], NOW)


def test_a_refusal_says_which_event_and_why() -> None:
    error = refused(Fold(), turn_start(), title(), step_start(2))
    assert error.facts == {"index": 2, "rule": "step-number"}
    assert error.message.startswith("event 2 ('step/start') is refused: ")
    with pytest.raises(EventInvalidError) as caught:
        rules.admit(Fold(), [title(), turn_end()], NOW, 3)
    assert caught.value.facts["index"] == 4


# the vocabulary


def test_an_unknown_type_must_say_that_it_can_be_ignored() -> None:
    unknown = {"type": "acme/thing", "data": 1}
    assert rule(Fold(), unknown) == "unknown-event-type"
    (event,) = rules.admit(Fold(), [{**unknown, "ignorable": True}], NOW)
    assert event["ignorable"] is True
    marked = {**unknown, "ignorable": True, "surfaceOp": "append"}
    assert rule(Fold(), marked) == "surface-op-on-log-only"
    long = {"type": "x" * 1000, "data": 1, "ignorable": True}
    assert len(refused(Fold(), long).message) < 300


@pytest.mark.parametrize("kind", ["text-chunks", "reasoning-chunks", "tool-call-chunks", "session"])
def test_a_type_that_would_be_read_back_as_a_row_is_refused(kind: str) -> None:
    assert rule(Fold(), {"type": kind, "data": {}, "ignorable": True}) == "reserved-type"


@pytest.mark.parametrize("kind", ["mode/set", "request/header-delta"])
def test_retired_types_are_refused_though_they_claim_to_be_ignorable(kind: str) -> None:
    assert "retired" in rule(Fold(), {"type": kind, "data": {}, "ignorable": True})


@pytest.mark.parametrize(
    "kind",
    [
        "agent/inbox/spliced",
        "approval/policy",
        "command/run",
        "compaction/start",
        "feedback/record",
        "goal/change",
        "hook/result",
        "permission/preset",
        "sandbox/mode",
        "schedule/change",
        "session/title",
        "subagent/descriptor",
        "team/member",
        "todo/write",
    ],
)
def test_what_is_not_bound_to_a_turn_may_come_at_any_time(kind: str) -> None:
    event: Event = {"type": kind, "data": {}}
    for fold in (Fold(), after(turn_start()), after(*ASKED), after(*STARTED)):
        rules.admit(fold, [event], NOW)


# turns and steps


def test_turns_and_steps_are_numbered_from_one_without_gaps() -> None:
    fold = Fold()
    for turn in (1, 2):
        for wrong in (turn - 1, turn + 1, None, str(turn), True if turn == 1 else 2.5):
            assert rule(fold, turn_start(wrong)) == "turn-number"
        rules.admit(fold, [turn_start(turn)], NOW)
        for step in (1, 2):
            assert rule(fold, step_start(step + 1, turn)) == "step-number"
            rules.admit(fold, [step_start(step, turn), step_end(step, turn)], NOW)
        rules.admit(fold, [turn_end(turn)], NOW)


def test_what_is_open_must_be_closed_first_and_what_is_closed_cannot_be() -> None:
    in_turn, in_step = after(turn_start()), after(turn_start(), step_start())
    assert rule(in_turn, turn_start(2)) == "turn-open"
    assert rule(in_step, step_start(2)) == "step-open"
    assert rule(in_step, turn_end()) == "step-open"
    assert rule(in_turn, step_end()) == "no-open-step"
    assert rule(Fold(), step_start()) == "no-open-turn"
    assert rule(Fold(), step_end()) == "no-open-turn"
    assert rule(Fold(), turn_end()) == "no-open-turn"


def test_ends_name_what_is_open() -> None:
    assert rule(after(turn_start()), turn_end(2)) == "wrong-turn"
    assert rule(after(turn_start()), turn_end(turn=True)) == "wrong-turn"
    assert rule(after(turn_start(), step_start()), step_end(2)) == "wrong-step"
    assert rule(after(turn_start(), step_start()), step_end(1, 2)) == "wrong-turn"
    assert rule(after(turn_start()), step_start(1, 2)) == "wrong-turn"


@pytest.mark.parametrize(
    "reason",
    [
        {"kind": "completed"},
        {"kind": "blocked"},
        {"kind": "max-tokens"},
        {"kind": "acme-budget", "spent": 3},
        {"kind": "aborted", "reason": {"kind": "user"}},
        {"kind": "error", "error": {"message": "no", "code": "X", "status": 500}},
    ],
)
def test_a_turn_ends_for_a_reason(reason: Any) -> None:
    fold = after(turn_start())
    rules.check_turn_end(fold, reason)
    rules.admit(fold, [changed(turn_end(), reason=reason)], NOW)
    assert fold.open_turn is None


@pytest.mark.parametrize(
    ("reason", "broken"),
    [
        (None, "turn-reason"),
        ("completed", "turn-reason"),
        ({}, "turn-reason"),
        ({"kind": ""}, "turn-reason"),
        ({"kind": "aborted"}, "turn-reason"),
        ({"kind": "aborted", "reason": "user"}, "turn-reason"),
        ({"kind": "error", "error": {"code": "X"}}, "turn-reason"),
        ({"kind": "error", "step": 1, "message": "no"}, "turn-reason"),
        ({"kind": "interrupted"}, "closer"),
    ],
)
def test_a_reason_of_another_shape_is_refused(reason: Any, broken: str) -> None:
    fold = after(turn_start())
    assert rule(fold, changed(turn_end(), reason=reason)) == broken
    with pytest.raises(EventInvalidError) as caught:
        rules.check_turn_end(fold, reason)
    assert caught.value.facts["rule"] == broken


def test_what_the_daemon_writes_no_client_may() -> None:
    assert rule(Fold(), END_SEED) == "end-seed"
    closing = closers(after(*STARTED))
    assert rule(after(*STARTED), closing[0]) == "closer"
    not_started = changed(tool_result("a"), error={"name": "X", "code": "TOOL_NOT_STARTED"})
    assert rule(after(*STARTED), not_started) == "closer"


def test_data_that_is_no_object_is_refused_where_it_is_looked_at() -> None:
    for kind in ("turn/start", "assistant/chunk", "user/message", "tool/call", "request/context"):
        assert rule(Fold(), {"type": kind, "data": None}) == "data-not-object"


# inside a step


def test_chunks_and_answers_belong_to_the_open_step() -> None:
    for make in (chunk, assistant, tool_call, tool_result):
        assert rule(Fold(), make()) == "no-open-turn"
        assert rule(after(turn_start()), make()) == "no-open-step"
        assert rule(after(*OPEN), make(step=2)) == "wrong-step"
        assert rule(after(*OPEN), make(turn=2)) == "wrong-turn"
        assert rule(after(*OPEN), make(turn=True)) == "wrong-turn"
        assert rule(after(*OPEN), make(step=None)) == "wrong-step"


def test_requests_belong_to_the_open_turn() -> None:
    context = {"type": "request/context", "data": {"provider": "p", "model": "m"}}
    for event in (request_header(), context):
        assert rule(Fold(), event) == "no-open-turn"
        rules.admit(after(turn_start()), [event], NOW)
        rules.admit(after(turn_start(), step_start()), [event], NOW)


@pytest.mark.parametrize(
    ("piece", "broken"),
    [
        (None, "chunk-shape"),
        ({}, "chunk-shape"),
        ({"type": 1}, "chunk-shape"),
        ({"type": "text-delta", "index": -1, "text": "a"}, "chunk-index"),
        ({"type": "text-delta", "index": 0.5, "text": "a"}, "chunk-index"),
        ({"type": "reasoning-delta", "index": True, "text": "a"}, "chunk-index"),
        ({"type": "reasoning-delta", "text": "a"}, "chunk-index"),
        ({"type": "tool-call-delta", "index": 0, "id": "", "argumentsDelta": ""}, "chunk-call-id"),
    ],
)
def test_a_chunk_that_would_not_unpack_everywhere_is_refused(piece: Any, broken: str) -> None:
    assert rule(after(*OPEN), changed(chunk(), chunk=piece)) == broken


def test_other_chunks_are_not_looked_into() -> None:
    for piece in ({"type": "finish", "reason": {"kind": "stop"}}, {"type": "acme", "index": -1}):
        rules.admit(after(*OPEN), [changed(chunk(), chunk=piece)], NOW)


# calls and results


def test_calls_start_and_results_arrive_in_any_order() -> None:
    fold = after(*OPEN, assistant("a", "b", "c"))
    order = [tool_call("c"), tool_call("a"), tool_result("a"), tool_call("b"), tool_result("c")]
    rules.admit(fold, [*order, tool_result("b"), step_end(), turn_end()], NOW)


def test_a_result_needs_a_started_call() -> None:
    error = refused(after(*STARTED), tool_result("b"))
    assert error.facts == {
        "index": 0,
        "rule": "call-not-started",
        "callSeq": None,
        "resultSeq": None,
    }
    assert rule(after(*STARTED), tool_result("z")) == "call-not-asked"


def test_a_call_is_answered_once() -> None:
    fold = after(*STARTED, tool_result("a"))
    error = refused(fold, tool_result("a"))
    assert error.facts == {"index": 0, "rule": "call-answered", "callSeq": 5, "resultSeq": 6}


def test_a_call_is_started_once_as_it_was_asked_for() -> None:
    fold = after(*STARTED)
    error = refused(fold, tool_call("a"))
    assert error.facts == {"index": 0, "rule": "call-started", "callSeq": 5, "resultSeq": None}
    assert rule(fold, tool_call("z")) == "call-not-asked"
    assert rule(fold, changed(tool_call("b"), name="other")) == "call-differs"
    assert rule(fold, changed(tool_call("b"), arguments='{"for": "b"}')) == "call-differs"
    assert rule(fold, changed(tool_call("b"), arguments={"for": "b"})) == "call-differs"
    assert rule(fold, changed(tool_call("b"), callId=None)) == "call-not-asked"
    rules.admit(fold, [tool_result("a")], NOW)
    assert rule(fold, tool_call("a")) == "call-answered"


def test_no_step_ends_over_an_unanswered_call() -> None:
    for fold in (after(*ASKED), after(*STARTED), after(*STARTED, tool_result("a"))):
        assert rule(fold, step_end()) == "call-unanswered"


@pytest.mark.parametrize("make", [user, assistant])
def test_no_message_comes_between_calls_and_their_results(make: Any) -> None:
    for fold in (after(*ASKED), after(*STARTED), after(*STARTED, tool_result("a"))):
        assert rule(fold, make()) == "message-before-result"
    done = [tool_result("a"), tool_call("b"), tool_result("b")]
    rules.admit(after(*STARTED), [*done, make()], NOW)


def test_call_ids_are_unique_in_a_step_and_free_again_in_the_next() -> None:
    assert rule(after(*OPEN), assistant("a", "a")) == "call-id-repeated"
    fold = after(*OPEN, assistant("a"), tool_call("a"), tool_result("a"))
    assert rule(fold, assistant("a")) == "call-id-repeated"
    again = [assistant("a", step=2), tool_call("a", step=2), tool_result("a", step=2), step_end(2)]
    rules.admit(fold, [step_end(), step_start(2), *again, turn_end()], NOW)
    rules.admit(fold, [turn_start(2), step_start(1, 2), assistant("a", turn=2)], NOW)


@pytest.mark.parametrize("key", ["id", "name", "arguments"])
def test_a_call_that_could_never_be_started_is_not_asked_for(key: str) -> None:
    values: list[Any] = [None, 1, "" if key == "id" else {}]
    for value in values:
        event = copy.deepcopy(assistant("a"))
        event["data"]["message"]["content"][1][key] = value
        assert rule(after(*OPEN), event) == "call-block"


def test_a_call_of_a_closed_step_stays_answered() -> None:
    fold = after(*OPEN, assistant("a"), tool_call("a"), tool_result("a"), step_end(), step_start(2))
    error = refused(fold, tool_call("a", step=2))
    assert error.facts == {"index": 0, "rule": "call-answered", "callSeq": 5, "resultSeq": 6}
    assert rule(fold, tool_result("a", step=2)) == "call-not-asked"


# replacements


def test_a_compaction_may_replace_what_stands_before_an_unanswered_call() -> None:
    fold = after(*STARTED)
    rules.admit(fold, [replacing(user("short"), 2, 2, 2)], NOW)
    for start, end, sources in ((6, 4, (6, 4)), (4, 4, (4,))):
        assert rule(fold, replacing(user("x"), start, end, *sources)) == "message-before-result"


def test_a_compaction_needs_no_turn() -> None:
    fold = after(*OPEN, assistant(), step_end(), turn_end())
    rules.admit(fold, [replacing(user("short"), 2, 4, 2, 4)], NOW)
    assert fold.surface.nodes == [7]
    assert fold.surface.generation == 1


def test_a_rewritten_result_changes_its_content_alone() -> None:
    fold = after(*STARTED, tool_result("a"))
    rewrite = replacing(copy.deepcopy(tool_result("a")), 6, 6, 6)
    rewrite["data"]["message"]["content"][0]["content"] = []
    drifted = copy.deepcopy(rewrite)
    drifted["data"]["message"]["content"][0]["isError"] = True
    assert rule(fold, drifted) == "result-rewrite-drift"
    assert rule(fold, replacing(tool_result("a"), 4, 4, 4)) == "result-rewrite-target"
    rules.admit(fold, [rewrite], NOW)
    assert list(fold.pending) == ["b"]


def test_a_rewrite_never_answers_a_call_of_the_same_id() -> None:
    first = [*OPEN, assistant("a"), tool_call("a"), tool_result("a"), step_end()]
    fold = after(*first, step_start(2), assistant("a", step=2))
    rewrite = replacing(tool_result("a"), 6, 6, 6)
    assert rule(fold, rewrite) == "rewrite-of-unanswered-call"


def test_a_result_that_recovery_wrote_may_be_rewritten() -> None:
    fold = after(*STARTED)
    closing = closers(fold)
    for event in closing:
        fold.apply(event)
    result = copy.deepcopy(closing[0])
    seq = result.pop("seq")
    result["data"]["message"]["content"][0]["content"] = []
    rules.admit(fold, [replacing(result, seq, seq, seq)], NOW)


def test_surface_marks_are_those_that_load() -> None:
    assert rule(Fold(), user(surfaceOp=None)) == "surface-op-invalid"
    assert rule(Fold(), user(surfaceOp={"op": "append"})) == "surface-op-invalid-replace"
    assert rule(Fold(), user(sourceEventSeqs=[])) == "sources-empty"
    assert rule(Fold(), user(sourceEventSeqs=[0])) == "sources-not-earlier"
    assert rule(Fold(), {**title(), "surfaceOp": "append"}) == "surface-op-on-log-only"
    assert rule(Fold(), replacing(user(), 0, 0, 0)) == "replace-start-missing"
    odd = tool_result("a", surfaceOp={"op": "replace", "start": [], "end": {}})
    assert rule(after(*STARTED), {**odd, "type": "user/message"}) != ""
    assert rule(after(*ASKED), user(surfaceOp={"op": "replace", "end": []})) != ""


@pytest.mark.parametrize(
    ("event", "broken"),
    [
        (changed(user(), id=""), "message-unidentified"),
        (changed(user(), content="hello"), "message-content"),
        (changed(assistant(), message={}), "message-unidentified"),
        (changed(request_header(), header={"config": {}}), "request-header-lacks-provider-model"),
        (changed(request_header(), reason="fallback"), None),
        (changed(turn_start(), trigger={"kind": "x"}), None),
    ],
)
def test_message_shapes_are_those_that_load(event: Event, broken: str | None) -> None:
    fold = Fold() if event["type"] == "turn/start" else after(*OPEN)
    found = rule(fold, event)
    assert broken is None or found == broken


# nested dispatches


def test_nested_dispatches_start_under_a_running_call_and_settle_once() -> None:
    fold = after(*STARTED)
    rules.admit(fold, [dispatch_start("n"), dispatch_start("m", parent="n")], NOW)
    assert rule(fold, dispatch_start("n")) == "dispatch-id-repeated"
    assert rule(fold, dispatch_start("b")) == "dispatch-id-repeated"
    assert rule(fold, dispatch_start("o", parent="b", root="b")) == "call-not-started"
    assert rule(fold, dispatch_start("o", parent="z")) == "dispatch-not-started"
    assert rule(fold, changed(dispatch_start("o"), name=None)) == "dispatch-shape"
    assert rule(fold, changed(dispatch_start("o"), subCallId="")) == "dispatch-shape"
    assert rule(fold, changed(dispatch_end("n"), arguments={"x": True})) == "dispatch-differs"
    rules.admit(fold, [dispatch_end("m", parent="n"), dispatch_end("n")], NOW)
    assert rule(fold, dispatch_end("n")) == "dispatch-not-started"
    assert rule(fold, dispatch_start("n")) == "dispatch-id-repeated"
    rules.admit(fold, [tool_result("a")], NOW)
    assert rule(fold, dispatch_start("o")) == "call-not-started"


# what the checkpoints demand


def condition_rule(condition: Any, *arguments: Any) -> str:
    with pytest.raises(EventInvalidError) as caught:
        condition(*arguments)
    found: str = caught.value.facts["rule"]
    return found


def test_a_request_needs_an_open_step_and_a_header_in_force() -> None:
    assert condition_rule(rules.check_request, after(turn_start())) == "no-open-step"
    fold = after(turn_start(), step_start())
    assert condition_rule(rules.check_request, fold) == "no-request-header"
    rules.check_request(after(*OPEN))
    rules.check_request(after(*OPEN, step_end(), turn_end(), turn_start(2), step_start(1, 2)))


def test_a_step_is_checkpointed_when_it_has_ended() -> None:
    assert condition_rule(rules.check_post_step, after(*OPEN)) == "step-open"
    rules.check_post_step(after(*OPEN, step_end()))


def test_a_turn_is_ended_when_its_steps_have() -> None:
    completed = {"kind": "completed"}
    assert condition_rule(rules.check_turn_end, Fold(), completed) == "no-open-turn"
    assert condition_rule(rules.check_turn_end, after(*OPEN), completed) == "step-open"


def test_the_start_of_a_call_is_what_a_client_could_append() -> None:
    fold = after(*ASKED)
    event = rules.tool_call_event(fold, "a", "t", '{"for":"a"}')
    assert event == tool_call("a")
    rules.admit(fold, [event], NOW)
    for call_id, broken, call_seq in (("a", "call-started", 5), ("z", "call-not-asked", None)):
        with pytest.raises(EventInvalidError) as caught:
            rules.tool_call_event(fold, call_id, "t", "{}")
        assert caught.value.facts == {"rule": broken, "callSeq": call_seq, "resultSeq": None}


def test_a_call_that_recovery_answered_is_not_started_again() -> None:
    fold = after(*STARTED)
    for event in closers(fold):
        fold.apply(event)
    for call_id, call_seq, result_seq in (("a", 5, 6), ("b", None, 7)):
        with pytest.raises(EventInvalidError) as caught:
            rules.tool_call_event(fold, call_id, "t", f'{{"for":"{call_id}"}}')
        facts = {"rule": "call-answered", "callSeq": call_seq, "resultSeq": result_seq}
        assert caught.value.facts == facts


def test_a_nested_call_needs_its_outer_call_durable() -> None:
    fold = after(*STARTED)
    event = rules.nested_call_event(fold, ("n", "sub", {"x": 1}), "a", 6)
    assert event == dispatch_start("n")
    call: tuple[str, str, Any] = ("n", "sub", {})
    assert condition_rule(rules.nested_call_event, fold, call, "a", 5) == "call-not-durable"
    assert condition_rule(rules.nested_call_event, fold, call, "b", 9) == "call-not-started"
    assert condition_rule(rules.nested_call_event, Fold(), call, "a", 9) == "call-not-started"
    rules.admit(fold, [event], NOW)
    inner = rules.nested_call_event(fold, ("m", "sub", {"x": 1}), "n", 6)
    assert inner == dispatch_start("m", parent="n")


# after what clients did not write


def test_after_an_odd_log_and_its_closers_the_next_turn_is_the_last_one_plus_one() -> None:
    odd = [turn_start(7), turn_start(3), step_start(9, 5), tool_result("q"), assistant("a", step=2)]
    fold = folded(stored([*odd, user(), tool_call("a")]))
    for event in closers(fold):
        fold.apply(event)
    assert rule(fold, turn_start(8)) == "turn-number"
    rules.admit(fold, [turn_start(4), step_start(1, 4), assistant("a", turn=4)], NOW)


def test_a_call_that_an_earlier_turn_left_dangling_binds_nobody() -> None:
    fold = folded(stored([turn_start(), step_start(), assistant("a"), step_end(), turn_end()]))
    rules.admit(fold, [turn_start(2), step_start(1, 2), user(), assistant("a", turn=2)], NOW)


# the same again


def test_what_is_sent_again_is_the_same_whatever_its_key_order_and_time() -> None:
    event = rules.complete(replacing(user(), 0, 0, 0), 3, NOW)
    sent: Event = dict(reversed(replacing(user(), 0, 0, 0).items()))
    sent |= {"time": 1, "seq": 9, "data": dict(reversed(user()["data"].items()))}
    assert rules.same(event, sent)
    (title_event,) = rules.admit(Fold(), [{**title(), "data": {"a": 1}}], NOW)
    assert rules.same(title_event, {"type": "session/title", "data": {"a": 1.0}})
    assert rules.same(rules.complete(user(), 0, NOW), {**user(), "surfaceOp": "append"})
    assert rules.same(rules.complete({**user(), "surfaceOp": "append"}, 0, NOW), user())


@pytest.mark.parametrize(
    "sent",
    [
        None,
        {"type": "user/message"},
        {**user(), "extra": 1},
        user("other"),
        {**user(), "type": "session/title"},
        user(ignorable=True),
        user(sourceEventSeqs=[0]),
        replacing(user(), 0, 0, 0),
        user(surfaceOp=None),
        changed(user(), more=None),
    ],
)
def test_anything_else_is_not_the_same(sent: Any) -> None:
    assert not rules.same(rules.complete(user(), 0, NOW), sent)


def test_true_is_not_one_when_sent_again() -> None:
    event = rules.complete({"type": "plan/mode", "data": {"active": True}}, 0, NOW)
    assert not rules.same(event, {"type": "plan/mode", "data": {"active": 1}})
    assert rules.same(event, {"type": "plan/mode", "data": {"active": True}})
