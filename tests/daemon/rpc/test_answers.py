"""What is too large for a batch's line costs itself alone."""

from __future__ import annotations

import json
import random
from typing import Any

from dsh_protocol.envelope import CallId, encode_result
from dshd.rpc.answers import Answers

LONGEST = 10_000


def joined(answers: Answers) -> Any:
    line = answers.joined()
    assert line is not None
    assert len(line) <= LONGEST
    return json.loads(line)


def answered(*sizes: int) -> list[int | None]:
    """Put answers of so many characters; return what is left of each, None for an error."""
    answers = Answers(LONGEST)
    for at, size in enumerate(sizes):
        answers.put_call(at, at, encode_result(at, "x" * size))
    found = joined(answers)
    assert [one["id"] for one in found] == list(range(len(sizes)))
    return [len(one["result"]) if "result" in one else None for one in found]


def test_answers_that_fit_stay_as_they_are() -> None:
    assert answered(1, 4000, 5000, 2) == [1, 4000, 5000, 2]


def test_the_largest_are_left_out_whatever_their_place() -> None:
    assert answered(9000, 5, 2000, 7) == [None, 5, 2000, 7]
    assert answered(2000, 5, 7, 9000) == [2000, 5, 7, None]
    assert answered(5, 20_000, 8000, 7000, 6) == [5, None, None, 7000, 6]


def test_of_equal_ones_the_first_stay() -> None:
    assert answered(1, 4000, 4000, 4000, 4000) == [1, 4000, 4000, None, None]


def test_what_is_left_out_is_told_by_its_limit() -> None:
    answers = Answers(LONGEST)
    answers.put_call(0, "first", encode_result("first", {"decision": "DISPATCH"}))
    answers.put_call(1, None, encode_result(None, "x" * LONGEST))
    small, large = joined(answers)
    assert small["result"] == {"decision": "DISPATCH"}
    assert large["id"] is None
    data = {"kind": "FRAME_TOO_LARGE", "retryable": False}
    assert large["error"]["data"] == {**data, "limit": "maxLineBytes", "maximum": LONGEST}


def test_what_is_no_call_is_answered_in_its_place_and_never_left_out() -> None:
    answers = Answers(LONGEST)
    answers.put_call(1, 1, encode_result(1, "x" * 9000))
    answers.put(0, b'{"refused":"%b"}' % (b"y" * 2000))
    assert [list(one) for one in joined(answers)] == [["refused"], ["jsonrpc", "id", "error"]]


def test_no_small_answer_is_lost_in_any_order_and_of_any_sizes() -> None:
    dice = random.Random(7)  # noqa: S311  # no secret
    for _ in range(300):
        sizes = [dice.choice((3, 50, 700, 3000, 9000, 30_000)) for _ in range(dice.randrange(1, 9))]
        found = answered(*sizes)
        kept = [size for size, left in zip(sizes, found, strict=True) if left is not None]
        left_out = [size for size, left in zip(sizes, found, strict=True) if left is None]
        assert kept == [left for left in found if left is not None]
        assert max(kept, default=0) <= min(left_out, default=LONGEST)
        if left_out:
            assert sum(kept) + min(left_out) + 500 * len(sizes) > LONGEST, "it would have fitted"


def test_of_large_answers_no_more_is_kept_than_a_line_holds() -> None:
    answers = Answers(LONGEST)
    ids: list[CallId] = list(range(20))
    for at, call_id in enumerate(ids):
        answers.put_call(at, call_id, encode_result(call_id, "x" * 9000))
        assert len(answers.joined() or b"") <= LONGEST


def test_nothing_is_answered_where_there_is_nothing_to_answer() -> None:
    assert Answers(LONGEST).joined() is None
