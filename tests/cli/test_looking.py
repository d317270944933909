"""The verbs that look at whole sessions, over a real daemon and recorded logs: keys, figures, forks, owners."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from browser.hostile import LEAK, TEXTS, write_hostile
from cli.looking import CRASHED, LOGS, OPEN, Dshctl, place_logs
from support import turns
from support.daemon import DaemonProcess, open_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

GOAL = "web-goal-multi-turn-actions"


def keys(text: str) -> set[str]:
    return set(text.split())


STEP_KEYS = keys(
    "turn step startSeq endSeq startedAt endedAt durationMs modelMs provider model finish retries usage calls"
)
CALL_KEYS = keys("callId name fate code callSeq resultSeq durationMs")
FIGURES = keys(
    "turns interrupted steps calls failedCalls notStarted outcomeUnknown errors retries inputTokens outputTokens "
    "cacheReadTokens cacheWriteTokens reasoningTokens models tools"
)
HIDDEN = ("sk-ant-api03", "hunter2hunter2")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path_factory.mktemp("looking")) as running:
        place_logs(running)
        write_hostile(running, "hostile")
        yield running


@pytest.fixture
def dshctl(daemon: DaemonProcess, capsysbinary: pytest.CaptureFixture[bytes]) -> Dshctl:
    return Dshctl(daemon, capsysbinary)


# --- steps


def test_steps_tell_model_tools_tokens_and_time(dshctl: Dshctl) -> None:
    steps = dshctl.document("steps", GOAL)["steps"]
    assert [set(step) for step in steps] == [STEP_KEYS] * 12
    assert set(steps[0]["calls"][0]) == CALL_KEYS
    assert [(step["turn"], step["step"]) for step in steps[5:8]] == [(1, 6), (2, 1), (2, 2)]
    assert steps[0]["model"] == "deepseek-v4-flash"
    assert steps[1]["usage"]["cacheReadTokens"] > 0
    assert [call["name"] for call in steps[0]["calls"]] == ["bash", "get_goal"]
    lines = dshctl.text("-o", "jsonl", "steps", GOAL).splitlines()
    assert [json.loads(line) for line in lines] == steps
    table = dshctl.text("steps", GOAL)
    assert (
        " ".join(table.splitlines()[0].split()) == "STEP SEQ MODEL TOKENS MODEL TIME TIME END TOOLS"
    )
    assert "bash, get_goal" in table


def test_steps_name_the_fate_of_a_call_that_was_cut_off(dshctl: Dshctl) -> None:
    (call,) = dshctl.document("steps", CRASHED)["steps"][0]["calls"]
    assert (call["fate"], call["code"]) == ("outcome unknown", "TOOL_OUTCOME_UNKNOWN")
    assert "read (outcome unknown)" in dshctl.text("steps", CRASHED)


# --- stats


def test_stats_count_what_happened(dshctl: Dshctl) -> None:
    (entry,) = dshctl.document("stats", GOAL)["sessions"]
    assert set(entry) == FIGURES | {"id", "parent", "inheritedEvents", "countedFrom"}
    assert (entry["turns"], entry["steps"], entry["calls"]) == (2, 12, 11)
    assert entry["tools"] == {"bash": 8, "get_goal": 2, "update_goal": 1}
    (crashed,) = dshctl.document("stats", CRASHED)["sessions"]
    assert (crashed["interrupted"], crashed["outcomeUnknown"], crashed["failedCalls"]) == (1, 1, 1)
    everything = dshctl.document("stats")
    assert set(everything) == {"sessions", "total"}
    assert set(everything["total"]) == FIGURES
    assert {one["id"] for one in everything["sessions"]} >= set(LOGS)
    assert "\ntotal " in dshctl.text("stats")


def test_what_forks_took_over_is_counted_once(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    with daemon.connect() as agent:
        turns.write_session(agent, "trunk")
        for name in ("fork-1", "fork-2"):
            agent.call("session.fork", id="trunk", newId=name)
        agent.call("session.fork", id="fork-1", newId="fork-1-1")
    family = ("trunk", "fork-1", "fork-2", "fork-1-1")
    report = dshctl.document("stats", *family)
    assert [one["turns"] for one in report["sessions"]] == [1, 0, 0, 0]
    assert report["total"]["turns"] == 1
    assert report["sessions"][1]["parent"] == "trunk"
    # Without the trunk, one of its forks stands in for it.
    assert dshctl.document("stats", "fork-1", "fork-2")["total"]["turns"] == 1
    assert dshctl.document("stats", "fork-2")["total"]["turns"] == 1
    assert "after what it took over from trunk" in dshctl.text("stats", *family)


# --- diff


def test_diff_shows_where_a_fork_and_its_parent_part(dshctl: Dshctl) -> None:
    report = dshctl.document("diff", "acp-multi-turn", "derived-fork-child")
    assert set(report) == {"a", "b", "common", "onlyA", "onlyB"}
    assert report["common"] == 37
    assert report["onlyA"][0]["seq"] == report["onlyB"][0]["seq"] == 37
    assert report["onlyB"][0]["type"] == "session/end-seed"
    text = dshctl.text("diff", "acp-multi-turn", "derived-fork-child")
    assert text.startswith(
        "37 events in common, up to 36\n\n--- only in acp-multi-turn: 34 events\n"
    )
    assert "-         … 26 streamed pieces" in text
    lines = dshctl.text("-o", "jsonl", "diff", "acp-multi-turn", "derived-fork-child").splitlines()
    assert {json.loads(line)["only"] for line in lines} == {"a", "b"}


def test_diff_takes_two_points_of_one_session(dshctl: Dshctl) -> None:
    report = dshctl.document("diff", f"{OPEN}@5", f"{OPEN}@9")
    assert (report["common"], report["onlyA"]) == (6, [])
    assert [event["seq"] for event in report["onlyB"]] == [6, 7, 8, 9]
    assert dshctl.text("diff", f"{OPEN}@5", f"{OPEN}@5") == "the same 6 events\n"
    assert dshctl("diff", f"{OPEN}@x", OPEN) == 4


# --- owner, du, top


def test_owner_names_the_process_that_may_write(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    assert dshctl.text("owner", GOAL).startswith("nobody")
    assert dshctl.document("owner", GOAL) == {
        "id": GOAL,
        "state": "idle",
        "writer": None,
        "process": None,
    }
    with daemon.connect() as agent:
        turns.begin_turn(agent, "owned", "a")
        report = dshctl.document("owner", "owned")
        assert report["writer"]["pid"] == os.getpid()
        assert report["process"]["cwd"] == os.getcwd()  # noqa: PTH109  # as the system tells it
        assert "\nnext: dshctl tail owned\n" in dshctl.text("owner", "owned")
        top = dshctl.document("top")
        assert [one["id"] for one in top["live"]] == ["owned"]
        assert top["live"][0]["pendingCalls"] == ["a"]
        assert top["openCalls"] == 1
        assert set(top["fsyncMs"]) == {"p50", "p99"}
        assert top["fsyncMs"]["p99"] >= top["fsyncMs"]["p50"] > 0
    text = dshctl.text("owner", "owned")
    assert "not connected; kept for it while it lives" in text
    assert "dshctl recover --apply --takeover owned" in text


def test_top_tells_the_daemons_figures(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    text = dshctl.text("top", "-n", "1")
    for expected in (f"pid {daemon.pid}", "checkpoints/s", "fsync p50", "p99", "connection"):
        assert expected in text
    report = dshctl.document("top")
    assert set(report) == keys(
        "server startedAt states live checkpointsPerSecond eventsPerSecond bytesPerSecond flushesPerSecond fsyncMs "
        "flushFailures pendingEvents connections subscriptions openCalls"
    )
    lines = dshctl.text("-o", "jsonl", "top", "-n", "2", "-d", "0").splitlines()
    assert len(lines) == 2


def test_du_adds_up(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    report = dshctl.document("du")
    assert set(report) == {"sessions", "totalBytes", "trash", "root", "freeBytes"}
    assert report["totalBytes"] == sum(one["sizeBytes"] for one in report["sessions"])
    assert report["root"] == str(daemon.root)
    sizes = [one["sizeBytes"] for one in report["sessions"]]
    assert sizes == sorted(sizes, reverse=True)
    text = dshctl.text("du", "-n", "2")
    assert f"in {len(sizes)} sessions, 2 shown; " in text
    assert len(dshctl.text("-o", "jsonl", "du", GOAL, CRASHED).splitlines()) == 2
    assert dshctl.document("du", GOAL)["trash"] is None


def test_du_names_what_lies_in_the_trash(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    assert dshctl.document("du")["trash"] == {"sessions": 0, "sizeBytes": 0}
    assert "deleted" not in dshctl.text("du")
    with daemon.connect() as agent:
        turns.write_session(agent, "thrown-away")
        agent.call("session.delete", id="thrown-away")
    try:
        report = dshctl.document("du")
        assert "thrown-away" not in [one["id"] for one in report["sessions"]]
        assert report["trash"]["sessions"] == 1
        assert report["trash"]["sizeBytes"] > 100
        assert dshctl.text("du").endswith(" more in 1 deleted session: dshctl trash\n")
    finally:
        dshctl.text("trash", "empty", "--older-than", "0s", "--yes")


# --- show


def test_show_draws_a_time_line_and_a_row_for_each_turn(dshctl: Dshctl) -> None:
    text = dshctl.text("show", CRASHED)
    line = next(line for line in text.splitlines() if line.startswith("time line  "))
    assert line.index("✗") < line.index("↻") < line.index("│")
    assert "▓ model  ░ tools" in text
    assert "1     interrupted      1  1 (1 unknown)  " in text
    assert "2     completed        2  2 (1 failed)   " in text
    assert "time line" not in dshctl.text("show", "-b", CRASHED)
    assert "\n1     open" in dshctl.text("show", OPEN)


@pytest.mark.parametrize(
    "verb", [["show", CRASHED], ["steps", GOAL], ["export", "hostile", "-f", "md"]]
)
def test_a_poor_locale_and_a_reader_that_goes_away(daemon: DaemonProcess, verb: list[str]) -> None:
    program = [sys.executable, "-m", "dsh_client.cli.main", "--socket", str(daemon.socket), *verb]
    env = {**daemon.env, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    poor = subprocess.run(program, capture_output=True, env=env, check=False, timeout=60)
    assert poor.returncode == 0, poor.stderr
    assert b"Traceback" not in poor.stderr
    if verb[0] == "show":
        assert b"= model  - tools  | next turn  X cut off  R recovered" in poor.stdout
    reader, writer = os.pipe()
    os.close(reader)
    gone = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert gone.returncode == 141
    assert b"Traceback" not in gone.stderr


# --- secrets and hostile text


@pytest.mark.parametrize(
    "verb",
    [
        ["log", "hostile"],
        ["messages", "hostile"],
        ["diff", "hostile@2", "hostile"],
        *(["export", "hostile", "-f", kind] for kind in ("html", "md", "jsonl", "atif", "openai")),
        *(["-o", "jsonl", verb, "hostile"] for verb in ("log", "messages")),
    ],
    ids=" ".join,
)
def test_every_way_out_hides_secrets_and_says_how_many(dshctl: Dshctl, verb: list[str]) -> None:
    text = dshctl.text(*verb)
    assert not [secret for secret in HIDDEN if secret in text]
    assert "[redacted" in text.replace("\\[", "[")
    assert (
        "2 likely secrets are hidden (1 api key, 1 password); to see them: --no-redact"
        in dshctl.err
    )
    assert LEAK in dshctl.text(*verb, "--no-redact")
    assert "hidden" not in dshctl.err


@pytest.mark.parametrize("verb", ["show", "log", "messages", "steps"])
def test_hostile_text_stays_text_on_a_terminal(dshctl: Dshctl, verb: str) -> None:
    text = dshctl.text(verb, "hostile")
    assert not set(text) & set("\x1b\x07\x08\r\x00\x9b\u202e\u2066\u2028\u2029\x85\ufeff\u200b")
    if verb == "messages":
        assert TEXTS[-1] in text


def test_the_bytes_of_a_file_are_whole_and_its_owners_alone(
    dshctl: Dshctl, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("out")
    report = dshctl.document("export", GOAL, "--to", str(folder / "x.md"))
    assert set(report) == {"id", "format", "file", "bytes", "redacted"}
    assert (report["format"], report["bytes"]) == ("md", (folder / "x.md").stat().st_size)
    assert (folder / "x.md").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == ["x.md"]
    assert dshctl("export", GOAL, "--to", str(folder / "x.pdf")) == 2
    assert "--format" in dshctl.err
    assert dshctl("export", GOAL, "--to", str(folder / "no" / "x.md")) == 2
    assert [path.name for path in folder.iterdir()] == ["x.md"]


def test_jsonl_without_redaction_is_the_log_as_the_daemon_serves_it(
    dshctl: Dshctl, daemon: DaemonProcess
) -> None:
    lines = dshctl.text("export", GOAL, "-f", "jsonl", "--no-redact").splitlines()
    header, *events = map(json.loads, lines)
    found = daemon.call("session.stat", id=GOAL)["session"]
    assert header == {"type": "session", **found["header"]}
    assert events == daemon.call("session.read", id=GOAL)["events"]
