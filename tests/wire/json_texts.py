r"""JSON texts as data: what no reader may take, what we keep and how, and what we alone refuse.

The one rule: a text stands here once, as bytes; what is done with it is the tests' business. Grouped by the part of
RFC 8259 that it is about.
"""

from __future__ import annotations

DEEP = 100_000

REFUSED: tuple[bytes, ...] = (
    # arrays
    *(b"[1 true]", b"[a\xe5]", b'["": 1]', b'[""],', b"[,1]", b"[1,,2]", b'["x",,]', b'["x"]]'),
    *(b'["",]', b'["x"', b"[x", b"[3[4]]", b"[\xff]", b"[1:2]", b"[,]", b"[-]", b'[   , ""]'),
    *(b'["a",\n4\n,1,', b"[1,]", b"[1,,]", b'["\x0ba"\\f]', b"[*]", b'[""', b"[1,", b"[1,\n1\n,1"),
    *(b"[{}", b"[1]x", b"[1}", b"][", b"[1;2]", b"[\x0c]", b"[\xe2\x81\xa0]", b"[\xc2\xa0]"),
    # the three words
    *(b"[fals]", b"[nul]", b"[tru]", b"[True]", b"[NULL]", b"[undefined]", b"nullx", b"[t rue]"),
    # numbers
    *(b"[++1234]", b"[+1]", b"[+Inf]", b"[-01]", b"[-1.0.]", b"[-2.]", b"[-NaN]", b"[.-1]"),
    *(
        b"[.2e-3]",
        b"[0.1.2]",
        b"[0.3e+]",
        b"[0.3e]",
        b"[0.e1]",
        b"[0E+]",
        b"[0E]",
        b"[0e]",
        b"[0e+]",
    ),
    *(
        b"[1.0e+]",
        b"[1.0e-]",
        b"[1.0e]",
        b"[1 000.0]",
        b"[1eE2]",
        b"[2.e+3]",
        b"[2.e-3]",
        b"[2.e3]",
    ),
    *(
        b"[9.e+]",
        b"[Inf]",
        b"[NaN]",
        b"[\xef\xbc\x91]",
        b"[1+2]",
        b"[0x1]",
        b"[0x42]",
        b"[Infinity]",
    ),
    *(
        b"[0e+-1]",
        b"[-123.123foo]",
        b"[123\xe5]",
        b"[1e1\xe5]",
        b"[0\xe5]",
        b"[-Infinity]",
        b"[-foo]",
    ),
    *(
        b"[- 1]",
        b"[-012]",
        b"[-.123]",
        b"[-1x]",
        b"[1ea]",
        b"[1.]",
        b"[.123]",
        b"[1.2a-3]",
        b"[1_0]",
    ),
    *(
        b"[1.8011670033376514H-308]",
        b"[012]",
        b"[00]",
        b"[0b1]",
        b"[0o7]",
        b"[1f]",
        b"[1L]",
        b"[1'000]",
    ),
    # objects
    *(
        b'["x", truth]',
        b'{[: "x"}',
        b'{"x", null}',
        b'{"x"::"b"}',
        b"{\xf0\x9f\x87\xa8}",
        b'{"a":"a" 123}',
    ),
    *(b"{key: 'value'}", b'{"\xb9":"0",}', b'{"a" b}', b'{:"b"}', b'{"a" "b"}', b'{"a":', b'{"a"'),
    *(
        b"{1:1}",
        b"{9999E9999:1}",
        b"{null:null,null:null}",
        b'{"id":0,,,,,}',
        b"{'a':0}",
        b'{"id":0,}',
    ),
    *(b'{"a":"b"}/**/', b'{"a":"b"}/**//', b'{"a":"b"}//', b'{"a":"b"}/', b'{"a":"b",,"c":"d"}'),
    *(
        b'{a: "b"}',
        b'{"a":"a',
        b'{ "foo" : "bar", "a" }',
        b'{"a":"b"}#',
        b"{,}",
        b'{"a":1]',
        b"{true:1}",
    ),
    # strings
    *(b'["\\uD800\\"]', b'["\\uD800\\u"]', b'["\\uD800\\u1"]', b'["\\uD800\\u1x"]', b"[\xc3\xa9]"),
    *(
        b'["\\\x00"]',
        b'["\\x00"]',
        b'["\\\\\\"]',
        b'["\\\t"]',
        b'["\\\xf0\x9f\x8c\x80"]',
        b'["\\"]',
    ),
    *(b'["\\u00A"]', b'["\\uD834\\uDd"]', b'["\\uD800\\uD800\\x"]', b'["\\u\xe5"]', b'["\\a"]'),
    *(
        b'["\\uqqqq"]',
        b'["\\\xe5"]',
        b'[\\u0020"asd"]',
        b"[\\n]",
        b'"',
        b"['single quote']",
        b"abc",
    ),
    *(
        b'["\\',
        b'["a\x00a"]',
        b'["new\x0cline"]',
        b'["\t"]',
        b'["\x1f"]',
        b'"\\UA66D"',
        b'""x',
        b'"a',
    ),
    *(
        b'["\\u 041"]',
        b'["\\u+041"]',
        b'["\\v"]',
        b'["\\0"]',
        b"[`a`]",
        b'["\\u{41}"]',
        b'["\\\n"]',
    ),
    # bytes that are no UTF-8
    *(
        b'["\xff"]',
        b'["\xe6\x97\xa5\xd1\x88\xfa"]',
        b'["\xed\xa0\x80"]',
        b'["\xc0\xaf"]',
        b'["\x81"]',
    ),
    *(
        b'["\xf4\xbf\xbf\xbf"]',
        b'["\xfc\x80\x80\x80\x80\x80"]',
        b'["\xe0\xff"]',
        b'["\xed\xb0\x80"]',
    ),
    *(
        b'["\xf5\x80\x80\x80"]',
        b'["\xe2\x82"]',
        b"\xff\xfe[\x00]\x00",
        b"\xef\xbb\xbf{}",
        b"\xef\xbb",
    ),
    # the document as a whole
    *(
        b"<.>",
        b"[<null>]",
        b"[1]]",
        b"[1]x",
        b"{}}",
        b'{"":',
        b"2@",
        b'{"a":[',
        b"{]",
        b'[\\u000A""]',
    ),
    *(
        b"[" * DEEP,
        b'[{"":' * 50_000,
        b'{"a":/*comment*/"b"}',
        b'{"a": true} "x"',
        b"['",
        b'["',
        b'["a',
    ),
    *(
        b"[,",
        b"[{",
        b'["a",',
        b"{",
        b"{,",
        b"{'",
        b'{"',
        b'{"a',
        b"{[",
        b'["\\{["\\{["\\{',
        b"\xe9",
        b"*",
    ),
    *(
        b"[\xe2\x80\xa81]",
        b"\x1b[1m",
        b"1 2",
        b"{} {}",
        b"[] []",
        b"tru",
        b"-",
        b"+",
        b".",
        b",",
        b":",
    ),
)
"""No JSON at all (or no UTF-8): to be refused as a line and as the data of an event."""


def _same(text: bytes) -> tuple[bytes, bytes]:
    return text, text


KEPT: tuple[tuple[bytes, bytes], ...] = (
    *(
        (same, same)
        for same in (b"[]", b"{}", b"null", b"true", b"false", b"0", b"-1", b'""', b'" "')
    ),
    # arrays and objects, with and without space
    *((b"[[]   ]", b"[[]]"), (b'[""]', b'[""]'), (b"[false]", b"[false]"), (b"[1\t,2 ]", b"[1,2]")),
    *((b'[null, 1, "1", {}]', b'[null,1,"1",{}]'), (b" [1] ", b"[1]"), (b"[ 4]", b"[4]")),
    *((b'{"a":[]}', b'{"a":[]}'), (b'{"":0}', b'{"":0}'), (b'{"a\\u0000b":1}', b'{"a\\u0000b":1}')),
    *((b'{"b":1,"a":2}', b'{"b":1,"a":2}'), (b'{"10":1,"9":2}', b'{"10":1,"9":2}')),
    *((b'{"a":{"a":{"a":1}}}', b'{"a":{"a":{"a":1}}}'), (b'{"__proto__":1}', b'{"__proto__":1}')),
    (b"[" * 60 + b"]" * 60, b"[" * 60 + b"]" * 60),
    # numbers: as ECMAScript prints them, but with an exponent from 2^53 on
    *((b"[123e65]", b"[1.23e+67]"), (b"[0e+1]", b"[0]"), (b"[0e1]", b"[0]"), (b"[20e1]", b"[200]")),
    *(
        (b"[1E22]", b"[1e+22]"),
        (b"[1E-2]", b"[0.01]"),
        (b"[1E+2]", b"[100]"),
        (b"[123.456e78]", b"[1.23456e+80]"),
    ),
    *(
        (b"[123.456789]", b"[123.456789]"),
        (b"[-123]", b"[-123]"),
        (b"[1.0]", b"[1]"),
        (b"[0.0]", b"[0]"),
    ),
    *((b"[1e-7]", b"[1e-7]"), (b"[0.000001]", b"[0.000001]"), (b"[0.00001]", b"[0.00001]")),
    *(
        (b"[0.0001]", b"[0.0001]"),
        (b"[1e21]", b"[1e+21]"),
        (b"[1e20]", b"[1e+20]"),
        (b"[1e15]", b"[1000000000000000]"),
    ),
    *(
        (b"[9007199254740991]", b"[9007199254740991]"),
        (b"[-9007199254740991]", b"[-9007199254740991]"),
    ),
    *((b"[9007199254740992.0]", b"[9.007199254740992e+15]"), (b"[5e-324]", b"[5e-324]")),
    *((b"[1.7976931348623157e308]", b"[1.7976931348623157e+308]"), (b"[0.1]", b"[0.1]")),
    *((b"[0.30000000000000004]", b"[0.30000000000000004]"), _same(b"[2.2250738585072014e-308]")),
    *(
        _same(b"[123456789012345.67]"),
        (b"[100e-2]", b"[1]"),
        (b"[1.5e300]", b"[1.5e+300]"),
        (b"[1e-400]", b"[0]"),
    ),
    (b"[-" + b"0." + b"0" * 77 + b"1]", b"[-1e-78]"),
    # strings: raw but for what JSON must escape
    *(
        (b'["\\u0060\\u012a\\u12AB"]', '["`Īካ"]'.encode()),
        (b'["\\uD801\\udc37"]', '["𐐷"]'.encode()),
    ),
    *(
        (b'["\\"\\\\\\/\\b\\f\\n\\r\\t"]', b'["\\"\\\\/\\b\\f\\n\\r\\t"]'),
        (b'["\\\\u0000"]', b'["\\\\u0000"]'),
    ),
    *(
        (b'["\\""]', b'["\\""]'),
        (b'["a/*b*/c/*d//e"]', b'["a/*b*/c/*d//e"]'),
        (b'["\\\\a"]', b'["\\\\a"]'),
    ),
    *(
        (b'["\\u0012"]', b'["\\u0012"]'),
        (b'["\\uFFFF"]', '["\uffff"]'.encode()),
        (b'["\\u0000"]', b'["\\u0000"]'),
    ),
    *(
        (b'["asd "]', b'["asd "]'),
        (b'["\\uDBFF\\uDFFF"]', '["\U0010ffff"]'.encode()),
        (b'["\x7f"]', b'["\x7f"]'),
    ),
    *((b'["new\\u000Aline"]', b'["new\\nline"]'), _same('["\u2028\u2029\u0085"]'.encode())),
    *(
        _same('["\ufeff\u200b\u202e"]'.encode()),
        _same('["€𝄞"]'.encode()),
        (b'["\\u002c"]', b'[","]'),
    ),
    *(
        _same('["\ufdd0\U0001fffe"]'.encode()),
        _same('{"é":"é"}'.encode()),
        (b'["\\u0022"]', b'["\\""]'),
    ),
    *(
        _same(b'["2024-01-01T00:00:00Z"]'),
        _same(b'["1.0","1e-07","-0","\\"1.0\\":1e-05"]'),
        _same(b'["1e-07",1e-7]'),
    ),
    *(_same(b'["NaN","Infinity",":9007199254740992.0,"]'), _same(b'["\\u001b[31m"]')),
)
"""Taken, and how a log keeps it: a second append of what was kept keeps the same bytes."""

OURS: tuple[tuple[bytes, str], ...] = (
    *((b"[-0]", "negative-zero"), (b"[-0.0]", "negative-zero"), (b"[-0e1]", "negative-zero")),
    *((b"[-1e-400]", "negative-zero"), (b"-0", "negative-zero")),
    *(
        (b"[1e400]", "number-range"),
        (b"[-1e+9999]", "number-range"),
        (b"[123123e100000]", "number-range"),
    ),
    *((b"[9007199254740992]", "number-range"), (b"[-9007199254740993]", "number-range")),
    *((b"[100000000000000000000]", "number-range"), (b"[" + b"7" * 6000 + b"]", "number-range")),
    *(
        (b'{"a":1,"a":1}', "duplicate-key"),
        (b'{"a":{"b":0,"\\u0062":1}}', "duplicate-key"),
        (b'{"":0,"":0}', "duplicate-key"),
    ),
    *(
        (b'["\\uD800"]', "lone-surrogate"),
        (b'["\\uDFAA"]', "lone-surrogate"),
        (b'["\\uDd1e\\uD834"]', "lone-surrogate"),
    ),
    *(
        (b'["\\uD888\\u1234"]', "lone-surrogate"),
        (b'{"\\uD800":0}', "lone-surrogate"),
        (b'["\\ud800abc"]', "lone-surrogate"),
    ),
    *((b"[" * 500 + b"]" * 500, "too-deep"), (b'{"a":' * 80 + b"1" + b"}" * 80, "too-deep")),
)
"""JSON that programs read differently, so that no log may hold it: refused by a rule of our own."""
