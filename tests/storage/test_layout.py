from __future__ import annotations

import json
from typing import Any

import pytest

from dsh_protocol.errors import IdInvalidError, InvalidParamsError
from dshd.storage.jsonl import layout
from support.vectors import vectors


def golden(table: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((vectors() / "paths.json").read_bytes())[table]
    return cases


def test_every_recorded_id_is_encoded_as_recorded_and_back() -> None:
    for case in golden("encode_segment"):
        if "error" in case:
            with pytest.raises(ValueError, match="empty"):
                layout.encode_segment(case["input"])
        else:
            assert layout.encode_segment(case["input"]) == case["output"]
            assert layout.decode_segment(case["output"]) == case["input"]


def test_every_recorded_cwd_selects_the_recorded_project() -> None:
    for case in golden("project_key"):
        if "error" in case:
            with pytest.raises(ValueError, match="empty"):
                layout.project_key(case["input"])
        else:
            assert layout.project_key(case["input"]) == case["output"], case


def test_every_recorded_log_lies_where_it_was_recorded() -> None:
    for case in golden("log_path"):
        if "error" in case:
            continue
        name = layout.log_name(case["encoding"])
        project = layout.project_name(case.get("cwd"))
        place = layout.Place(project, layout.encode_segment(case["id"]), name)
        assert place.log == case["output"]


@pytest.mark.parametrize("name", ["~zz", "~002F~", "a b", "~0041", "é", ".", "..", ""])
def test_a_name_that_no_id_is_encoded_to_is_no_session(name: str) -> None:
    assert layout.decode_segment(name) is None


@pytest.mark.parametrize("session_id", ["", "x" * 256, "😀" * 100, "é" * 52, "\ud800"])
def test_an_id_that_cannot_name_a_directory_is_refused_at_create(session_id: str) -> None:
    with pytest.raises(IdInvalidError):
        layout.check_new_id(session_id)


@pytest.mark.parametrize("session_id", ["x" * 255, "é" * 51, "..", ".", "../../etc/passwd", "\0"])
def test_any_other_id_becomes_one_plain_segment(session_id: str) -> None:
    segment = layout.check_new_id(session_id)
    assert "/" not in segment
    assert "\0" not in segment
    assert segment not in {".", ".."}
    assert len(segment.encode()) <= 255


@pytest.mark.parametrize("cwd", ["", "a/b", "./a", "/a\0b", "/\udfff", "/" + "a" * 5000])
def test_a_cwd_that_could_never_be_loaded_is_refused_at_create(cwd: str) -> None:
    with pytest.raises(InvalidParamsError):
        layout.check_cwd(cwd)


def test_a_session_without_a_cwd_lies_apart() -> None:
    assert layout.check_cwd(None) == "_no-cwd"
    assert layout.check_cwd("/_no-cwd") != "_no-cwd"
