from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cli.scripted import session
from dsh_protocol.errors import SessionNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.conftest import Ended
    from cli.scripted import ScriptedDaemon

    Dshctl = Callable[..., Ended]


def serve_pages(daemon: ScriptedDaemon, ids: list[str], size: int) -> None:
    """Answer `session.list` with pages of at most `size`."""

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        start = int(params.get("cursor", "0"))
        end = start + min(size, params.get("limit", 100))
        sessions = [session(one) for one in ids[start:end]]
        return {"sessions": sessions, "nextCursor": str(end) if end < len(ids) else None}

    daemon.answers["session.list"] = answer


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
    assert "4 sessions shown, there are more; for all add -n 0" in dshctl("list", "-n", "4").err


def test_list_passes_its_filters_on(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    serve_pages(daemon, ["a1"], 9)
    ended = dshctl("list", "--cwd", "/w/../x", "-s", "idle", "-s", "damaged")
    assert daemon.asked("session.list") == [
        {
            "cwd": "/x",
            "states": ["idle", "damaged"],
            "limit": 100,
            "archived": False,
            "count": True,
        }
    ]
    assert ended.err == ""  # a daemon that does not count is not asked for more


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
    serve_pages(daemon, ["x", "abc-9", "abx"], size=2)
    assert dshctl("-o", "json", "show", "abc").document["session"]["id"] == "abc-9"
    ambiguous = dshctl("show", "ab")
    assert ambiguous.code == 2
    assert ambiguous.out == ""
    assert ambiguous.err.splitlines() == [
        "dshctl: 2 sessions begin with 'ab'; write more of the id:",
        "  abc-9",
        "  abx",
    ]
    none = dshctl("show", "zz")
    assert none.code == 4
    assert "'zz'" in none.err
    assert none.err.endswith("try: dshctl list --all\n")
    assert dshctl("show", "").code == 4
    assert dshctl("show", "\udcff").code == 4


def test_a_whole_id_wins_over_a_beginning(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    serve_pages(daemon, ["ab", "abc"], 9)
    daemon.answers["session.open"] = lambda params: {"session": session(params["id"])}
    assert dshctl("show", "ab").code == 0
    assert daemon.asked("session.list") == []


def test_an_id_may_be_written_as_it_is_shown(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    def answer(params: dict[str, Any]) -> dict[str, Any]:
        if params["id"].startswith("\\"):
            raise SessionNotFoundError("no such session")
        return {"session": session(params["id"])}

    daemon.answers["session.open"] = answer
    serve_pages(daemon, ["\ud800", "\ud800x", "a\x1bb"], 9)
    assert dshctl("-o", "json", "show", "\\ud800").document["session"]["id"] == "\ud800"
    assert dshctl("-o", "json", "show", "\ud800").document["session"]["id"] == "\ud800"
    assert dshctl("-o", "json", "show", "\\ud800x").document["session"]["id"] == "\ud800x"
    assert dshctl("show", "\\ud8").code == 2


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
