from __future__ import annotations

import time
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_protocol.envelope import refuse_unread
from dsh_protocol.errors import FrameTooLargeError, OverloadedError
from dsh_protocol.framing import CutLine, LineSplitter


@given(st.lists(st.binary(max_size=20).map(lambda each: each.replace(b"\n", b""))), st.data())
def test_lines_come_out_whole_however_the_bytes_are_cut(
    lines: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(20)
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == lines
    assert splitter.held_bytes == 0


def test_only_the_newline_byte_ends_a_line() -> None:
    text = "a\u2028b\u0085c\rd\x0b\x0c\x1ce".encode()
    assert LineSplitter(100).feed(text + b"\n") == [text]


def test_a_line_as_long_as_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert LineSplitter(5).feed(b"12345\n") == [b"12345"]
    with pytest.raises(FrameTooLargeError) as caught:
        LineSplitter(5).feed(b"123456\n")
    assert caught.value.facts == {"limit": "maxLineBytes", "maximum": 5}


def test_an_unfinished_line_is_refused_as_soon_as_it_is_too_long_and_is_not_kept() -> None:
    splitter = LineSplitter(100)
    splitter.feed(b"x" * 60)
    assert splitter.held_bytes == 60
    with pytest.raises(FrameTooLargeError):
        splitter.feed(b"x" * 41)


def test_a_long_line_in_small_pieces_is_joined_once() -> None:
    splitter = LineSplitter(10_000_000)
    began = time.process_time()
    for _ in range(20_000):
        splitter.feed(b"x" * 250)
    (line,) = splitter.feed(b"\n")
    assert len(line) == 5_000_000
    assert time.process_time() - began < 5  # joining at every piece would take minutes


def test_a_line_that_is_too_long_is_let_go_of_at_once() -> None:
    splitter = LineSplitter(100_000)
    tracemalloc.start()
    try:
        with suppress(FrameTooLargeError):
            for _ in range(20):
                splitter.feed(bytes(bytearray(8_000)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 50_000


def test_a_line_that_is_cut_keeps_its_beginning_and_hurts_no_other() -> None:
    splitter = LineSplitter(100_000)
    splitter.feed(b"first\nbeg")
    splitter.feed(b"inning" + b"x" * 5000)
    splitter.cut_line()
    splitter.feed(b"y" * 5000)
    splitter.cut_line()
    assert splitter.held_bytes == 10_009
    cut, after = splitter.feed(b"z\nafter\n")
    assert (type(cut), cut[:9], len(cut)) == (CutLine, b"beginning", 4096)
    assert (type(after), after) == (bytes, b"after")
    assert splitter.held_bytes == 0


def test_a_line_that_is_cut_takes_no_memory_before_the_cut_or_after() -> None:
    splitter = LineSplitter(1_000_000)
    tracemalloc.start()
    try:
        splitter.feed(bytes(bytearray(400_000)))
        splitter.cut_line()
        splitter.feed(bytes(bytearray(400_000)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 50_000


def test_a_line_that_is_cut_may_be_too_long_all_the_same() -> None:
    splitter = LineSplitter(100)
    splitter.feed(b"x" * 60)
    splitter.cut_line()
    with pytest.raises(FrameTooLargeError):
        splitter.feed(b"x" * 41)


@pytest.mark.parametrize(
    ("line", "call_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"session.append","params":{"id":"s","events":["', 7),
        (b'{"id":"a","params":{}}', "a"),
        (b'{"jsonrpc":"2.0","method":"session.append","params":{"id":"s","events":["', None),
        (b'[{"id":7,"method":"daemon.status"},{"id":8,"params":["', None),
        (b'{"id":[7],"params":["', None),
        (b"", None),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_to_the_call_that_its_beginning_names(
    line: bytes, call_id: object
) -> None:
    error = OverloadedError("no memory", limit="memory")
    got = refuse_unread(line + b"x" * 10_000, error)
    assert (got.id, got.error, got.notification) == (call_id, error, False)
