"""`dshctl import --from`: whole and broken files of other programs, through a real daemon."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from cli import foreign
from cli.looking import Dshctl
from dsh_client.cli.importing import archive
from dsh_client.cli.importing.carrying import visible
from dsh_client.cli.importing.lines import pieces
from support.daemon import DaemonProcess, open_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIND_OF = {"CLAUDE": "claude-code", "CODEX": "codex", "OPENAI": "openai"}
TORN = "a torn record"
NO_RESULT = "a call without a result"
STRAY = "a result without an open call"
HALF = "half of a surrogate pair"
AGAIN = "a record twice (left out the second time)"
FILES: dict[str, tuple[int, int, set[str]]] = {
    # messages that the history has, turns, and the damage that is told
    "CLAUDE_WHOLE": (7, 2, set()),
    "CLAUDE_TORN": (5, 2, {TORN, NO_RESULT, "NUL bytes", "two records on one line"}),
    "CLAUDE_UNANSWERED": (
        7,
        2,
        {
            NO_RESULT,
            STRAY,
            AGAIN,
            "a call id twice",
            "a record's uuid twice, with other content",
        },
    ),
    "CLAUDE_ODD": (
        7,
        2,
        {
            HALF,
            "a number that a log cannot hold",
            "a key twice in one object",
            "bytes that are not UTF-8",
            "nested too deep",
        },
    ),
    "CODEX_WHOLE": (6, 1, set()),
    "CODEX_TORN": (2, 1, {TORN, "NUL bytes", "two records on one line"}),
    "CODEX_UNANSWERED": (6, 2, {NO_RESULT, STRAY, AGAIN, "a call id twice"}),
    "CODEX_OLD": (3, 1, {TORN, HALF}),
    "OPENAI_WHOLE": (6, 1, set()),
    "OPENAI_ITEMS": (4, 1, set()),
    "OPENAI_TORN": (5, 1, {TORN}),
    "OPENAI_LINES": (4, 2, {TORN, HALF}),
    "OPENAI_UNANSWERED": (8, 2, {NO_RESULT, STRAY}),
}

TRANSLATED = {
    *("is_error", "tool_use_id", "tool_result", "tool_use", "thinking"),
    *("input_text", "output_text", "action", "input", "summary", "summary_text"),
}
"""Names of parts that a log has under other names."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path_factory.mktemp("import")) as running:
        yield running


@pytest.fixture
def dshctl(daemon: DaemonProcess, capsysbinary: pytest.CaptureFixture[bytes]) -> Dshctl:
    return Dshctl(daemon, capsysbinary)


def imported(dshctl: Dshctl, kind: str, *paths: Path) -> tuple[int, list[dict[str, Any]]]:
    code = dshctl("-o", "json", "import", "--again", "--from", kind, *map(str, paths))
    return code, json.loads(dshctl.out)["imported"]


def events_of(daemon: DaemonProcess, session_id: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while True:
        page = daemon.call("session.read", id=session_id, offset=len(events))
        events += page["events"]
        if page["end"]:
            return events


def leaves(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names of members too."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            todo += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            todo += one
        elif isinstance(one, str):
            yield one


def missing_texts(content: bytes, events: list[dict[str, Any]]) -> set[str]:
    """What the file says, record by record as it can be decoded, and the events do not."""
    stored = "\n".join(leaves(events))
    said = {json.dumps(text)[1:-1] for text in leaves(events)}
    known = stored + "\n".join(said)
    records = [piece.value or piece.text for piece in pieces(_lines(content), lambda _: True)]
    if (
        content.lstrip(foreign.BOM)[:1] == b"{" and b"\n  " in content
    ):  # one document over many lines
        records = [part for part in content.decode("utf-8-sig").split('"') if part.isalnum()]
    wanted = {visible(text) for record in records for text in leaves(record) if len(text) < 60_000}
    return {text for text in wanted - TRANSLATED if text not in known}


def _lines(content: bytes) -> Any:
    return io.BytesIO(content)


@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_an_archive_that_says_what_was_not_understood(
    name: str, daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    messages, turns, damage = FILES[name]
    content: bytes = getattr(foreign, name)
    path = tmp_path / name
    path.write_bytes(content)
    code, [report] = imported(dshctl, KIND_OF[name.split("_", maxsplit=1)[0]], path)
    assert {one["kind"] for one in report["notUnderstood"] if one["damage"]} == damage
    assert (code, report["damaged"]) == (1, True) if damage else (0, False)
    assert report["error"] is None
    assert path.read_bytes() == content
    ids = [one["id"] for one in report["sessions"]]
    shown = [daemon.call("session.stat", id=one)["session"] for one in ids]
    assert {one["state"] for one in shown} == {"idle"}
    assert all(one["labels"]["archived"] for one in shown)
    assert sum(one["turns"] for one in shown) == turns
    histories = [daemon.call("session.messages", id=one) for one in ids]
    assert sum(len(one["messages"]) for one in histories) == messages
    assert all("unanswered" not in one and one["problem"] is None for one in histories)
    events = [event for one in ids for event in events_of(daemon, one)]
    assert missing_texts(content, events) == set()
    source = events[0]
    assert (source["type"], source["ignorable"]) == ("import/source", True)
    assert (source["data"]["from"], source["data"]["file"]) == (
        KIND_OF[name.split("_", maxsplit=1)[0]],
        str(path),
    )
    assert events[-1]["type"] == "import/report"
    assert events[-1]["data"]["notUnderstood"] == report["notUnderstood"]


def test_results_find_their_calls_out_of_order_and_times_are_kept(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    path = tmp_path / "whole.jsonl"
    path.write_bytes(foreign.CLAUDE_WHOLE)
    _, [report] = imported(dshctl, "claude-code", path)
    session = daemon.call("session.stat", id=report["sessions"][0]["id"])["session"]
    assert session["header"]["cwd"] == "/src/parser"
    events = events_of(daemon, session["id"])
    said = next(event for event in events if event["type"] == "assistant/message")
    kinds = [block["type"] for block in said["data"]["message"]["content"]]
    assert kinds == ["reasoning", "text", "tool-call", "tool-call"]
    results = {
        event["data"]["message"]["source"]["callId"]: event
        for event in events
        if event["type"] == "tool/result"
    }
    block = results["toolu_1"]["data"]["message"]["content"][0]
    assert (block["content"], block["isError"]) == ([{"type": "text", "text": "one"}], True)
    assert results["toolu_2"]["time"] == 1787302806000
    assert "\u2028 \x85 welcome" in json.dumps(events, ensure_ascii=False)


def test_a_call_id_that_comes_again_never_gets_the_result_of_the_first(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    path = tmp_path / "again.jsonl"
    path.write_bytes(foreign.CODEX_UNANSWERED)
    _, [report] = imported(dshctl, "codex", path)
    results = [
        (event["data"]["message"]["source"]["callId"], event["data"].get("error", {}).get("code"))
        for event in events_of(daemon, report["sessions"][0]["id"])
        if event["type"] == "tool/result"
    ]
    assert results == [("c1", "TOOL_OUTCOME_UNKNOWN"), ("c1~2", None)]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_breaks_a_file_what_is_left_of_it_is_imported(
    seed: int, daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path
) -> None:
    dice = random.Random(seed)  # noqa: S311  # for a test
    names = [name for name in FILES if name != "CLAUDE_ODD"]
    for name in dice.sample(names, 3):
        content = bytearray(getattr(foreign, name))
        for _ in range(dice.randint(1, 4)):
            place = dice.randrange(len(content))
            far = min(place + dice.choice((1, 7, 200)), len(content))
            piece = content[place:far]
            content[place:far] = dice.choice(
                (b"", bytes(len(piece)), piece * 2, b"\n", b"\xff", b'"', b"{}", piece[::-1])
            )
        path = tmp_path / f"{name}-{seed}"
        path.write_bytes(content)
        code, [report] = imported(dshctl, KIND_OF[name.split("_", maxsplit=1)[0]], path)
        assert report["error"] is None, (name, report["error"])
        assert code in {0, 1}
        for one in report["sessions"]:
            assert daemon.call("session.stat", id=one["id"])["session"]["state"] == "idle"


def test_an_empty_file_is_an_empty_archive(dshctl: Dshctl, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"\n \r\n")
    code, [report] = imported(dshctl, "codex", tmp_path / "empty")
    assert (code, report["messages"], len(report["sessions"])) == (0, 0, 1)


def test_a_file_that_cannot_be_read_does_not_stop_the_next(dshctl: Dshctl, tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(foreign.OPENAI_WHOLE)
    code, [one, other, last] = imported(dshctl, "openai", tmp_path / "missing", tmp_path, good)
    assert code == 1
    assert "No such file" in one["error"]
    assert "Is a directory" in other["error"]
    assert last["error"] is None
    assert dshctl("import", "--again", "--from", "openai", str(tmp_path / "missing")) == 1
    assert "was not imported: cannot read" in dshctl.err


def test_an_id_can_be_chosen_but_never_one_that_is_taken(dshctl: Dshctl, tmp_path: Path) -> None:
    path = tmp_path / "chat"
    path.write_bytes(foreign.OPENAI_WHOLE)
    words = ("import", "--again", "--from", "openai", "--as", "weather", str(path))
    assert "weather, 21 events" in dshctl.text(*words)
    assert dshctl(*words) == 1
    assert "[SESSION_EXISTS]" in dshctl.err
    assert dshctl(*words, str(path)) == 2


def test_a_session_that_cannot_be_finished_does_not_stay(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "REPORT", "turn/start")  # the daemon refuses an ignorable turn
    monkeypatch.setattr(archive, "_BATCH_EVENTS", 5)
    path = tmp_path / "chat"
    path.write_bytes(foreign.OPENAI_WHOLE)
    code, [report] = imported(dshctl, "openai", path)
    assert code == 1
    assert report["error"] is not None
    assert report["sessions"] == []
    dshctl.text("list", "--deleted", "-q")
    left = dshctl.out.split()[0]
    assert left not in {one["id"] for one in daemon.call("session.list")["sessions"]}


def test_a_session_whose_import_is_interrupted_does_not_stay(
    daemon: DaemonProcess, dshctl: Dshctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: archive.Archive, _source: dict[str, Any]) -> dict[str, Any]:
        self._send()  # pyright: ignore[reportPrivateUsage]  # in the middle of a turn
        self._context.close()  # pyright: ignore[reportPrivateUsage]  # as a call does that is interrupted
        raise KeyboardInterrupt

    monkeypatch.setattr(archive.Archive, "end", interrupted)
    path = tmp_path / "chat"
    path.write_bytes(foreign.OPENAI_WHOLE)
    assert dshctl("import", "--again", "--from", "openai", "--as", "stopped", str(path)) == 130
    assert "stopped" not in {one["id"] for one in daemon.call("session.list")["sessions"]}
    assert "stopped" in dshctl.text("list", "--deleted", "-q")


def test_the_report_for_people_names_lines(dshctl: Dshctl, tmp_path: Path) -> None:
    path = tmp_path / "torn"
    path.write_bytes(foreign.CODEX_TORN)
    assert dshctl("import", "--again", "--from", "codex", str(path)) == 1
    assert "  damage: a torn record: 1 (line 4)\n" in dshctl.out
    assert "  kept: record 'session_meta': 1 (line 1)\n" in dshctl.out


def test_progress_is_shown_on_a_terminal_only(
    dshctl: Dshctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(io.StringIO):
        @property
        def buffer(self) -> BinaryIO:
            return io.BytesIO()

        def isatty(self) -> bool:
            return True

    path = tmp_path / "rollout\x1b.jsonl"
    path.write_bytes(foreign.CODEX_WHOLE)
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    assert dshctl("import", "--again", "--from", "codex", str(path)) == 0
    assert "\rimporting rollout\\x1b.jsonl: " in screen.getvalue()
    assert os.linesep not in screen.getvalue()
