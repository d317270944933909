"""The gate: what passes, what does not, and that its fast ways and its precise ones agree."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

from dsh_protocol.jsonprint import print_json, print_number
from dsh_protocol.jsonscan import Bounds, JsonTextError, scan
from dsh_protocol.jsontext import decode, decode_stored, encode, encode_fast
from dsh_protocol.jsontypes import MAX_SAFE_INTEGER, is_array, is_object

STRICT = Bounds(max_depth=64, max_values=100_000)
STORED = Bounds(max_depth=10_000, max_values=100_000, stored=True)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
any_texts = st.text(st.characters(exclude_categories=()), max_size=6)
integers = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
reals = st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda x: x != 0 or math.copysign(1, x) > 0
)
scalars = st.none() | st.booleans() | integers | reals | texts


def nested(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=12,
    )


values = nested(scalars, texts)
odd_values = nested(st.none() | st.booleans() | st.integers() | reals | any_texts, any_texts)


def scan_strictly(text: bytes) -> Any:
    return scan(text, STRICT)


def scan_stored(text: bytes) -> Any:
    return scan(text, STORED)


def outcome(read: Callable[[bytes], Any], text: bytes) -> Any:
    """What a reader makes of a text, such that two of them can be compared exactly."""
    try:
        return ("value", repr(read(text)))
    except JsonTextError as error:
        return ("refused", error.rule, error.offset, error.path)


def in_order(value: Any) -> Any:
    """The value with its keys as a list, which is compared in order."""
    if is_object(value):
        return [(key, in_order(each)) for key, each in value.items()]
    if is_array(value):
        return [in_order(each) for each in value]
    return value


# ---------------------------------------------------------------- identity and agreement


@given(values)
def test_what_is_encoded_is_decoded_to_the_same(value: Any) -> None:
    got = decode(encode(value))
    assert in_order(got) == in_order(value)


@given(odd_values)
def test_what_a_stored_log_may_hold_survives_too(value: Any) -> None:
    expected = json.loads(json.dumps(value))  # joins halves of a pair that stand beside each other
    assert in_order(decode_stored(encode(value))) == in_order(expected)


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_spacing_and_escapes_change_nothing(value: Any, indent: int | None, escaped: bool) -> None:  # noqa: FBT001  # drawn
    text = json.dumps(value, indent=indent, ensure_ascii=escaped).encode()
    assert in_order(decode(text)) == in_order(value)


@given(odd_values)
def test_the_fast_writer_and_the_precise_one_print_the_same(value: Any) -> None:
    assert encode(value) == print_json(value)


@given(odd_values)
def test_any_spelling_for_the_socket_reads_as_the_value(value: Any) -> None:
    assert decode_stored(encode_fast(value)) == json.loads(json.dumps(value))


FRAGMENTS = [
    *'{}[],:"\\-+.eE0123456789 \t\r\nutrfalsn/',
    *(
        "-0",
        "-0.0",
        "1e400",
        "1e5",
        "1.50",
        "9007199254740991",
        "9007199254740992",
        "12345678901234567",
    ),
    *(
        '"a"',
        '"a":',
        '"b":',
        '{"a":1',
        ',"a":2',
        "true",
        "false",
        "null",
        "NaN",
        "Infinity",
        "[]",
        "{}",
    ),
    *(
        '"\\u0041"',
        '"\\ud800"',
        '"\\udc00"',
        '"\\ud83d\\ude00"',
        '"é"',
        '"\u2028"',
        "-1e-400",
        "\x00",
    ),
]


@settings(max_examples=200)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
@example('{"a":-0}')
@example("[12345678901234567]")
@example('{"a":1,"a":1}')
def test_the_fast_reader_refuses_and_takes_exactly_what_the_precise_one_does(text: str) -> None:
    raw = text.encode()
    assert outcome(decode, raw) == outcome(scan_strictly, raw)


@settings(max_examples=150)
@given(values, st.data())
def test_a_text_with_one_byte_changed_is_judged_alike_by_both_readers(
    value: Any, data: st.DataObject
) -> None:
    text = bytearray(json.dumps(value).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255))
    raw = bytes(text)
    assert outcome(decode, raw) == outcome(scan_strictly, raw)


@settings(max_examples=150)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
def test_both_readers_of_stored_texts_agree(text: str) -> None:
    raw = text.encode()
    fast, precise = outcome(decode_stored, raw), outcome(scan_stored, raw)
    assert fast == precise


@settings(max_examples=150)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
def test_what_passes_is_what_the_standard_library_reads(text: str) -> None:
    try:
        got = decode(text.encode())
    except JsonTextError:
        return
    assert repr(got) == repr(json.loads(text))


# ---------------------------------------------------------------- refusals

NOT_JSON = [
    *(b"", b" ", b"\t", b"\x00", b"\x0c1", b"\xef\xbb\xbf1", b"\xef\xbb\xbf{}"),
    *(b"nul", b"null0", b"True", b"TRUE", b"None", b"undefined", b"NaN", b"-NaN", b"nan"),
    *(b"Infinity", b"-Infinity", b"+Infinity", b"inf"),
    *(
        b"+1",
        b"01",
        b"-01",
        b"00",
        b"-",
        b"--1",
        b"1.",
        b".5",
        b"-.5",
        b"1.e5",
        b"1e",
        b"1e+",
        b"1e5.5",
    ),
    *(b"0x1", b"1_000", b"1 2", b"1,", b",1", b"1a", b"1f", "\uff11".encode(), b"0b1", b"1e 5"),
    *(
        b"'a'",
        b"a",
        b'"',
        b'"a',
        b'a"',
        b'"\\"',
        b'"\\x41"',
        b'"\\u12"',
        b'"\\u123g"',
        b'"\\u 123"',
    ),
    *(
        b'"\\U00000041"',
        b'"\\0"',
        b'"\n"',
        b'"\t"',
        b'"\x00"',
        b'"\x1f"',
        b'"a""b"',
        b'"\\',
        b'"\\u',
    ),
    *(
        b"[",
        b"]",
        b"[1",
        b"[1,",
        b"[1,]",
        b"[,1]",
        b"[,]",
        b"[1 2]",
        b"[1,,2]",
        b"[1]]",
        b"[[1]",
        b"[1}",
    ),
    *(b"[1:2]", b"[1;2]", b"(1)", b"[1] x", b"[] []", b"[1]\x00", b"[a]", b"[", b"[nul]", b'["a]'),
    *(b"{", b"}", b"{1:2}", b"{a:1}", b"{'a':1}", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{,"a":1}'),
    *(b'{"a":1', b'{"a"', b'{"a":1]', b'{"a" 1}', b'{"a"::1}', b'{"a":1 "b":2}', b'{"a":1,,"b":2}'),
    *(b'{"a":1}}', b"{null:1}", b"{[]:1}", b'{"a":1,"b"}', b'{"a":1;"b":2}', b"{}}", b'{"a":1}#'),
    *(b"// c\n1", b"/* c */1", b"1 // c", b"# c\n1", b'{"a":1,/**/"b":2}'),
    *(
        rb'["\u""]',
        rb'{"a":"\u"" "}',
        rb'{"\u"":1}',
        rb'["\""',
        rb'["\u12""]',
        rb'["\x""]',
        b"[1e]",
    ),
    *(b"`a`", b"[1]\x0b", b"\xc2\xa01", b"\xe2\x80\xa81"),
]


@pytest.mark.parametrize("text", NOT_JSON)
def test_what_is_not_json_is_refused_by_both_gates(text: bytes) -> None:
    for read in (decode, decode_stored):
        with pytest.raises(JsonTextError) as caught:
            read(text)
        assert caught.value.rule == "not-json"


NOT_UTF8 = [
    *(
        b'"\xff"',
        b'"\xc0\xaf"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xe2\x82"',
        b'{"\x80":1}',
    ),
    *(
        "1".encode("utf-16"),
        "[1]".encode("utf-16-be") + b"\xff",
        b"\xfe\xff",
        b'["a",\xff]',
        b"\xff",
    ),
]


@pytest.mark.parametrize("text", NOT_UTF8)
def test_what_is_not_utf8_is_refused_by_both_gates(text: bytes) -> None:
    for read in (decode, decode_stored):
        with pytest.raises(JsonTextError) as caught:
            read(text)
        assert caught.value.rule == "not-utf8"


def test_utf16_without_a_mark_is_not_json() -> None:
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le"):
        with pytest.raises(JsonTextError, match="not-json"):
            decode('{"a":1}'.encode(encoding))


@pytest.mark.parametrize(
    ("text", "rule", "offset", "path"),
    [
        (b'{"a":1,"a":1}', "duplicate-key", 7, ("a",)),
        (b'{"a":{"b":1,"c":2,"b":3}}', "duplicate-key", 18, ("a", "b")),
        (b'{"a":1,"\\u0061":2}', "duplicate-key", 7, ("a",)),
        (b'[{"":1,"":2}]', "duplicate-key", 7, (0, "")),
        (b"-0", "negative-zero", 0, ()),
        (b"[1, -0]", "negative-zero", 4, (1,)),
        (b"[-0.0]", "negative-zero", 1, (0,)),
        (b"[-0e5]", "negative-zero", 1, (0,)),
        (b"[-0.000E-3]", "negative-zero", 1, (0,)),
        (b"[-1e-400]", "negative-zero", 1, (0,)),
        (b"9007199254740992", "number-range", 0, ()),
        (b"[-9007199254740992]", "number-range", 1, (0,)),
        (b'{"a":[0,{"b":18446744073709551616}]}', "number-range", 13, ("a", 1, "b")),
        (b"[" + b"9" * 5000 + b"]", "number-range", 1, (0,)),
        (b"[-" + b"1" * 5000 + b"]", "number-range", 1, (0,)),
        (b"1e400", "number-range", 0, ()),
        (b"[-1e400]", "number-range", 1, (0,)),
        (b"[1.7976931348623159e308]", "number-range", 1, (0,)),
        (b'["\\ud800"]', "lone-surrogate", 1, (0,)),
        (b'["\\uDBFF\\u0041"]', "lone-surrogate", 1, (0,)),
        (b'["\\udc00\\ud800"]', "lone-surrogate", 1, (0,)),
        (b'["\\ud800\\ud800\\udc00"]', "lone-surrogate", 1, (0,)),
        (b'{"\\udfff":1}', "lone-surrogate", 1, ("\udfff",)),
    ],
)
def test_a_value_that_programs_would_read_differently_is_refused_with_its_place(
    text: bytes, rule: str, offset: int, path: tuple[str | int, ...]
) -> None:
    with pytest.raises(JsonTextError) as caught:
        decode(text)
    found = caught.value
    if rule == "lone-surrogate" and path and isinstance(path[0], str):
        assert (found.rule, found.offset) == (rule, offset)
    else:
        assert (found.rule, found.offset, found.path) == (rule, offset, path)


def test_the_first_of_several_defects_is_told_but_not_json_before_all() -> None:
    with pytest.raises(JsonTextError, match="negative-zero at byte 1"):
        decode(b'[-0,1e400,{"a":1,"a":2}]')
    with pytest.raises(JsonTextError, match="not-json"):
        decode(b"[-0,1e400,")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"9007199254740991", MAX_SAFE_INTEGER),
        (b"-9007199254740991", -MAX_SAFE_INTEGER),
        (b"[1.0,1e2,1E+2,0e5,0.0,-1.5,5e-324]", [1.0, 100.0, 100.0, 0.0, 0.0, -1.5, 5e-324]),
        (b"1.7976931348623157e308", 1.7976931348623157e308),
        (
            b"[1e20,0.30000000000000004,123456789012345678.5]",
            [1e20, 0.1 + 0.2, 123456789012345678.5],
        ),
        (
            b'["2024-01-01","-0","12345678901234567890",":-0,"]',
            ["2024-01-01", "-0", "12345678901234567890", ":-0,"],
        ),
        (b'"\\ud83d\\ude00 \\u0000 \\/ \x7f"', "😀 \0 / \x7f"),
        (b' {"a" : [ ] , "b" : { } }\r\n', {"a": [], "b": {}}),
        (b'{"":0,"a":{"a":1},"b":{"a":1}}', {"": 0, "a": {"a": 1}, "b": {"a": 1}}),
        ('"a\u2028\u2029\u0085"'.encode(), "a\u2028\u2029\u0085"),
        (b"true", True),
        (b"null", None),
    ],
)
def test_what_is_merely_unusual_passes(text: bytes, value: Any) -> None:
    got = decode(text)
    assert got == value
    assert repr(got) == repr(value)


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_64_passes_and_65_does_not(pair: tuple[bytes, bytes]) -> None:
    opener, closer = pair
    decode(opener * 63 + b"[]" + closer * 63)
    with pytest.raises(JsonTextError) as caught:
        decode(opener * 64 + b"[]" + closer * 64)
    assert caught.value.rule == "too-deep"
    assert len(caught.value.path) == 64


@pytest.mark.parametrize("depth", [3, 9, 10, 11, 12])
def test_any_depth_may_be_the_limit(depth: int) -> None:
    decode(b"[" * depth + b"]" * depth, max_depth=depth)
    with pytest.raises(JsonTextError, match="too-deep"):
        decode(b"[" * (depth + 1) + b"]" * (depth + 1), max_depth=depth)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"[" * 1_000_000, b'{"a":' * 100_000, b'{"x":' + b"[" * 200_000]
)
def test_bottomless_nesting_is_refused_at_once(text: bytes) -> None:
    with pytest.raises(JsonTextError, match="too-deep"):
        decode(text)


def test_values_are_counted_and_keys_are_not() -> None:
    text = b'{"a":[1,2,{}],"b":null}'  # object, array, 1, 2, object, null
    decode(text, max_values=6)
    with pytest.raises(JsonTextError, match="too-many-values"):
        decode(text, max_values=5)


@given(values.filter(lambda each: isinstance(each, list | dict)), st.booleans())
def test_the_limit_of_values_is_exact(value: Any, spaced: bool) -> None:  # noqa: FBT001  # drawn
    def count(each: Any) -> int:
        inner = list(each.values()) if is_object(each) else each if is_array(each) else []
        return 1 + sum(map(count, inner))

    text = json.dumps(
        value, indent=1 if spaced else None, separators=None if spaced else (",", ":")
    ).encode()
    decode(text, max_values=count(value))
    with pytest.raises(JsonTextError, match="too-many-values"):
        decode(text, max_values=count(value) - 1)


def test_commas_and_brackets_in_strings_are_no_values() -> None:
    decode(json.dumps(['[{,\\"' * 1000, "\\"]).encode(), max_values=3)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (b"9007199254740993.0", b"9.007199254740992e+15"),
        (b"-9.007199254740993e15", b"-9.007199254740992e+15"),
        (b"9007199254740991.5", b"9.007199254740992e+15"),
        (b"1E16", b"1e+16"),
        (b"18446744073709551617.000", b"1.8446744073709552e+19"),
        (b"0.1234567890123456789", b"0.12345678901234568"),
        (b"9007199254740991.0", b"9007199254740991"),
    ],
)
def test_a_number_with_a_fraction_or_an_exponent_is_the_nearest_double_in_every_spelling(
    text: bytes, printed: bytes
) -> None:
    for read in (decode, decode_stored):
        number = read(text)
        assert type(number) is float
        assert number == float(text)
        assert encode(number) == printed
        assert read(printed) == number, "what is written is read back, by both gates"


def test_a_number_in_digits_alone_is_whole_and_beyond_2_to_the_53_refused_when_sent() -> None:
    for digits in (b"9007199254740992", b"-9007199254740993", b"18446744073709551617"):
        with pytest.raises(JsonTextError, match="number-range"):
            decode(digits)
        assert decode_stored(digits) == int(digits)


# ---------------------------------------------------------------- stored texts


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a":1,"b":2,"a":3}', {"a": 3, "b": 2}),
        (b'["\\ud800","\\udc00\\ud800"]', ["\ud800", "\udc00\ud800"]),
        (b'{"\\ud800":"\\ud83d\\ude00"}', {"\ud800": "😀"}),
        (b"[9007199254740993,18446744073709551617]", [2**53 + 1, 2**64 + 1]),
        (b"-123456789012345678901234567890", -123456789012345678901234567890),
        (b"9" * 4300, int("9" * 4300)),
        (b"[-0]", [0]),
    ],
)
def test_a_stored_text_may_hold_what_others_legally_wrote(text: bytes, value: Any) -> None:
    got = decode_stored(text)
    assert got == value
    assert in_order(got) == in_order(value)


def test_a_stored_number_beyond_every_measure_is_refused_not_a_crash() -> None:
    for text in (b"9" * 4301, b"[" + b"1" * 100_000 + b"]", b"1e400", b"-1e400"):
        with pytest.raises(JsonTextError, match="number-range"):
            decode_stored(text)


def test_a_stored_text_may_be_nested_ten_thousand_deep_and_no_deeper() -> None:
    value = decode_stored(b"[" * 10_000 + b"]" * 10_000)
    assert encode(value) == b"[" * 10_000 + b"]" * 10_000
    with pytest.raises(JsonTextError, match="too-deep"):
        decode_stored(b"[" * 10_001 + b"]" * 10_001)


# ---------------------------------------------------------------- printing


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"),
        (0.0, "0"),
        (-0.0, "0"),
        (100.0, "100"),
        (-1.5, "-1.5"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (0.00001234, "0.00001234"),
        (123456.789, "123456.789"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (5e-324, "5e-324"),
        (9007199254740991.0, "9007199254740991"),
        (9007199254740992.0, "9.007199254740992e+15"),
        (1e20, "1e+20"),
        (123456789012345680000.0, "1.2345678901234568e+20"),
        (0.1 + 0.2, "0.30000000000000004"),
    ],
)
def test_floats_are_printed_as_ecmascript_does_but_large_whole_ones_with_an_exponent(
    number: float, text: str
) -> None:
    assert print_number(number) == text
    assert encode([number]) == f"[{text}]".encode()


@given(reals)
def test_a_printed_float_reads_back_as_the_same_double_and_passes_the_gate(number: float) -> None:
    text = print_number(number)
    assert float(text) == number
    assert decode(text.encode()) == number


def test_strings_are_printed_raw_but_for_what_json_must_escape() -> None:
    text = '"\\/\b\f\n\r\t\x00\x1f\x7f\u2028é😀'
    assert encode(text) == '"\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\u2028é😀"'.encode()


def test_lone_surrogates_are_printed_as_lower_case_escapes_and_pairs_as_their_character() -> None:
    assert encode("a\ud800\udfffb\udfff") == '"a\U000103ffb\\udfff"'.encode()
    assert encode({"\udc00": "\udabc"}) == b'{"\\udc00":"\\udabc"}'


def test_keys_keep_their_order_whatever_they_are() -> None:
    assert encode({"b": 1, "10": 2, "2": 3}) == b'{"b":1,"10":2,"2":3}'
