"""Every verb over a real daemon: standard output is a closed pipe, a full disk, a narrow terminal, of a poor locale.

One process for each of these runs all verbs, one after the other: what is tested is the verb, not the start of Python.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cli import foreign
from cli.looking import CRASHED, OPEN, place_logs
from dsh_client.cli.verbs import VERBS
from support.daemon import DaemonProcess, open_daemon
from support.events import turn_end, turn_start, user

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUN_ALL = """
import io, json, os, sys, traceback
from dsh_client.cli.main import main
commands, results = json.loads(sys.argv[1]), []
first = os.dup(1)
for words in commands:
    os.dup2(first, 1)
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), encoding=os.environ["OUT"], errors="strict")
    try:
        code = main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        code = traceback.format_exc()
    results.append([words, code])
    try:
        sys.stdout.close()
    except OSError:
        pass
with open(sys.argv[2], "w") as file:
    json.dump(results, file)
os._exit(0)
"""
CONDITIONS = ("pipe", "full", "narrow", "poor")
NAME = "会议 \u202e\x1b[31m"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path_factory.mktemp("streams")) as running:
        place_logs(running, (CRASHED, OPEN))
        with running.connect() as agent:
            made = agent.call("session.create", id="whole", cwd="/w")
            handle = {"id": "whole", "writer": made["writer"]}
            said = [turn_start(), user(f"lighthouse {NAME}"), turn_end()]
            agent.call("session.append", **handle, events=said)
            agent.call("session.close", **handle)
            agent.call("session.setLabel", id="whole", title=NAME)
            for condition in CONDITIONS:
                agent.call("session.fork", id="whole", newId=f"rm-{condition}")
            agent.call("session.fork", id="whole", newId="binned")
            agent.call("session.delete", id="binned")
        yield running


def commands(daemon: DaemonProcess, condition: str, folder: Path) -> dict[str, list[str]]:
    (folder / "chat").write_bytes(foreign.OPENAI_LINES)
    bundle = str(folder / "whole.tar")
    own = f"rm-{condition}"
    words = {
        "list": ["--all"],
        "search": ["lighthouse"],
        "tail": ["whole"],
        "stats": [],
        "diff": ["whole", own],
        "import": ["--from", "openai", str(folder / "chat")],
        "du": [],
        "top": ["-n", "1"],
        "recover": [CRASHED],
        "fork": ["whole", "--as", f"fork-{condition}"],
        "rename": [own, NAME],
        "rm": [own, "--yes"],
        "undelete": [own],
        "prune": ["--older-than", "0s"],
        "trash": [],
        "steps": [OPEN],
        "status": [],
        "doctor": [],
        "metrics": [],
        "rpc": ["session.list"],
        "completion": ["bash"],
        "version": [],
        "show": [OPEN],
        "messages": [CRASHED],
    }
    own_verbs = {"archive", "unarchive", "pin", "unpin"}
    found = {
        verb.name: [verb.name, *words.get(verb.name, [own if verb.name in own_verbs else "whole"])]
        for verb in VERBS
        if (verb.name != "stop" or condition == CONDITIONS[-1])
        and (verb.name != "tail" or condition in {"pipe", "full"})  # it ends when nobody reads
    }
    found["bundle"] = ["export", "whole", "--to", bundle]
    if "stop" in found:
        found["stop"] = found.pop("stop")[:1]  # the last one
    return {name: ["--socket", str(daemon.socket), *one] for name, one in found.items()}


def drained(master: int) -> tuple[threading.Thread, bytearray]:
    """Read what a terminal shows until it is closed."""
    shown = bytearray()

    def read() -> None:
        try:
            while piece := os.read(master, 65536):
                shown.extend(piece)
        except OSError:
            return

    thread = threading.Thread(target=read)
    thread.start()
    return thread, shown


def run_all(condition: str, daemon: DaemonProcess, folder: Path) -> tuple[dict[str, Any], str, str]:
    """Run every verb; return their codes, what came out, and what was said on standard error."""
    master = None
    if condition == "pipe":
        reader, out = os.pipe()
        os.close(reader)
    elif condition == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        master, out = pty.openpty()
        fcntl.ioctl(out, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = commands(daemon, condition, folder)
    env = {**os.environ, "LC_ALL": "C.UTF-8", "OUT": "utf-8", "PAGER": "cat"}
    if condition == "narrow":
        env["COLUMNS"] = "20"
    if condition == "poor":
        env |= {"LC_ALL": "C", "LANG": "C", "OUT": "ascii"}
    reading = None if master is None else drained(master)
    try:
        ended = subprocess.run(
            [
                sys.executable,
                "-c",
                RUN_ALL,
                json.dumps(list(words.values())),
                str(folder / "codes"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            env=env,
            check=True,
            timeout=120,
        )
    finally:
        os.close(out)
    shown = ""
    if master is not None and reading is not None:
        reading[0].join(30)
        os.close(master)
        shown = reading[1].decode()
    codes = [code for _, code in json.loads((folder / "codes").read_text())]
    return dict(zip(words, codes, strict=True)), shown, ended.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize("condition", CONDITIONS)
def test_no_verb_ends_in_a_traceback(condition: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    codes, shown, err = run_all(condition, daemon, tmp_path)
    assert [name for name, code in codes.items() if not isinstance(code, int)] == [], codes
    assert "Traceback" not in shown + err
    lost = {"pipe": 141, "full": 1}.get(condition)
    may_fail = {"import", "diff", "doctor"}
    if lost is not None:
        assert {name: code for name, code in codes.items() if code != lost} in (
            {},
            {"bundle": 0},  # it writes a file, and says so on standard error
        )
        assert ("No space left" in err) is (condition == "full")
        return
    assert {name for name, code in codes.items() if code != 0} <= may_fail, codes
    assert "\x1b[31m" not in shown
    assert "\u202e" not in shown
    assert "会议" in shown or condition == "poor"
