from __future__ import annotations

import json

import pytest

from dsh_protocol.calls import (
    BadReplyError,
    Notification,
    Reply,
    encode_call,
    parse_incoming,
    parse_reply,
)
from dsh_protocol.envelope import (
    Request,
    encode_batch,
    encode_error,
    encode_notification,
    encode_result,
    parse_line,
)
from dsh_protocol.errors import SessionBusyError
from dsh_protocol.limits import DEFAULT_LIMITS


def test_a_call_is_one_compact_line_that_the_daemon_takes() -> None:
    line = encode_call(7, "session.stat", {"id": "é\u2028\n"})
    assert (
        line
        == '{"jsonrpc":"2.0","id":7,"method":"session.stat","params":{"id":"é\u2028\\n"}}'.encode()
    )
    assert parse_line(line, DEFAULT_LIMITS) == Request(
        id=7, has_id=True, method="session.stat", params={"id": "é\u2028\n"}
    )


def test_without_an_id_it_is_a_notification() -> None:
    message = parse_line(encode_call(None, "$/cancelRequest", {"id": 1}), DEFAULT_LIMITS)
    assert isinstance(message, Request)
    assert not message.has_id


def test_half_a_surrogate_pair_is_sent_so_that_the_daemon_can_refuse_it_by_name() -> None:
    line = encode_call(1, "session.create", {"cwd": "\ud800"})
    assert b'"\\ud800"' in line


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_carry_is_not_sent(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_call(1, "m", {"x": value})


def test_a_result_an_error_and_a_notification_come_back_as_they_were_sent() -> None:
    assert parse_reply(encode_result(3, {"nextSeq": 1})) == Reply(3, result={"nextSeq": 1})
    reply = parse_reply(encode_error("x", SessionBusyError("busy", holder={"pid": 9})))
    assert isinstance(reply, Reply)
    assert isinstance(reply.error, SessionBusyError)
    assert reply.error.facts == {"holder": {"pid": 9}}
    notice = parse_reply(encode_notification("session.event", {"events": []}))
    assert notice == Notification("session.event", {"events": []})


def test_a_batch_comes_back_in_its_order() -> None:
    line = encode_batch([encode_result(2, {}), encode_result(1, {})])
    assert parse_incoming(line) == [Reply(2, result={}), Reply(1, result={})]
    with pytest.raises(BadReplyError):
        parse_reply(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"7",
        b"[7]",
        b'{"id":1}',
        b'{"id":true,"result":1}',
        b'{"id":1.5,"result":1}',
        b"\xff",
    ],
)
def test_what_is_no_answer_is_told(line: bytes) -> None:
    with pytest.raises(BadReplyError):
        parse_reply(line)


def test_an_answer_with_null_as_its_result_is_one() -> None:
    assert parse_reply(json.dumps({"jsonrpc": "2.0", "id": 1, "result": None}).encode()) == Reply(1)
