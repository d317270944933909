"""`--fields` and `--utc`: what is printed of a result, and how times are told."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

from cli.scripted import session
from dsh_client.cli.output import Output, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.conftest import Ended
    from cli.scripted import ScriptedDaemon

    Dshctl = Callable[..., Ended]


@pytest.fixture(autouse=True)
def two(daemon: ScriptedDaemon) -> None:
    found = [session("a1"), session("b1", state="damaged")]
    daemon.answers["session.list"] = lambda _: {"sessions": found, "nextCursor": None}
    daemon.answers["daemon.status"] = lambda _: {"root": "/r", "server": {"pid": 1}, "problems": []}


def test_each_object_of_a_list_is_cut(dshctl: Dshctl) -> None:
    ended = dshctl("-o", "json", "--fields", "id,header.cwd", "list")
    assert ended.document == {
        "sessions": [{"id": "a1", "header.cwd": "/w"}, {"id": "b1", "header.cwd": "/w"}],
        "nextCursor": None,
    }
    lines = dshctl("list", "-o", "jsonl", "--fields", "state").out.split()
    assert [json.loads(line) for line in lines] == [{"state": "idle"}, {"state": "damaged"}]


def test_a_result_without_a_list_is_cut_itself(dshctl: Dshctl) -> None:
    daemon_only = dshctl("rpc", "daemon.status", "-o", "json", "--fields", "server.pid,root")
    assert daemon_only.document["problems"] == []  # a list of objects, if an empty one
    ended = dshctl("version", "-o", "json", "--fields", "client,server.pid")
    assert ended.document.keys() == {"client", "server.pid"}


def test_a_member_that_nothing_has_is_said(dshctl: Dshctl) -> None:
    ended = dshctl("-o", "json", "--fields", "id,colour", "list")
    assert ended.code == 0
    assert ended.document["sessions"] == [{"id": "a1"}, {"id": "b1"}]
    assert ended.err == "nothing has the member colour\n"


@pytest.mark.parametrize(
    "words", [["--fields", "id", "list"], ["list", "-o", "json", "--fields", ","]]
)
def test_fields_of_a_table_or_none_at_all_are_wrong_usage(dshctl: Dshctl, words: list[str]) -> None:
    ended = dshctl(*words)
    assert (ended.code, ended.out) == (2, "")


def test_a_terminal_is_told_how_long_ago_or_in_utc(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    out = Output(io.BytesIO(), io.BytesIO(), "table", Terminal(80))
    assert out.when(0) == "1970-01-01"
    out.utc = True
    assert out.when(0) == "1970-01-01T00:00:00.000Z"


def test_utc_may_stand_on_either_side_of_the_verb(dshctl: Dshctl) -> None:
    assert dshctl("--utc", "list").out == dshctl("list", "--utc").out
