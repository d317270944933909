from __future__ import annotations

import errno
import io
import json

import pytest

from dsh_client.cli import times
from dsh_client.cli.output import Column, Output, OutputLostError, Terminal, terminal_of

COLUMNS = (Column("ID"), Column("N", right=True), Column("TITLE", floor=4))
ROWS = [["a", "1", "short"], ["会议", "100", "a long title that has to give way"]]


def printed(terminal: Terminal) -> list[str]:
    stream = io.BytesIO()
    Output(stream, io.BytesIO(), "table", terminal).table(COLUMNS, ROWS)
    return stream.getvalue().decode(terminal.encoding).splitlines()


def test_a_table_on_no_terminal_is_not_cut() -> None:
    assert printed(Terminal()) == [
        "ID      N  TITLE",
        "a       1  short",
        "会议  100  a long title that has to give way",
    ]


def test_a_table_is_cut_to_the_terminal() -> None:
    assert printed(Terminal(20)) == ["ID      N  TITLE", "a       1  short", "会议  100  a long t…"]


def test_a_terminal_of_one_column_gets_one_column() -> None:
    assert all(len(line) <= 1 for line in printed(Terminal(1)))


def test_a_narrow_encoding_gets_escapes_and_never_an_error() -> None:
    assert printed(Terminal(20, "ascii"))[2] == "\\u4f1a\\u8bae  100  a long..."


def test_json_is_utf_8_whatever_the_locale_and_holds_lone_surrogates_as_escapes() -> None:
    stream = io.BytesIO()
    out = Output(stream, io.BytesIO(), "json", Terminal(None, "ascii"))
    out.json({"t": "é\x7f\x1b\ud800", "n": 1e21})
    assert stream.getvalue() == '{"t":"é\\u007f\\u001b\\ud800","n":1e+21}\n'.encode()
    stream.truncate(0)
    stream.seek(0)
    out.pretty({"t": "é\ud800"})
    assert stream.getvalue().isascii()
    assert json.loads(stream.getvalue()) == {"t": "é\ud800"}


def test_a_block_of_text_keeps_its_lines_and_nothing_else() -> None:
    stream = io.BytesIO()
    Output(stream, io.BytesIO(), "table").block("one\r\ntwo\x1b[2J\n\n\u2028three", "  ")
    assert stream.getvalue().decode() == "  one\n  two\\x1b[2J\n\n  \\u2028three\n"


class _Full(io.BytesIO):
    """A stream that takes nothing."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, _data: object) -> int:
        raise OSError(self._number, "no")


@pytest.mark.parametrize(("number", "broken"), [(errno.EPIPE, True), (errno.ENOSPC, False)])
def test_a_lost_output_says_whether_the_reader_went_away(number: int, *, broken: bool) -> None:
    out = Output(_Full(number), io.BytesIO(), "table")
    with pytest.raises(OutputLostError) as caught:
        out.line("text")
    assert caught.value.broken is broken


def test_a_stream_that_is_no_terminal_has_no_columns() -> None:
    assert terminal_of(io.StringIO(), {"COLUMNS": "3"}) == Terminal(None, "utf-8")
    assert terminal_of(None, {}) == Terminal(None, "utf-8")


@pytest.mark.parametrize(
    ("ago_ms", "text"),
    [
        (0, "now"),
        (999, "now"),
        (5_000, "5 s ago"),
        (-5_000, "in 5 s"),
        (125_000, "2 min ago"),
        (7_200_000, "2 h ago"),
        (86_400_000 * 3, "3 d ago"),
        (86_400_000 * 100, "2023-08-06"),
    ],
)
def test_times_for_people_are_relative(ago_ms: int, text: str) -> None:
    now = 1_700_000_000_000
    assert times.relative(now - ago_ms, now) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (10**30, str(10**30)),
        (None, "-"),
        ("x", "-"),
    ],
)
def test_times_for_programs_are_rfc_3339(value: object, text: str) -> None:
    assert times.rfc3339(value) == text
    times.relative(value, 0)
