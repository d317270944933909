"""One line in: calls, refusals, or a batch of both. What goes out is read back in `test_calls`."""

from __future__ import annotations

import json
import time
from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_protocol.envelope import (
    Batch,
    Refusal,
    Request,
    encode_error,
    encode_notification,
    encode_result,
    is_blank,
    parse_line,
)
from dsh_protocol.errors import EventInvalidError, InternalFaultError, InvalidParamsError
from dsh_protocol.jsontext import decode_stored
from dsh_protocol.limits import Limits
from dsh_protocol.method import convert_params
from dsh_protocol.objects import Position

LIMITS = Limits()


def parse(text: str | bytes, limits: Limits = LIMITS) -> Request | Refusal | Batch:
    return parse_line(text.encode() if isinstance(text, str) else text, limits)


def refusal(text: str | bytes, limits: Limits = LIMITS) -> Refusal:
    got = parse(text, limits)
    assert isinstance(got, Refusal), got
    return got


def kind_and_id(text: str | bytes) -> tuple[str, Any]:
    got = refusal(text)
    return got.error.kind, got.id


def call(params: str, method: str = "session.append", call_id: str = '"id":7,') -> str:
    return f'{{"jsonrpc":"2.0",{call_id}"method":"{method}","params":{params}}}'


# ---------------------------------------------------------------- the examples of the JSON-RPC 2.0 specification


def test_parameters_by_name_in_any_order_are_a_request() -> None:
    text = '{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}'
    expected = Request(
        id=3, has_id=True, method="subtract", params={"subtrahend": 23, "minuend": 42}
    )
    assert parse(text) == expected


def test_parameters_by_position_are_refused_with_the_calls_id() -> None:
    text = '{"jsonrpc": "2.0", "method": "session.stat", "params": [42, 23], "id": 1}'
    assert kind_and_id(text) == ("INVALID_PARAMS", 1)


def test_a_notification_has_no_id_and_may_have_no_parameters() -> None:
    got = parse('{"jsonrpc": "2.0", "method": "foobar"}')
    assert got == Request(id=None, has_id=False, method="foobar", params={})


def test_invalid_json_is_a_parse_error_with_id_null() -> None:
    assert kind_and_id('{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]') == (
        "PARSE_ERROR",
        None,
    )


def test_an_invalid_request_object_is_refused_with_id_null() -> None:
    assert kind_and_id('{"jsonrpc": "2.0", "method": 1, "params": "bar"}') == (
        "INVALID_REQUEST",
        None,
    )


def test_a_broken_batch_is_one_parse_error() -> None:
    text = (
        '[{"jsonrpc": "2.0", "method": "sum", "params": {}, "id": "1"},{"jsonrpc": "2.0", "method"]'
    )
    assert kind_and_id(text) == ("PARSE_ERROR", None)


def test_an_empty_batch_is_one_invalid_request() -> None:
    assert kind_and_id("[]") == ("INVALID_REQUEST", None)


@pytest.mark.parametrize(("text", "count"), [("[1]", 1), ("[1,2,3]", 3), ("[[],null]", 2)])
def test_each_item_of_a_batch_that_is_no_call_is_refused_for_itself(text: str, count: int) -> None:
    got = parse(text)
    assert isinstance(got, Batch)
    assert [(type(each), each.id) for each in got.items] == [(Refusal, None)] * count


def test_a_mixed_batch_keeps_its_order() -> None:
    text = """[
        {"jsonrpc": "2.0", "method": "sum", "params": {"a": 1}, "id": "1"},
        {"jsonrpc": "2.0", "method": "notify_hello", "params": {"a": 7}},
        {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},
        {"foo": "boo"},
        {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
        {"jsonrpc": "2.0", "method": "get_data", "id": "9"}
    ]"""
    got = parse(text)
    assert isinstance(got, Batch)
    assert [(type(each), each.id) for each in got.items] == [
        (Request, "1"),
        (Request, None),
        (Refusal, "2"),
        (Refusal, None),
        (Request, "5"),
        (Request, "9"),
    ]


# ---------------------------------------------------------------- ids


@pytest.mark.parametrize(
    "call_id", ['"a"', '""', "0", "-5", "9007199254740991", "null", '"' + "x" * 256 + '"']
)
def test_strings_whole_numbers_and_null_are_ids_and_come_back(call_id: str) -> None:
    got = parse(call("{}", call_id=f'"id":{call_id},'))
    assert isinstance(got, Request)
    assert got.has_id
    assert json.loads(encode_result(got.id, {}))["id"] == json.loads(call_id)


def test_an_id_spelled_1_0_is_the_number_1() -> None:
    got = parse(call("{}", call_id='"id":1.0,'))
    assert isinstance(got, Request)
    assert encode_result(got.id, 0) == b'{"jsonrpc":"2.0","id":1,"result":0}'


@pytest.mark.parametrize(
    "call_id",
    [
        "true",
        "{}",
        "[]",
        "1.5",
        "1152921504606846976",
        "9007199254740992",
        "-0",
        "1e400",
        '"\\ud800"',
        '{"a":1,"a":2}',
        "[" * 80 + "]" * 80,
        '"' + "x" * 257 + '"',
    ],
)
@pytest.mark.parametrize("method", ["session.append", "no.such.method", ""])
@pytest.mark.parametrize(
    "params", ["{}", "[]", "7", '{"events":[{"data":-0}]}', '{"x":' + "[" * 80 + "]" * 80 + "}"]
)
def test_anything_else_is_no_id_and_makes_the_whole_an_invalid_request(
    call_id: str, method: str, params: str
) -> None:
    for text in (
        f'{{"jsonrpc":"2.0","id":{call_id},"method":"{method}","params":{params}}}',
        f'{{"params":{params},"method":"{method}","id":{call_id},"jsonrpc":"2.0"}}',
    ):
        assert kind_and_id(text) == ("INVALID_REQUEST", None)
        (item,) = batch_of(text).items
        assert isinstance(item, Refusal)
        assert (item.error.kind, item.id, item.notification) == ("INVALID_REQUEST", None, False)


def batch_of(text: str) -> Batch:
    got = parse(f"[{text}]")
    assert isinstance(got, Batch)
    return got


def test_the_id_of_a_refused_call_is_spelled_as_that_of_a_good_one() -> None:
    got = refusal(call('{"x":-0}', call_id='"id":1.0,'))
    assert encode_error(got.id, got.error).startswith(b'{"jsonrpc":"2.0","id":1,')


@pytest.mark.parametrize("method", ["daemon.status", "no.such.method"])
@pytest.mark.parametrize("member", ['"x":-0', '"x":1e400', '"jsonrpc":"2.0"', '"y":"\\ud800"'])
def test_a_defect_beside_the_parameters_makes_it_an_invalid_request_whatever_the_method(
    method: str, member: str
) -> None:
    text = f'{{"jsonrpc":"2.0","id":7,{member},"method":"{method}"}}'
    assert kind_and_id(text) == ("INVALID_REQUEST", 7)


def test_an_id_of_a_megabyte_is_not_sent_back() -> None:
    got = refusal(call("{}", call_id='"id":"' + "x" * 1_000_000 + '",'))
    assert len(encode_error(got.id, got.error)) < 400


def test_two_ids_in_one_call_are_none() -> None:
    assert kind_and_id('{"jsonrpc":"2.0","id":1,"id":1,"method":"daemon.status"}') == (
        "INVALID_REQUEST",
        None,
    )


# ---------------------------------------------------------------- what is no call


@pytest.mark.parametrize(
    "text", ['"x"', "7", "null", "true", '{"id":3}', '{"jsonrpc":"1.0","id":3,"method":"m"}']
)
def test_json_that_is_no_call_is_an_invalid_request(text: str) -> None:
    assert kind_and_id(text) == ("INVALID_REQUEST", 3 if "3" in text else None)


@pytest.mark.parametrize(
    "text", [b"{", b'"\xff"', b'"\xc0\xaf"', b"\xef\xbb\xbf{}", b"NaN", "{}".encode("utf-16")]
)
def test_what_is_not_json_or_not_utf8_is_a_parse_error(text: bytes) -> None:
    assert kind_and_id(text) == ("PARSE_ERROR", None)


@pytest.mark.parametrize("params", ["null", "7", '"x"', "[]", "true"])
def test_params_that_are_no_object_are_invalid(params: str) -> None:
    assert kind_and_id(call(params)) == ("INVALID_PARAMS", 7)


def test_an_unknown_method_is_told_before_its_parameters() -> None:
    got = refusal(call("[-0]", method="x" * 1000))
    assert got.error.kind == "METHOD_NOT_FOUND"
    assert "x" * 64 + "…" in got.error.message
    assert len(got.error.message) < 200


def test_a_line_of_blanks_is_nothing() -> None:
    assert all(map(is_blank, (b"", b"\r", b"  \t ", b" \r")))
    assert not is_blank(b"\x00")
    assert not is_blank(b"\x0c")


# ---------------------------------------------------------------- defects of JSON, by place

DEFECTS = [
    ('{"a":1,"a":2}', "duplicate-key"),
    ("-0.0", "negative-zero"),
    ("1e400", "number-range"),
    ("9007199254740992", "number-range"),
    ("1" * 5000, "number-range"),
    ('"\\ud800"', "lone-surrogate"),
    ("[" * 80 + "]" * 80, "too-deep"),
]


@pytest.mark.parametrize(("text", "rule"), DEFECTS)
def test_inside_an_event_it_is_event_invalid_with_index_and_rule(text: str, rule: str) -> None:
    for method in ("session.append", "checkpoint.request", "checkpoint.tool", "checkpoint.turnEnd"):
        got = refusal(call(f'{{"id":"s","events":[{{}},{{"type":"t","data":{text}}}]}}', method))
        assert got.id == 7
        assert isinstance(got.error, EventInvalidError)
        assert (got.error.facts["index"], got.error.facts["rule"]) == (1, rule)


@pytest.mark.parametrize(("text", "rule"), DEFECTS)
def test_elsewhere_in_the_parameters_it_is_invalid_params(text: str, rule: str) -> None:
    for method, name in (
        ("session.create", "cwd"),
        ("session.list", "events"),
        ("checkpoint.turnEnd", "reason"),
    ):
        got = refusal(call(f'{{"{name}":{text}}}', method))
        assert (got.id, got.error.kind, got.error.facts["rule"]) == (7, "INVALID_PARAMS", rule)
        assert got.error.facts["path"].startswith(f"params.{name}")


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ('{"states":["idle",%s]}', "params.states[1]"),
        ('{"events":[{},{"data":{"a":[0,[%s]]}}]}', "params.events[1].data.a[1][0]"),
        ('{"events":%s}', "params.events"),
        ('{"a.b":{"0":%s}}', "params.a.b.0"),
    ],
)
def test_a_place_is_spelled_with_dots_and_brackets(params: str, path: str) -> None:
    got = refusal(call(params % "-0", method="session.append"))
    assert got.error.facts["path"] == path
    assert f"'{path}'" in got.error.message
    assert got.error.facts["rule"] == "negative-zero"


def test_a_defect_of_json_and_a_wrong_type_are_told_at_the_same_place() -> None:
    params = '{"states":["idle",%s]}'
    got = refusal(call(params % "-0", method="session.list"))
    with pytest.raises(InvalidParamsError) as caught:
        convert_params("session.list", json.loads(params % "7"))
    assert got.error.facts["path"] == caught.value.facts["path"] == "params.states[1]"


def test_the_id_is_found_wherever_it_stands() -> None:
    text = '{"params":{"x":[[-0]],"id":5},"method":"session.stat","id":"last","jsonrpc":"2.0"}'
    assert kind_and_id(text) == ("INVALID_PARAMS", "last")


def test_a_defect_in_one_item_spoils_no_other_of_the_batch() -> None:
    good = call('{"id":"s"}', "session.stat", '"id":1,')
    bad = call('{"id":"s","offset":-0}', "session.read", '"id":2,')
    got = parse(f"[{good}, {bad} ,{good},1e400]")
    assert isinstance(got, Batch)
    shown = [
        (each.id, each.error.kind if isinstance(each, Refusal) else None) for each in got.items
    ]
    assert shown == [(1, None), (2, "INVALID_PARAMS"), (1, None), (None, "INVALID_REQUEST")]


def test_a_session_whose_stored_id_holds_a_lone_surrogate_can_be_named() -> None:
    got = parse(call('{"id":"\\ud800"}', "session.read"))
    assert isinstance(got, Request)
    assert got.params == {"id": "\ud800"}
    batch = parse("[" + call('{"id":"\\ud800"}', "session.read") + "]")
    assert isinstance(batch, Batch)
    assert isinstance(batch.items[0], Request)


def test_but_only_its_id() -> None:
    assert kind_and_id(call('{"id":"\\ud800","cwd":"\\ud800"}', "session.create")) == (
        "INVALID_PARAMS",
        7,
    )
    assert kind_and_id(call('{"id":"\\ud800","events":["\\ud800"]}')) == ("EVENT_INVALID", 7)
    assert kind_and_id(call('{"x":{"params":{"id":"\\ud800"}}}')) == ("INVALID_PARAMS", 7)


def test_a_refused_notification_says_whose_it_was() -> None:
    text = call('{"id":"s","writer":"w","events":[{"data":-0}]}', call_id="")
    got = refusal(text)
    assert got.notification
    assert (got.id, got.method, got.session_id, got.writer) == (None, "session.append", "s", "w")
    assert got.error.kind == "EVENT_INVALID"


def test_a_notification_with_parameters_of_the_wrong_shape_is_not_answered() -> None:
    got = refusal('{"jsonrpc":"2.0","method":"session.append","params":[]}')
    assert got.notification


# ---------------------------------------------------------------- large lines that are refused

LARGE = '{"type":"feedback/record","data":"' + "x" * 40_000 + '"}'
WIDE = ",".join("0" * 100_001)
MEMBERS = ['"jsonrpc":"2.0"', '"id":7', '"method":"session.append"', '"params":{%s}']
PARAMS = ['"id":"s"', '"writer":"w,\\",\\"id\\":3}"', '"expectedSeq":4']


def objects(*texts: str) -> list[str]:
    """The members of an object in every order."""
    return [",".join(order) for order in permutations(texts)]


@pytest.mark.parametrize("events", [f"{LARGE},-0", f"-0,{LARGE}", WIDE])
@pytest.mark.parametrize("outer", objects(*MEMBERS))
def test_a_large_call_is_refused_under_its_id_wherever_that_stands(outer: str, events: str) -> None:
    params = f'"id":"s","events":[{events}],"writer":"w"'
    got = refusal("{" + outer % params + "}")
    assert (got.id, got.notification) == (7, False)
    wanted = "FRAME_TOO_LARGE" if events == WIDE else "EVENT_INVALID"
    assert got.error.kind == wanted


@pytest.mark.parametrize("inner", objects(*PARAMS, '"events":[%s]'))
@pytest.mark.parametrize("outer", objects(*(each for each in MEMBERS if '"id"' not in each)))
def test_a_large_notification_that_is_refused_is_remembered_for_its_writer(
    outer: str, inner: str
) -> None:
    got = refusal("{" + outer % (inner % f"{LARGE},-0") + " }")
    assert got.notification
    assert (got.method, got.session_id, got.writer) == ("session.append", "s", 'w,","id":3}')


@pytest.mark.parametrize(
    "last",
    [
        '"x"',
        '",\\"id\\":5}"',
        '"a,"',
        '["a,",{"b":"c","id":5}]',
        '{"a":"}","id":5}',
        "{}",
    ],
)
def test_what_looks_like_an_id_at_the_end_of_a_large_line_is_none(last: str) -> None:
    for text in (f'"events":[{LARGE},-0],"last":{last}', f'"events":[-0,{LARGE},{last}]'):
        got = refusal(f'{{"jsonrpc":"2.0","method":"session.append","params":{{{text}}}}}')
        assert (got.id, got.notification) == (None, True)


# ---------------------------------------------------------------- limits


def test_too_many_values_in_a_line_is_frame_too_large_with_the_id() -> None:
    got = refusal(call('{"id":"s","events":[' + "0," * 100_000 + "0]}"))
    assert (got.id, got.error.kind, got.error.facts["limit"]) == (7, "FRAME_TOO_LARGE", "maxValues")


def test_a_batch_of_too_many_calls_is_refused_as_a_whole() -> None:
    for item in ("1", call("{}", "daemon.status"), "-0"):
        got = refusal("[" + ",".join([item] * 1001) + "]")
        assert (got.id, got.error.kind, got.error.facts["limit"]) == (
            None,
            "FRAME_TOO_LARGE",
            "maxBatchCalls",
        )


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        call("[" * 100_000)[:-1],
        call("[" * 1000 + "]" * 1000),
        call("[" * 65 + "]" * 65),
    ],
)
def test_nesting_without_end_is_invalid_params_and_quick(text: str) -> None:
    began = time.process_time()
    assert refusal(text).error.kind == "INVALID_PARAMS"
    assert time.process_time() - began < 0.1


def test_a_megabyte_of_empty_arrays_is_refused_without_being_made() -> None:
    began = time.process_time()
    for text in ("[" + "[]," * 350_000 + "[]]", call("[" + "[]," * 350_000 + "[]]")):
        assert refusal(text).error.kind == "FRAME_TOO_LARGE"
    assert time.process_time() - began < 0.4


JUNK = [
    '{"jsonrpc":"2.0"',
    ',"id":1',
    ',"method":"session.append"',
    ',"params":{',
    '"events":[',
    "-0",
    '"\\ud800"',
]
MORE_JUNK = [
    "}",
    "]",
    ",",
    "[",
    "{",
    '"x":',
    "1e999",
    "null",
    '"',
    "\\",
    " ",
    "\x00",
    '{"a":1,"a":1}',
]


@given(
    st.lists(st.sampled_from(JUNK + MORE_JUNK), max_size=12).map("".join)
    | st.binary(max_size=20).map(repr)
)
def test_whatever_a_line_holds_nothing_is_raised_and_every_refusal_can_be_sent(text: str) -> None:
    got = parse(text)
    for each in got.items if isinstance(got, Batch) else [got]:
        if isinstance(each, Refusal):
            decode_stored(encode_error(each.id, each.error))


# ---------------------------------------------------------------- out


def test_results_may_be_structs_values_and_raw_text() -> None:
    assert encode_result(1, Position(next_seq=2, durable_seq=1)) == (
        b'{"jsonrpc":"2.0","id":1,"result":{"nextSeq":2,"durableSeq":1}}'
    )
    raw = {"events": [msgspec.Raw(b'{"seq":0}')], "end": True}
    assert (
        encode_result(None, raw)
        == b'{"jsonrpc":"2.0","id":null,"result":{"events":[{"seq":0}],"end":true}}'
    )


def test_a_stored_lone_surrogate_is_sent_as_its_escape_also_beside_structs_and_raw_text() -> None:
    result = {"p": Position(next_seq=1, durable_seq=1), "r": msgspec.Raw(b"[1]"), "t": "\udc00"}
    line = encode_result("\ud800", result)
    assert line == (
        b'{"jsonrpc":"2.0","id":"\\ud800","result":{"p":{"nextSeq":1,"durableSeq":1},"r":[1],"t":"\\udc00"}}'
    )


def test_no_message_has_a_newline_in_it() -> None:
    lines = [
        encode_result("a\nb", {"x": "c\nd"}),
        encode_error(1, InternalFaultError("a\nb", incident="c\nd")),
        encode_notification("session.event", {"x": "\n"}),
    ]
    assert not any(b"\n" in line for line in lines)
