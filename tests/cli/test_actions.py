from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cli.scripted import BROKEN, PREVIEW, PROBLEM, SERVER, session
from dsh_protocol.errors import NoSpaceError, SessionBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.conftest import Ended
    from cli.scripted import ScriptedDaemon

    Dshctl = Callable[..., Ended]

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


def test_recover_of_a_damaged_session_says_that_it_would_be_refused(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    found = session("a1", state="damaged", problem=PROBLEM)
    daemon.answers["session.open"] = lambda _: {"session": found, "writer": None, "recovery": None}
    ended = dshctl("recover", "a1")
    assert ended.code == 1
    assert ended.out == ""
    assert ended.err.splitlines() == [
        "dshctl: --apply would be refused: bad frame [LOG_CORRUPT]",
        "try: dshctl show a1",
    ]


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
