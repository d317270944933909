from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_client.cli.text import clip, escape, escape_json, pad, shell_word, width

ANY_TEXT = st.text(st.characters())  # surrogates too


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("bell\x07 del\x7f csi\x9b", "bell\\x07 del\\x7f csi\\x9b"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("会议 é 👩\u200d💻", "会议 é 👩\u200d💻"),
    ],
)
def test_what_would_steer_a_terminal_becomes_visible(raw: str, shown: str) -> None:
    assert escape(raw) == shown
    assert escape(shown) == shown


@given(ANY_TEXT)
def test_escaped_text_is_printable_and_has_an_encoding(text: str) -> None:
    shown = escape(text)
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in shown)
    shown.encode()


@given(st.recursive(ANY_TEXT, lambda inner: st.dictionaries(ANY_TEXT, inner)))
def test_a_json_document_keeps_its_value_when_escaped(value: object) -> None:
    text = escape_json(json.dumps(value, ensure_ascii=False))
    text.encode()
    assert json.loads(text) == json.loads(json.dumps(value))


def test_wide_characters_take_two_columns_and_marks_none() -> None:
    assert width("ab") == 2
    assert width("会议") == 4
    assert width("e\u0301") == 1


@given(ANY_TEXT, st.integers(0, 20))
def test_clipped_text_never_takes_more_than_its_columns(text: str, columns: int) -> None:
    assert width(clip(escape(text), columns)) <= columns


def test_clipping_a_wide_character_in_half_drops_it() -> None:
    assert clip("会议会议", 6) == "会议…"
    assert clip("会议", 1, "...") == ""
    assert pad("会", 4) == "会  "
    assert pad("7", 3, right=True) == "  7"


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        ("a1", "a1"),
        ("a b", "'a b'"),
        ("-x", "-- '-x'"),
        ("it's", "'it'\"'\"'s'"),
        ("", "''"),
        ("é", "'é'"),
    ],
)
def test_an_id_becomes_one_word_for_the_shell(raw: str, word: str) -> None:
    assert shell_word(raw) == word
