"""JSON-RPC 2.0 as its own page shows it, and the ids, names and batches that it leaves open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support import events
from wire.shapes import OPENING, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.rpc import Connection

    FreshId = Callable[[], str]

NO_METHOD = {"code": -32601, "kind": "METHOD_NOT_FOUND"}
NO_REQUEST = {"code": -32600, "kind": "INVALID_REQUEST"}
NO_JSON = {"code": -32700, "kind": "PARSE_ERROR"}
NO_PARAMS = {"code": -32602, "kind": "INVALID_PARAMS"}

SUM = '{"jsonrpc":"2.0","method":"sum","params":[1,2,4],"id":"1"}'
HELLO = '{"jsonrpc":"2.0","method":"notify_hello","params":[7]}'
FOO = '{"foo":"boo"}'
GET = '{"jsonrpc":"2.0","method":"foo.get","params":{"name":"myself"},"id":"5"}'

# The examples of the JSON-RPC 2.0 specification, with what this daemon answers to them: none of their methods is here,
# and parameters are taken by name alone. None: nothing is answered.
EXAMPLES: list[tuple[str, Any]] = [
    ('{"jsonrpc":"2.0","method":"subtract","params":[42,23],"id":1}', (1, NO_METHOD)),
    (
        '{"jsonrpc":"2.0","method":"subtract","params":{"subtrahend":23,"minuend":42},"id":3}',
        (3, NO_METHOD),
    ),
    ('{"jsonrpc":"2.0","method":"update","params":[1,2,3,4,5]}', None),
    ('{"jsonrpc":"2.0","method":"foobar"}', None),
    ('{"jsonrpc":"2.0","method":"foobar","id":"1"}', ("1", NO_METHOD)),
    ('{"jsonrpc":"2.0","method":"foobar,"params":"bar","baz]', (None, NO_JSON)),
    ('{"jsonrpc":"2.0","method":1,"params":"bar"}', (None, NO_REQUEST)),
    (
        '[{"jsonrpc":"2.0","method":"sum","params":[1,2,4],"id":"1"},{"jsonrpc":"2.0","method"]',
        (None, NO_JSON),
    ),
    ("[]", (None, NO_REQUEST)),
    ("[1]", [(None, NO_REQUEST)]),
    ("[1,2,3]", [(None, NO_REQUEST)] * 3),
    (
        f"[{SUM},{HELLO},{FOO},{GET}]",
        [("1", NO_METHOD), (None, NO_REQUEST), ("5", NO_METHOD)],
    ),
    (f"[{HELLO},{HELLO}]", None),
]

MORE: list[tuple[str, Any]] = [
    ("1", (None, NO_REQUEST)),
    ("null", (None, NO_REQUEST)),
    ('"text"', (None, NO_REQUEST)),
    ("{}", (None, NO_REQUEST)),
    ('{"jsonrpc":"1.0","id":1,"method":"session.list"}', (1, NO_REQUEST)),
    ('{"jsonrpc":2.0,"id":1,"method":"session.list"}', (1, NO_REQUEST)),
    ('{"id":1,"method":"session.list"}', (1, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":1}', (1, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":1,"method":null}', (1, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":1,"method":["session.list"]}', (1, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":1,"method":"session.list","params":[1]}', (1, NO_PARAMS)),
    ('{"jsonrpc":"2.0","id":1,"method":"session.list","params":"x"}', (1, NO_PARAMS)),
    ('{"jsonrpc":"2.0","id":1,"method":"session.list","params":7}', (1, NO_PARAMS)),
    ('{"jsonrpc":"2.0","id":true,"method":"session.list"}', (None, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":false,"method":"session.list"}', (None, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":{},"method":"session.list"}', (None, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":[1],"method":"session.list"}', (None, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":1.5,"method":"session.list"}', (None, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":1152921504606846976,"method":"session.list"}', (None, NO_REQUEST)),
    (
        '{"jsonrpc":"2.0","id":"' + "x" * 1_000_000 + '","method":"session.list"}',
        (None, NO_REQUEST),
    ),
    ('{"jsonrpc":"2.0","id":"' + "x" * 257 + '","method":"session.list"}', (None, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":"\\ud800","method":"session.list"}', (None, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":1,"id":2,"method":"session.list"}', (None, NO_REQUEST)),
    ('{"jsonrpc":"2.0","id":1,"method":"session.none"}', (1, NO_METHOD)),
    ('{"jsonrpc":"2.0","id":1,"method":"__class__"}', (1, NO_METHOD)),
    ('{"jsonrpc":"2.0","id":1,"method":"rpc.x"}', (1, NO_METHOD)),
    ('{"jsonrpc":"2.0","id":1,"method":""}', (1, NO_METHOD)),
    ('{"jsonrpc":"2.0","id":1,"method":"Session.list"}', (1, NO_METHOD)),
    ('{"jsonrpc":"2.0","id":1,"method":"session.list\\u0000"}', (1, NO_METHOD)),
    ('{"jsonrpc":"2.0","method":"session.list"}', None),
    ('{"jsonrpc":"2.0","method":"daemon.shutdown"}', None),
    ('{"jsonrpc":"2.0","method":"session.create","params":{"id":"by-notification"}}', None),
]


def seen(answer: Any) -> Any:
    if isinstance(answer, list):
        return [seen(one) for one in answer]  # pyright: ignore[reportUnknownVariableType]  # of JSON
    assert set(answer) == {"jsonrpc", "id", "error"}
    error = answer["error"]
    return answer["id"], {"code": error["code"], "kind": error["data"]["kind"]}


@pytest.mark.parametrize(("line", "wanted"), [*EXAMPLES, *MORE], ids=lambda value: str(value)[:70])
def test_a_message_has_its_one_answer(connection: Connection, line: str, wanted: Any) -> None:
    connection.send_line(line.encode())
    connection.send_line(b'{"jsonrpc":"2.0","id":"after","method":"session.list"}')
    answers = [connection.read_message()]
    if wanted is not None:
        answers.append(connection.read_message())
        found = [answer for answer in answers if not is_after(answer)]
        assert [seen(answer) for answer in found] == [wanted]
    assert any(map(is_after, answers))


def is_after(answer: Any) -> bool:
    return type(answer) is dict and "after" in answer.values()


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        ("0", 0),
        ("-1", -1),
        ("7.0", 7),
        ("9007199254740991", 2**53 - 1),
        ("-9007199254740991", 1 - 2**53),
        ('""', ""),
        ('"é\\u0000\\u2028"', "é\0\u2028"),
        ('"' + "x" * 256 + '"', "x" * 256),
        ('"' + "😀" * 256 + '"', "😀" * 256),
        ("null", None),
    ],
)
def test_an_id_comes_back_as_it_was(connection: Connection, sent: str, answered: Any) -> None:
    connection.send_line(b'{"jsonrpc":"2.0","id":%b,"method":"session.list"}' % sent.encode())
    answer = connection.read_message()
    assert "result" in answer
    assert answer["id"] == answered
    assert type(answer["id"]) is type(answered)


def test_one_id_twice_in_flight_is_answered_twice(connection: Connection) -> None:
    line = b'{"jsonrpc":"2.0","id":5,"method":"session.list"}\n'
    connection.socket.sendall(line * 3)
    assert [connection.read_message()["id"] for _ in range(3)] == [5, 5, 5]


def test_a_long_name_is_cut_in_the_message(connection: Connection) -> None:
    refused = connection.refusal("x" * 1_000_000)
    assert refused.kind == "METHOD_NOT_FOUND"
    assert len(refused.error["message"]) < 300
    assert "x" * 64 in refused.error["message"]
    assert "x" * 65 not in refused.error["message"]


def test_params_may_be_left_out(connection: Connection) -> None:
    connection.send_line(b'{"jsonrpc":"2.0","id":1,"method":"daemon.metrics"}')
    assert "result" in connection.read_message()


def test_a_mixed_batch_is_admitted_in_order_and_answered_in_one_line(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    about = {"id": recorder.id, "writer": recorder.writer}
    request = connection.request
    batch: list[Any] = [
        request("session.append", events=OPENING, expectedSeq=0, **about),
        17,
        {
            "jsonrpc": "2.0",
            "method": "session.append",
            "params": {**about, "events": [events.chunk()]},
        },
        request("session.none"),
        request("session.append", events=[events.turn_start(5)], **about),
        {"jsonrpc": "2.0", "method": "daemon.shutdown"},
        request("checkpoint.request", events=[events.chunk("b")], expectedSeq=5, **about),
        request("session.read", id=recorder.id, offset=4),
    ]
    connection.send_line(json.dumps(batch).encode())
    answers = connection.read_message()
    assert len(answers) == 6
    by_id = {answer["id"]: answer for answer in answers}
    assert by_id[batch[0]["id"]]["result"]["nextSeq"] == 4
    assert by_id[None]["error"]["data"]["kind"] == "INVALID_REQUEST"
    assert by_id[batch[3]["id"]]["error"]["data"]["kind"] == "METHOD_NOT_FOUND"
    assert by_id[batch[4]["id"]]["error"]["data"]["rule"] == "turn-open"
    assert by_id[batch[6]["id"]]["result"]["durableSeq"] == 6
    read = by_id[batch[7]["id"]]["result"]["events"]
    assert [event["seq"] for event in read] == [4, 5]


def test_a_bad_item_of_a_batch_spoils_no_other(connection: Connection) -> None:
    good = '{"jsonrpc":"2.0","id":%d,"method":"session.list","params":{"limit":1}}'
    bad = '{"jsonrpc":"2.0","id":2,"method":"session.list","params":{"limit":1e400}}'
    connection.send_line(f"[{good % 1},{bad},{good % 3}]".encode())
    answers = connection.read_message()
    assert [answer["id"] for answer in answers] == [1, 2, 3]
    assert ["result" in answer for answer in answers] == [True, False, True]
    assert answers[1]["error"]["data"]["kind"] == "INVALID_PARAMS"


def test_a_batch_over_the_limit_is_refused_whole(connection: Connection) -> None:
    limit = connection.call("daemon.status")["limits"]["maxBatchCalls"]
    for count in (limit + 1, 10_001):
        connection.send_line(b"[" + b",".join([b"1"] * count) + b"]")
        answer = connection.read_message()
        assert answer["error"]["data"]["kind"] == "FRAME_TOO_LARGE"
        assert answer["error"]["data"]["limit"] == "maxBatchCalls"
    connection.send_line(b"[" + b",".join([b"1"] * limit) + b"]")
    assert len(connection.read_message()) == limit


def test_a_daemon_goes_on_after_a_notification_that_would_end_it(connection: Connection) -> None:
    connection.notify("daemon.shutdown")
    assert connection.call("session.list", limit=1)
    assert connection.refusal("session.stat", id="by-notification").kind == "SESSION_NOT_FOUND"
