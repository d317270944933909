"""The verbs that keep sessions in order, against a real daemon: search, list, labels, rm and undelete, prune."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from cli.looking import LOGS, Dshctl, place_logs
from dsh_client.cli.family import branches
from dsh_client.cli.times import moment
from dsh_client.cli.values import duration
from support import turns
from support.daemon import DaemonProcess, open_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GOAL = "web-goal-multi-turn-actions"
PROGRAM = [sys.executable, "-m", "dsh_client.cli.main"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    made = DaemonProcess(tmp_path_factory.mktemp("order"))
    place_logs(made)
    try:
        yield made.start()
    finally:
        made.remove()


@pytest.fixture
def dshctl(daemon: DaemonProcess, capfdbinary: pytest.CaptureFixture[bytes]) -> Dshctl:
    return Dshctl(daemon, capfdbinary)


def ids(dshctl: Dshctl, *words: str) -> list[str]:
    return dshctl.text("list", "-q", *words).splitlines()


# --- search


def test_search_shows_where_it_was_said(dshctl: Dshctl) -> None:
    document = dshctl.document("search", "goal")
    assert set(document) == {"hits", "nextCursor"}
    assert {hit["session"]["id"] for hit in document["hits"]} == {GOAL}
    assert len(document["hits"]) == 3, "three of one session, its newest"
    assert all(set(hit) == {"session", "seq", "excerpt"} for hit in document["hits"])
    seqs = [hit["seq"] for hit in document["hits"]]
    assert seqs == sorted(seqs, reverse=True)
    table = dshctl.text("search", "goal").splitlines()
    assert table[0].split() == ["ID", "SEQ", "UPDATED", "TITLE", "TEXT"]
    assert [line.split()[:2] for line in table[1:]] == [[GOAL, str(seq)] for seq in seqs]
    lines = dshctl.text("-o", "jsonl", "search", "goal").splitlines()
    assert [json.loads(line) for line in lines] == document["hits"]
    more = dshctl.document("search", "goal", "--per-session", "0", "-n", "500")
    assert len(more["hits"]) > 3
    assert more["nextCursor"] is None


def test_search_says_when_there_is_nothing_or_more(dshctl: Dshctl) -> None:
    assert dshctl.text("search", "nosuchwordanywhere") == ""
    assert dshctl.err.startswith("nothing was found")
    dshctl.text("search", "the", "-n", "1")
    assert dshctl.err == "1 place shown, there are more; try: -n 10\n"
    assert dshctl("search", "!!") == 2
    assert "letter or a digit" in dshctl.err


def test_what_is_found_hides_secrets(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    with daemon.connect() as agent:
        handle = turns.begin_turn(agent, "leaky")
        key = "sk-" + "a1B2" * 10
        said = {
            "id": "u2",
            "role": "user",
            "source": {"kind": "user"},
            "content": [{"type": "text", "text": f"remember platypus {key}"}],
        }
        agent.call("session.append", **handle, events=[{"type": "user/message", "data": said}])
        turns.end_turn(agent, handle)
        agent.call("session.close", **handle)
    text = dshctl.text("search", "platypus")
    assert "sk-a1" not in text
    assert "hidden" in dshctl.err
    assert key[:20] in dshctl.text("search", "--no-redact", "platypus")


# --- labels


def test_a_session_is_renamed_beside_its_log(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    (log,) = daemon.root.glob(f"*/{GOAL}/session.jsonl")
    before = log.read_bytes()
    document = dshctl.document("rename", GOAL, "my own \x1b[31m title")
    assert set(document) == {"session"}
    assert document["session"]["title"] == "my own \x1b[31m title"
    assert "\x1b" not in dshctl.text("list")
    assert "my own \\x1b[31m title" in dshctl.text("show", GOAL)
    assert dshctl.text("rename", GOAL[:8], "") == f"{GOAL} has no title\n"
    assert log.read_bytes() == before
    assert dshctl("rename", "nothing-there", "x") == 4


def test_an_archived_session_is_listed_when_asked_for(dshctl: Dshctl) -> None:
    whole = ids(dshctl)
    assert dshctl.text("archive", GOAL).startswith(f"{GOAL} is archived")
    assert GOAL not in ids(dshctl)
    assert ids(dshctl, "--archived") == [GOAL]
    assert sorted(ids(dshctl, "--all")) == sorted(whole)
    assert f"of {len(whole)} sessions" not in dshctl.err
    assert "[archived]" in dshctl.text("list", "--archived")
    document = dshctl.document("unarchive", GOAL)
    assert [one["id"] for one in document["sessions"]] == [GOAL]
    assert ids(dshctl) == whole


# --- rm and undelete


def test_rm_needs_a_yes_and_undelete_brings_back(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    with daemon.connect() as agent:
        for name in ("rm-one", "rm-two"):
            turns.write_session(agent, name)
    assert dshctl("rm", "rm-one") == 2
    assert "--yes" in dshctl.err
    assert "rm-one" in ids(dshctl)
    assert dshctl.document("rm", "rm-o", "rm-t", "--yes") == {"deleted": ["rm-one", "rm-two"]}
    assert not {"rm-one", "rm-two"} & set(ids(dshctl, "--all"))
    assert set(ids(dshctl, "--deleted")) == {"rm-one", "rm-two"}
    assert "in the trash" in dshctl.text("list", "--deleted") + dshctl.err
    assert dshctl.text("undelete", "@last", "rm-").count(" is back\n") == 2
    assert {"rm-one", "rm-two"} <= set(ids(dshctl))
    assert dshctl("undelete", "rm-one") == 4
    assert "trash" in dshctl.err or "begins with it" in dshctl.err


def test_the_trash_is_emptied_when_a_person_says_so(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    with daemon.connect() as agent:
        for name in ("bin-one", "bin-two"):
            turns.write_session(agent, name)
    assert dshctl("rm", "bin-one", "bin-two", "--yes") == 0
    shown = dshctl.text("trash")
    assert "bin-one" in shown
    assert "dshctl trash empty --older-than 30d" in dshctl.err
    assert dshctl("trash", "empty") == 2
    assert dshctl("trash", "empty", "--older-than", "0s") == 2
    assert "--yes" in dshctl.err
    assert dshctl.document("trash", "empty", "--older-than", "1d", "--yes") == {
        "sessions": [],
        "applied": True,
    }
    assert "would be removed for good" in (
        dshctl.text("trash", "empty", "--older-than", "0s", "--dry-run") + dshctl.err
    )
    assert {"bin-one", "bin-two"} <= set(ids(dshctl, "--deleted"))
    gone = dshctl.document("trash", "empty", "--older-than", "0s", "--yes")
    assert gone["applied"] is True
    assert {"bin-one", "bin-two"} <= {one["id"] for one in gone["sessions"]}
    assert ids(dshctl, "--deleted") == []
    assert dshctl("undelete", "bin-one") == 4
    assert dshctl.text("trash") == ""
    assert dshctl.err == "the trash is empty\n"


def test_an_ambiguous_name_lists_the_candidates(dshctl: Dshctl) -> None:
    assert dshctl("rm", "derived-", "--yes") == 2
    candidates = [name for name in LOGS if name.startswith("derived-")]
    assert all(f"  {name}\n" in dshctl.err for name in candidates)


def test_a_live_session_is_not_removed(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    with daemon.connect() as agent:
        handle = turns.begin_turn(agent, "alive")
        assert dshctl("rm", "alive", "--yes") == 5
        assert "[SESSION_BUSY]" in dshctl.err
        assert dshctl.err.endswith("try: dshctl show alive\n")
        turns.end_turn(agent, handle)
        agent.call("session.close", **handle)
    assert dshctl("rm", "alive", "--yes") == 0


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1)])
def test_at_a_terminal_rm_asks(daemon: DaemonProcess, answer: str, code: int) -> None:
    name = f"asked-{answer.strip() or 'nothing'}"
    with daemon.connect() as agent:
        turns.write_session(agent, name)
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, "--socket", str(daemon.socket), "rm", name],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(master, 4096)
        os.write(master, answer.encode())
        assert process.wait(30) == code
    os.close(master)
    assert name.encode() in shown
    states = [one["id"] for one in daemon.call("session.list")["sessions"]]
    assert (name in states) == bool(code)


# --- prune


def test_prune_takes_only_what_nobody_needs(tmp_path: Path, capfdbinary: Any) -> None:
    with open_daemon(tmp_path) as daemon:
        dshctl = Dshctl(daemon, capfdbinary)
        with daemon.connect() as agent:
            for name in ("old", "new", "kept", "parent"):
                turns.write_session(agent, name)
            turns.begin_turn(agent, "live")
            agent.call("session.fork", id="parent", newId="child")
            agent.call("session.setLabel", id="kept", pinned=True)
            damaged = tmp_path / "root" / "--d--" / "damaged"
            damaged.mkdir(parents=True, mode=0o700)
            (damaged / "session.jsonl").write_bytes(b"?\n")
            past = time.time() - 40 * 86_400
            for log in daemon.root.glob("*/*/session.jsonl*"):
                if log.parent.name != "new":
                    os.utime(log, (past, past))
            # What was made today is not old, whatever a restored file says of itself.
            none = dshctl.document("prune", "--older-than", "30d")
            assert none == {"sessions": [], "applied": False, "kept": {"damaged": 1}}
            for words in ([], ["--apply"]):
                dshctl.text("prune", "--older-than", "30d", *words)
                assert "nothing is due" in dshctl.err
                assert "--apply" not in dshctl.err
            only = dshctl.document("prune", "--older-than", "0d")
            assert [one["id"] for one in only["sessions"]] == ["new", "child", "old"]
            assert only["kept"] == {"in use": 1, "pinned": 1, "forked from": 1, "damaged": 1}
            assert len(ids(dshctl)) == 7, "nothing was changed"
            dshctl.text("prune", "--older-than", "0d", "--dry-run")
            assert "3 would go; nothing was changed: to do it, add --apply" in dshctl.err
            assert "1 as old stay: pinned" in dshctl.err
            done = dshctl.document("prune", "--older-than", "0d", "--apply")
            assert done["applied"] is True
            assert {one["id"] for one in done["sessions"]} == {"new", "child", "old"}
            assert set(ids(dshctl, "--deleted")) == {"new", "child", "old"}
            assert set(ids(dshctl)) == {"kept", "parent", "live", "damaged"}
    assert dshctl("prune") == 2
    assert dshctl("prune", "--older-than", "soon") == 2


def test_ages_and_moments() -> None:
    assert [duration(text) for text in ("90s", "45min", "12h", "2w")] == [
        *(90_000, 2_700_000, 43_200_000, 1_209_600_000),
    ]
    for odd in ("", "d", "1", "-1d", "1.5d", "1dd", "1 d", "٣d"):
        with pytest.raises(ValueError, match="no age"):
            duration(odd)
    assert moment("2026-08-21") == moment("2026-08-21T00:00:00Z") == 1_787_270_400_000
    assert abs(moment("1h") - (time.time() * 1000 - 3_600_000)) < 60_000
    with pytest.raises(ValueError, match="no time"):
        moment("yesterday")


# --- list


def test_list_narrows_by_state_and_time(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    interrupted = ids(dshctl, "--state", "interrupted")
    assert interrupted
    assert set(interrupted) < set(ids(dshctl))
    assert ids(dshctl, "--since", "2199-01-01") == []
    assert len(ids(dshctl, "--since", "1d")) == len(ids(dshctl))
    dshctl.text("list", "-n", "2")
    assert f"2 of {len(ids(dshctl))} sessions" in (dshctl("list", "-n", "2"), dshctl.err)[1]
    assert dshctl.err.count("\n") == 1
    assert dshctl.err.endswith("; for all add -n 0\n")
    assert len(ids(dshctl, "-n", "2")) == 2
    assert dshctl("list", "--since", "whenever") == 2


def test_a_tree_shows_forks_below_their_parents(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    with daemon.connect() as agent:
        turns.write_session(agent, "trunk")
        agent.call("session.fork", id="trunk", newId="branch")
        agent.call("session.fork", id="branch", newId="twig")
    shown = [line.split("  ")[0] for line in dshctl.text("list", "--tree").splitlines()]
    at = shown.index("trunk")
    assert shown[at + 1] == "└ branch"
    lines = dshctl.text("list", "--tree").splitlines()
    assert lines[at + 2].startswith("  └ twig ")
    assert ids(dshctl, "--tree", "-n", "1") == ["trunk", "branch", "twig"]


def test_a_tree_shows_everybody_once_whatever_the_headers_claim() -> None:
    def one(name: str, parent: str, updated: int) -> dict[str, Any]:
        return {"id": name, "header": {"parentSession": parent}, "updatedAt": updated}

    family = [one("a", "b", 3), one("b", "a", 2), one("c", "c", 5), one("d", "gone", 1)]
    family.append({"id": "e", "header": None, "updatedAt": 9})
    rows = branches(family, 0, "ascii")
    assert sorted(session["id"] for _, session in rows) == ["a", "b", "c", "d", "e"]
    assert rows[0][1]["id"] == "e"
    assert branches([one("x", "", 1), one("y", "x", 2)], 0, "ascii")[1][0] == "` "


def at_terminal(daemon: DaemonProcess, cwd: Path, *words: str, **env: str) -> str:
    """Return what a person sees who runs `dshctl` in a directory."""
    master, terminal = pty.openpty()
    ended = subprocess.run(
        [*PROGRAM, "--socket", str(daemon.socket), *words],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", "LC_ALL": "C.UTF-8", **env},
        check=True,
        timeout=60,
    )
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert ended.returncode == 0
    return shown.decode()


def test_at_a_terminal_the_list_begins_with_this_directory(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    with daemon.connect() as agent:
        made = agent.call("session.create", id="of-here", cwd=str(tmp_path))
        agent.call("session.flush", id="of-here", writer=made["writer"])
        agent.call("session.close", id="of-here", writer=made["writer"])
    here = at_terminal(daemon, tmp_path, "list")
    assert "of-here" in here
    assert GOAL not in here
    assert "1 of 1 sessions of " in here
    assert "of all directories: dshctl list --all" in here
    assert GOAL in at_terminal(daemon, tmp_path, "list", "--all")
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    assert GOAL in at_terminal(daemon, elsewhere, "list"), "nothing is here, so all is shown"
    narrow = at_terminal(daemon, elsewhere, "search", "goal", COLUMNS="30", LC_ALL="C")
    assert all(
        len(line) <= 30 for line in narrow.split("\r\n") if line.startswith((GOAL[:8], "ID"))
    )


@pytest.mark.parametrize(
    "words", [["search", "goal"], ["list", "--tree"], ["prune", "--older-than", "0d"]]
)
def test_a_poor_locale_and_a_closed_pipe_cost_no_traceback(
    daemon: DaemonProcess, words: list[str]
) -> None:
    env = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii"}
    command = [*PROGRAM, "--socket", str(daemon.socket), *words]
    poor = subprocess.run(command, capture_output=True, env=env, check=False, timeout=60)
    assert poor.returncode == 0, poor.stderr
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writer)
    assert ended.returncode in {0, 141}
    assert b"Traceback" not in poor.stderr + ended.stderr
