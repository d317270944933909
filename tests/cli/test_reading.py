from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cli.scripted import BROKEN, PREVIEW, PROBLEM, session
from dsh_protocol.errors import LogCorruptError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.conftest import Ended
    from cli.scripted import ScriptedDaemon

    Dshctl = Callable[..., Ended]

EVENTS = [
    {"type": "turn/start", "seq": 0, "time": 1000, "data": {"turn": 1}},
    {
        "type": "user/message",
        "seq": 1,
        "time": 1000,
        "data": {
            "id": "m",
            "role": "user",
            "content": [{"type": "text", "text": "hi\x1b[2J\ud800"}],
        },
        "surfaceOp": "append",
    },
    {"type": "x/y", "seq": 2, "time": 1000, "data": [1], "ignorable": True},
]


def serve_log(daemon: ScriptedDaemon, size: int, problem: dict[str, Any] | None = None) -> None:
    """Answer `session.read` with pages of `size` events."""

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        start = params["offset"]
        end = min(start + min(size, params.get("length", size)), len(EVENTS))
        return {
            "events": EVENTS[start:end],
            "nextOffset": max(start, end),
            "end": end >= len(EVENTS),
            "durableSeq": 2,
        }

    daemon.answers["session.read"] = answer
    daemon.answers["session.stat"] = lambda _: {
        "session": session("a1", nextSeq=3, problem=problem)
    }


# --- show


def test_show_says_what_is_due_and_what_to_do_next(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    daemon.answers["session.open"] = lambda _: {
        "session": BROKEN,
        "writer": None,
        "recovery": PREVIEW,
    }
    ended = dshctl("show", "a1")
    assert ended.code == 0
    assert daemon.asked("session.open") == [{"id": "a1", "access": "read"}]
    for expected in (
        "state       interrupted, in turn 1, step 1",
        "owner       none",
        "cwd         /w (this directory is missing)",
        "turns       2",
        "open calls  c1",
        "repairs due:",
        "c1    append_line  TOOL_OUTCOME_UNKNOWN  dshd1-00",
        "next: dshctl recover a1",
    ):
        assert expected in ended.out
    assert dshctl("show", "a1", "-o", "json").document["recovery"] == PREVIEW


def test_show_names_the_owner(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    writer = {"pid": 7, "client": "agent", "since": 1000, "connected": False}
    found = session("it's", state="active", openTurn=1, writer=writer)
    daemon.answers["session.open"] = lambda _: {"session": found, "writer": None, "recovery": None}
    out = dshctl("show", "it's").out
    assert "agent, pid 7, since 1970-01-01T00:00:01.000Z, not connected; reserved" in out
    assert "next: dshctl log -n 20 'it'\"'\"'s'" in out


def test_show_of_a_damaged_session_shows_it_and_fails(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    def refuse(_: dict[str, Any]) -> Any:
        raise LogCorruptError("bad frame")

    nothing = dict.fromkeys(("title", "turns", "nextSeq", "durableSeq", "pendingCalls", "header"))
    found = session("a1", state="damaged", problem=PROBLEM, **nothing)
    daemon.answers["session.open"] = refuse
    daemon.answers["session.stat"] = lambda _: {"session": found}
    ended = dshctl("show", "a1")
    assert ended.code == 1
    assert "problem     LOG_CORRUPT: bad frame" in ended.out
    assert "where       /r/a1/log, byte 77" in ended.out
    assert "next: dshd verify a1" in ended.out
    assert dshctl("-o", "json", "show", "a1").document == {"session": found}


# --- log


def test_log_prints_one_safe_line_for_each_event(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    serve_log(daemon, size=2)
    ended = dshctl("log", "a1")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "     0  1970-01-01T00:00:01.000Z  turn/start          turn 1",
        "     1  1970-01-01T00:00:01.000Z  user/message        hi\\x1b[2J\\ud800",
        "     2  1970-01-01T00:00:01.000Z  x/y                 [1]",
    ]


def test_log_as_jsonl_streams_the_events_and_as_json_one_result(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    serve_log(daemon, size=2)
    lines = dshctl("-o", "jsonl", "log", "a1").out.splitlines()
    assert [json.loads(line) for line in lines] == EVENTS
    assert dshctl("-o", "json", "log", "a1").document == {
        "events": EVENTS,
        "nextOffset": 3,
        "end": True,
        "durableSeq": 2,
    }


def test_log_takes_the_last_events_or_those_from_a_seq(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    serve_log(daemon, size=2)

    def seqs(*words: str) -> list[int]:
        lines = dshctl("-o", "jsonl", "log", "a1", *words).out.splitlines()
        return [json.loads(line)["seq"] for line in lines]

    assert seqs("-n", "1") == [2]
    assert seqs("-n", "9") == [0, 1, 2]
    assert seqs("--from", "1") == [1, 2]
    assert seqs("--from", "0", "-n", "1") == [0]
    assert seqs("--from", "9") == []
    assert seqs("-n", "0") == []


def test_log_resolves_last_once(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    serve_log(daemon, size=1)
    daemon.answers["session.list"] = lambda _: {"sessions": [session("a1")], "nextCursor": None}
    assert dshctl("log", "@last").code == 0
    assert len(daemon.asked("session.list")) == 1
    assert {params["id"] for params in daemon.asked("session.read")} == {"a1"}
    assert daemon.asked("session.stat") == [{"id": "a1"}]


def test_log_of_a_damaged_session_gives_what_there_is_and_fails(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    serve_log(daemon, size=2, problem=PROBLEM)
    ended = dshctl("log", "a1")
    assert ended.code == 1
    assert len(ended.out.splitlines()) == 3
    assert "bad frame [LOG_CORRUPT]" in ended.err
    assert ended.err.endswith("try: dshctl show a1\n")


def test_log_of_a_newer_session_is_shown_as_stored(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    serve_log(daemon, size=2, problem={**PROBLEM, "kind": "FORMAT_UNSUPPORTED"})
    ended = dshctl("-o", "jsonl", "log", "a1")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 3
    assert ended.err == "dshctl: shown as stored, not understood: bad frame\n"


# --- messages


def message_page(params: dict[str, Any]) -> dict[str, Any]:
    messages = [
        {
            "id": "1",
            "role": "user",
            "source": {"kind": "user"},
            "content": [{"type": "text", "text": "a\nb"}],
        },
        {
            "id": "2",
            "role": "assistant",
            "source": {"kind": "model"},
            "content": [{"type": "tool-call", "id": "c1", "name": "sh", "arguments": '{"x":1}'}],
        },
        {
            "id": "3",
            "role": "user",
            "source": {"kind": "tool"},
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "c1",
                    "isError": True,
                    "content": [{"type": "text", "text": "no"}, {"type": "image"}],
                }
            ],
        },
    ]
    start = params["offset"]
    end = min(start + min(params.get("limit", 2), 2), len(messages))
    return {
        "messages": messages[start:end],
        "nextOffset": end if end < len(messages) else None,
        "requestHeader": None,
        "requestContext": None,
        "recovery": PREVIEW,
        "problem": PROBLEM if params.get("partial") else None,
    }


def test_messages_reads_like_a_conversation(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    daemon.answers["session.messages"] = message_page
    ended = dshctl("messages", "a1")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "#0 user",
        "    a",
        "    b",
        "#1 assistant (model)",
        '    → sh {"x":1} [c1]',
        "#2 user (tool)",
        '    ← [c1] failed no {"type": "image"}',
    ]
    assert "try: dshctl recover a1" in ended.err


def test_messages_as_json_is_one_result_and_as_jsonl_one_a_line(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    daemon.answers["session.messages"] = message_page
    document = dshctl("-o", "json", "messages", "a1").document
    assert [message["id"] for message in document["messages"]] == ["1", "2", "3"]
    assert document["nextOffset"] is None
    assert document["recovery"] == PREVIEW
    lines = dshctl("-o", "jsonl", "messages", "a1", "--from", "1", "-n", "1").out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["2"]


def test_what_a_later_page_has_no_room_for_is_taken_from_one_before_it(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    header = {"config": {"provider": "p", "model": "m"}}

    def crowded(params: dict[str, Any]) -> dict[str, Any]:
        page = message_page(params) | {"requestHeader": header}
        if params["offset"] == 0:
            return page | {"requestContext": None, "leftOut": ["requestContext"]}
        left_out = ["requestHeader", "requestContext", "recovery"]
        return page | dict.fromkeys(left_out) | {"leftOut": left_out}

    daemon.answers["session.messages"] = crowded
    document = dshctl("-o", "json", "messages", "a1").document
    assert (document["requestHeader"], document["recovery"]) == (header, PREVIEW)
    assert document["leftOut"] == ["requestContext"]
    assert "try: dshctl recover a1" in dshctl("messages", "a1").err


def test_messages_of_a_part_say_so_and_fail(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    daemon.answers["session.messages"] = message_page
    ended = dshctl("messages", "a1", "--partial")
    assert ended.code == 1
    assert "this is not all: bad frame [LOG_CORRUPT]" in ended.err
