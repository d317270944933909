from __future__ import annotations

import json
from typing import Any

import pytest

from dshd.sessions.closers import closers
from dshd.sessions.fold import Fold
from dshd.sessions.history import within_line
from dshd.sessions.messages import Transcript, canonical_header, derive
from dshd.sessions.surface import SurfaceDefectError
from support.events import assistant, request_header, stored, title, user
from support.logs import read_log, sha256
from support.vectors import vectors


def whole(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    fold = Fold()
    for event in events:
        fold.apply(event)
    return [*events, *closers(fold)]


def test_every_sample_log_gives_the_recorded_messages() -> None:
    folder = vectors() / "logs"
    judged = 0
    for log in json.loads((folder / "manifest.json").read_bytes())["logs"]:
        if log["verdict"] != "loads" or log["needs_legacy_import"]:
            continue
        events = read_log(folder / log["file"], log["truncate_to"])
        assert sha256(events) == log["stored_events_sha256"], log["file"]
        history = derive(whole(events))
        assert sha256(history.messages) == log["messages_sha256"], log["file"]
        assert len(history.messages) == log["messages"], log["file"]
        judged += 1
    assert judged > 90


def test_every_log_that_the_other_program_wrote_gives_the_recorded_messages() -> None:
    judged = 0
    for folder in sorted(path for path in (vectors() / "zstd").iterdir() if path.is_dir()):
        expected = json.loads((folder / "expected.json").read_bytes())
        if expected.get("needs_legacy_import"):
            continue
        (path,) = folder.glob("session.*")
        events = read_log(path)
        assert sha256(events) == expected["stored_events_sha256"], folder.name
        messages = derive(whole(events)).messages
        assert sha256(messages) == expected["messages_sha256"], folder.name
        judged += 1
    assert judged > 40


def test_an_answer_without_content_is_no_message() -> None:
    empty = assistant()
    empty["data"]["message"]["content"] = []
    log = stored([user("one"), empty, title(), user("two")])
    assert [message["id"] for message in derive(log).messages] == ["u-one", "u-two"]


def test_a_replacement_stands_where_the_replaced_stood() -> None:
    compaction = user(
        "short", surfaceOp={"op": "replace", "start": 0, "end": 1}, sourceEventSeqs=[0, 1]
    )
    log = stored([user("one"), assistant(), user("two"), compaction])
    assert [message["id"] for message in derive(log).messages] == ["u-short", "u-two"]


def test_a_history_grows_with_its_log_and_refuses_what_does_not_fit() -> None:
    transcript = Transcript()
    log = stored([user("one"), user("two", surfaceOp={"op": "replace", "start": 7, "end": 7})])
    transcript.add(log[0])
    first = transcript.history()
    with pytest.raises(SurfaceDefectError):
        transcript.add(log[1])
    assert transcript.history() == first
    assert transcript.history().messages is not first.messages


def test_the_last_header_and_context_are_in_force() -> None:
    context = {"type": "request/context", "data": {"provider": "p", "model": "m"}}
    log = stored([request_header(), context, user("one")])
    history = derive(log)
    assert history.request_header == {"config": {"provider": "p", "model": "m"}}
    assert history.request_context == {"provider": "p", "model": "m"}
    assert derive([]).request_header is None
    assert derive([]).request_context is None


def test_a_header_in_force_leaves_out_what_is_as_good_as_absent() -> None:
    config = {"provider": "p", "model": "m", "maxTokens": 1}
    bare: dict[str, Any] = {"config": config, "system": "", "tools": [], "adapterDefaults": {}}
    full: dict[str, Any] = {
        "config": config,
        "system": "s",
        "tools": [{}],
        "adapterDefaults": {"maxTokens": True},
    }
    assert canonical_header(bare) == {"config": config}
    assert canonical_header(full) == full


def test_of_a_page_the_largest_that_has_no_room_is_left_out_and_named() -> None:
    page: dict[str, Any] = {
        "messages": [],
        "requestHeader": {"system": "x" * 500},
        "requestContext": None,
        "recovery": {"repairs": ["y" * 300]},
        "problem": None,
        "unanswered": ["z" * 400],
    }
    assert within_line(page, 1500) == page
    one_less = within_line(page, 1000)
    assert one_less == {**page, "requestHeader": None, "leftOut": ["requestHeader"]}
    least = within_line(page, -1)
    assert least["leftOut"] == ["requestHeader", "unanswered", "recovery"]
    assert (least["recovery"], least["problem"], "unanswered" in least) == (None, None, False)
