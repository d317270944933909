from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest

from dsh_client.errors import AnswerUnreadableError, ConnectionLostError
from dsh_client.exchange import Exchange, decode_answer, encode_call
from dsh_protocol.errors import FrameTooLargeError, InvalidParamsError, SessionBusyError


def _reply(call_id: int, result: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": call_id, "result": result}).encode() + b"\n"


def test_answers_reach_the_calls_whose_id_they_carry_in_any_order() -> None:
    exchange = Exchange()
    first, _ = exchange.call("a", {})
    second, _ = exchange.call("b", {})
    exchange.feed(_reply(second.id, "two") + _reply(first.id, "one"))
    assert (first.take(), second.take()) == ("one", "two")


def test_an_answer_that_comes_byte_by_byte_is_one_answer() -> None:
    exchange = Exchange()
    ticket, _ = exchange.call("a", {})
    for byte in _reply(ticket.id, "\u2028 is no end of line"):
        assert exchange.feed(bytes([byte])) == []
    assert ticket.take() == "\u2028 is no end of line"


def test_a_batch_answers_each_of_its_calls() -> None:
    exchange = Exchange()
    tickets = [exchange.call("a", {})[0] for _ in range(3)]
    batch = [{"jsonrpc": "2.0", "id": ticket.id, "result": ticket.id} for ticket in tickets]
    exchange.feed(json.dumps(batch).encode() + b"\n")
    assert [ticket.take() for ticket in tickets] == [1, 2, 3]


def test_an_error_becomes_the_class_of_its_kind_with_its_facts() -> None:
    exchange = Exchange()
    ticket, _ = exchange.call("a", {})
    error = SessionBusyError("busy", holder={"pid": 7}).to_wire()
    exchange.feed(json.dumps({"id": ticket.id, "error": error}).encode() + b"\n")
    with pytest.raises(SessionBusyError) as caught:
        ticket.take()
    assert caught.value.facts == {"holder": {"pid": 7}}


def test_a_cancelled_call_keeps_its_id_so_that_its_late_answer_reaches_nobody_else() -> None:
    exchange = Exchange()
    cancelled, _ = exchange.call("a", {})
    line = exchange.cancel(cancelled)
    assert line is not None
    assert json.loads(line)["params"] == {"id": cancelled.id}
    other, _ = exchange.call("b", {})
    exchange.feed(_reply(cancelled.id, "late") + _reply(other.id, "own"))
    assert other.take() == "own"
    assert exchange.cancel(other) is None


def test_an_answer_to_a_call_that_was_not_made_is_unreadable() -> None:
    with pytest.raises(AnswerUnreadableError, match="not made"):
        Exchange().feed(_reply(9, None))


@pytest.mark.parametrize("line", [b"HTTP/1.1 200 OK", b"\xff", b"7", b'"x"', b"[" * 5000])
def test_what_is_no_answer_is_unreadable(line: bytes) -> None:
    with pytest.raises(AnswerUnreadableError):
        Exchange().feed(line + b"\n")


def test_an_error_without_an_id_fails_every_call_with_what_the_daemon_said() -> None:
    exchange = Exchange()
    ticket, _ = exchange.call("a", {})
    error = FrameTooLargeError("too long", limit="maxLineBytes").to_wire()
    with pytest.raises(AnswerUnreadableError):
        exchange.feed(json.dumps({"id": None, "error": error}).encode() + b"\n")
    with pytest.raises(FrameTooLargeError):
        ticket.take()


def test_a_lost_connection_fails_each_call_with_an_error_of_its_own() -> None:
    exchange = Exchange()
    tickets = [exchange.call("a", {})[0] for _ in range(2)]
    exchange.fail(ConnectionLostError("gone"))
    caught: list[BaseException] = []
    for ticket in tickets:
        with pytest.raises(ConnectionLostError, match="gone") as error:
            ticket.take()
        caught.append(error.value)
    assert caught[0] is not caught[1]


def test_notifications_are_handed_out_and_answer_nothing() -> None:
    line = b'{"jsonrpc":"2.0","method":"session.event","params":{"subscriptionId":"s"}}\n'
    assert Exchange().feed(line) == [("session.event", {"subscriptionId": "s"})]


def test_a_line_over_the_daemons_limit_is_not_sent() -> None:
    exchange = Exchange()
    exchange.max_line_bytes = 100
    with pytest.raises(FrameTooLargeError, match="over the daemon's limit"):
        exchange.call("a", {"text": "x" * 100})
    assert exchange.in_flight == 0


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_what_is_not_json_is_refused_before_it_is_sent(value: object) -> None:
    with pytest.raises(InvalidParamsError, match="not JSON"):
        encode_call("a", {"x": value}, 1)


def test_a_lone_surrogate_is_sent_as_an_escape_for_the_daemon_to_judge() -> None:
    assert b"\\ud800" in encode_call("a", {"x": "\ud800"}, 1)


def test_integers_of_any_length_and_lone_surrogates_are_read() -> None:
    assert decode_answer(b'["\\ud800", ' + b"9" * 5000 + b"]") == ["\ud800", 10**5000 - 1]


def holding_itself() -> list[Any]:
    value: list[Any] = []
    value += [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({1}, "a set"),
        (b"x", "a bytes"),
        (Decimal(1), "a Decimal"),
        (object(), "a object"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (holding_itself(), "nesting without an end"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_what_is_no_json_fails_before_the_wire_and_is_named_with_its_path(
    value: Any, what: str
) -> None:
    exchange = Exchange()
    events = [{"type": "x", "data": {"ok": [1, "\u2028"]}}, {"type": "x", "data": {"bad": value}}]
    with pytest.raises(InvalidParamsError, match=what) as caught:
        exchange.call("session.append", {"id": "s", "events": events})
    assert "params.events[1].data.bad" in str(caught.value)
    assert exchange.in_flight == 0
    exchange.call("session.append", {"id": "s", "events": events[:1]})
