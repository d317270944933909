from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cli.scripted import SERVER, session
from dsh_protocol.errors import (
    LogCorruptError,
    NoSpaceError,
    SessionBusyError,
    SessionNotFoundError,
)

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
REPAIR = {
    "callId": "c1",
    "name": "append_line",
    "arguments": "{}",
    "turn": 1,
    "step": 1,
    "code": "TOOL_OUTCOME_UNKNOWN",
    "callSeq": 7,
    "idempotencyKey": "dshd1-00",
    "message": "verify first",
}
CLOSERS: list[dict[str, Any]] = [{"type": "turn/end", "seq": 12, "time": 1, "data": {}}]
PREVIEW: dict[str, Any] = {
    "committed": False,
    "repairs": [REPAIR],
    "closers": CLOSERS,
    "nextSeq": 14,
}
PROBLEM = {"kind": "LOG_CORRUPT", "message": "bad frame", "path": "/r/a1/log", "offset": 77}
BROKEN = session("a1", state="interrupted", openTurn=1, openStep=1, pendingCalls=["c1"])


def serve_pages(daemon: ScriptedDaemon, ids: list[str], size: int) -> None:
    """Answer `session.list` with pages of at most `size`."""

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        start = int(params.get("cursor", "0"))
        end = start + min(size, params.get("limit", 100))
        sessions = [session(one) for one in ids[start:end]]
        return {"sessions": sessions, "nextCursor": str(end) if end < len(ids) else None}

    daemon.answers["session.list"] = answer


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


# --- list


def test_list_shows_a_row_for_each_session(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    writer = {"pid": 7, "client": "agent", "since": 1, "connected": True}
    found = session("a1", title="fix\x1b]0;x\x07 it", writer=writer)
    daemon.answers["session.list"] = lambda _: {"sessions": [found], "nextCursor": None}
    ended = dshctl("list")
    assert ended.code == 0
    assert ended.err == ""
    head, row = ended.out.splitlines()
    assert head.split() == ["ID", "STATE", "TURNS", "EVENTS", "UPDATED", "OWNER", "CWD", "TITLE"]
    assert "a1  idle" in row
    assert "2023-11-14T22:13:20.000Z  agent (7)  /w   fix\\x1b]0;x\\x07 it" in row


def test_list_as_json_is_the_result_itself(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    result = {"sessions": [session("a1", title="\ud800\x9b"), session("b")], "nextCursor": None}
    daemon.answers["session.list"] = lambda _: result
    ended = dshctl("-o", "json", "list")
    assert ended.document == result
    assert ended.out.count("\n") == 1
    assert "\x9b" not in ended.out
    assert dshctl("list", "-o", "json").out == ended.out
    assert [json.loads(line) for line in dshctl("ls", "-o", "jsonl").out.splitlines()] == result[
        "sessions"
    ]


def test_list_gathers_pages_up_to_what_was_asked_for(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    serve_pages(daemon, [f"s{number}" for number in range(7)], size=3)
    assert dshctl("list", "-q", "-n", "0").out.split() == [f"s{number}" for number in range(7)]
    ended = dshctl("list", "-q", "-n", "4")
    assert ended.out.split() == ["s0", "s1", "s2", "s3"]
    assert dshctl("list", "-o", "json", "-n", "4").document["nextCursor"] == "4"
    assert "4 sessions shown, there are more" in dshctl("list", "-n", "4").err


def test_list_passes_its_filters_on(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    serve_pages(daemon, ["a1"], 9)
    ended = dshctl("list", "--cwd", "/w/../x", "-s", "idle", "-s", "damaged")
    assert daemon.asked("session.list") == [
        {"cwd": "/x", "states": ["idle", "damaged"], "limit": 100}
    ]
    assert "sessions of /x only" in ended.err


def test_list_counts_what_needs_a_look(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    found = [
        session("a", state="damaged"),
        session("b", state="unsupported", header=None, turns=None),
    ]
    daemon.answers["session.list"] = lambda _: {"sessions": found, "nextCursor": None}
    ended = dshctl("list")
    assert ended.code == 0
    assert "1 damaged" in ended.err
    assert "1 written by a newer" in ended.err


def test_an_empty_list_prints_nothing_but_a_note(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    serve_pages(daemon, [], 9)
    assert dshctl("list") == (0, "", "no session is stored yet\n")


# --- naming a session


def test_a_unique_beginning_of_an_id_is_enough(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    def stat(params: dict[str, Any]) -> dict[str, Any]:
        if params["id"] != "abc-9":
            raise SessionNotFoundError(f"no session '{params['id']}'")
        return {"session": session("abc-9"), "writer": None, "recovery": None}

    daemon.answers["session.open"] = stat
    serve_pages(daemon, ["x", "abc-9", "abd"], size=2)
    assert dshctl("-o", "json", "show", "abc").document["session"]["id"] == "abc-9"
    ambiguous = dshctl("show", "ab")
    assert ambiguous.code == 2
    assert ambiguous.out == ""
    assert ambiguous.err.splitlines() == [
        "dshctl: 2 sessions begin with 'ab'; write more of the id:",
        "  abc-9",
        "  abd",
    ]
    none = dshctl("show", "zz")
    assert none.code == 4
    assert "'zz'" in none.err
    assert none.err.endswith("try: dshctl list\n")
    assert dshctl("show", "").code == 4
    assert dshctl("show", "\udcff").code == 4


def test_a_whole_id_wins_over_a_beginning(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    serve_pages(daemon, ["ab", "abc"], 9)
    daemon.answers["session.open"] = lambda params: {"session": session(params["id"])}
    assert dshctl("show", "ab").code == 0
    assert daemon.asked("session.list") == []


def test_last_is_the_newest_session(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    serve_pages(daemon, ["new", "old"], 9)
    daemon.answers["session.open"] = lambda params: {"session": session(params["id"])}
    assert dshctl("-o", "json", "show", "@last").document["session"]["id"] == "new"
    assert daemon.asked("session.list") == [{"limit": 1}]
    serve_pages(daemon, [], 9)
    assert dshctl("show", "@last").code == 4


def test_an_id_may_begin_with_a_dash(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    daemon.answers["session.open"] = lambda params: {"session": session(params["id"])}
    assert dshctl("-o", "json", "show", "--", "-x").document["session"]["id"] == "-x"


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


def test_log_of_a_damaged_session_gives_what_there_is_and_fails(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    serve_log(daemon, size=2, problem=PROBLEM)
    ended = dshctl("log", "a1")
    assert ended.code == 1
    assert len(ended.out.splitlines()) == 3
    assert "bad frame [LOG_CORRUPT]" in ended.err
    assert ended.err.endswith("try: dshctl show a1\n")


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


def test_messages_of_a_part_say_so_and_fail(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    daemon.answers["session.messages"] = message_page
    ended = dshctl("messages", "a1", "--partial")
    assert ended.code == 1
    assert "this is not all: bad frame [LOG_CORRUPT]" in ended.err


# --- recover


def test_recover_is_a_dry_run(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    daemon.answers["session.open"] = lambda _: {
        "session": BROKEN,
        "writer": None,
        "recovery": PREVIEW,
    }
    ended = dshctl("recover", "a1")
    assert ended.code == 0
    assert daemon.calls == [("session.open", {"id": "a1", "access": "read"})]
    assert "c1: verify first" in ended.out
    assert "1 closing events would be written; the next event is 14" in ended.out
    assert "dshctl recover --apply a1" in ended.out
    assert dshctl("-o", "json", "recover", "a1").document == PREVIEW


def test_recover_of_a_closed_session_finds_nothing(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    daemon.answers["session.open"] = lambda _: {
        "session": session("a1"),
        "writer": None,
        "recovery": None,
    }
    assert "nothing to recover" in dshctl("recover", "a1").out
    assert dshctl("-o", "json", "recover", "a1").document == {
        "committed": False,
        "repairs": [],
        "closers": [],
        "nextSeq": 12,
    }


def test_recover_with_apply_takes_the_handle_and_gives_it_back(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    done = {**PREVIEW, "committed": True}
    daemon.answers["session.open"] = lambda _: {
        "session": BROKEN,
        "writer": "w1",
        "recovery": PREVIEW,
    }
    daemon.answers["session.recover"] = lambda _: done
    daemon.answers["session.close"] = lambda _: {"nextSeq": 14, "durableSeq": 14}
    ended = dshctl("recover", "a1", "--apply")
    assert daemon.calls == [
        ("session.open", {"id": "a1", "access": "write"}),
        ("session.recover", {"id": "a1", "writer": "w1"}),
        ("session.close", {"id": "a1", "writer": "w1"}),
    ]
    assert "1 closing events were written" in ended.out
    assert dshctl("-o", "json", "recover", "a1", "--apply", "--takeover").document == done
    assert daemon.asked("session.open")[-1] == {"id": "a1", "access": "write", "takeover": True}
    assert dshctl("recover", "a1", "--takeover").code == 2


def test_a_recovery_that_fails_still_gives_the_handle_back(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    def full(_: dict[str, Any]) -> Any:
        raise NoSpaceError("the disk is full")

    daemon.answers["session.open"] = lambda _: {
        "session": BROKEN,
        "writer": "w1",
        "recovery": PREVIEW,
    }
    daemon.answers["session.recover"] = full
    daemon.answers["session.close"] = full
    ended = dshctl("recover", "a1", "--apply")
    assert ended.code == 1
    assert daemon.asked("session.close") == [{"id": "a1", "writer": "w1"}]
    assert ended.out == ""
    assert "dshctl: the disk is full [NO_SPACE]" in ended.err


def test_a_living_agent_is_named_and_not_disturbed(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    holder = {"pid": 7, "client": "agent", "since": 1, "connected": False}

    def busy(params: dict[str, Any]) -> Any:
        if params["access"] == "write":
            raise SessionBusyError("session 'a1' is reserved", holder=holder)
        return {
            "session": session("a1", state="active", writer=holder),
            "writer": None,
            "recovery": None,
        }

    daemon.answers["session.open"] = busy
    ended = dshctl("recover", "a1", "--apply")
    assert ended.code == 5
    assert "dshctl recover --apply --takeover a1" in ended.err
    assert "pid 7 (agent) has this session" in dshctl("recover", "a1").err


# --- status, rpc, version


def test_status_shows_the_daemon(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    status = {
        "server": SERVER,
        "startedAt": 1_700_000_000_000,
        "sessions": {"idle": 2, "active": 0, "interrupted": 1},
        "limits": {},
        "socket": "/run/s",
        "root": "/r",
        "problems": [{"kind": "NO_SPACE", "message": "full\x1b", "path": "/r", "offset": None}],
    }
    daemon.answers["daemon.status"] = lambda _: status
    assert dshctl("-o", "json", "status").document == status
    assert dshctl("status").out.splitlines() == [
        "daemon    dshd 9.9.9, pid 4312",
        "started   2023-11-14T22:13:20.000Z",
        "socket    /run/s",
        "root      /r",
        "sessions  2 idle, 1 interrupted",
        "problem: NO_SPACE: full\\x1b",
    ]
    versions = dshctl("-o", "json", "version").document
    assert versions["server"] == SERVER
    assert "daemon    dshd 9.9.9, pid 4312" in dshctl("version").out


def test_rpc_passes_parameters_as_they_are(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    text = '{"method":"m","self":null,"id":"é","n":9007199254740993}'
    daemon.answers["any.method"] = lambda params: {"got": params}
    ended = dshctl("-o", "json", "rpc", "any.method", text)
    assert ended.document == {"got": json.loads(text)}
    assert dshctl("rpc", "any.method").out == '{\n  "got": {}\n}\n'


@pytest.mark.parametrize("text", ["{", "[]", "7", "[" * 100_000])
def test_rpc_refuses_what_is_no_object(daemon: ScriptedDaemon, dshctl: Dshctl, text: str) -> None:
    ended = dshctl("rpc", "any.method", text)
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith("try: dshctl rpc")
    assert daemon.calls == []
