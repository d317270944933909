"""Records the logs of this version, once for each release: `python -m tests.golden.record_logs`.

A daemon of this tree writes them through the protocol. What lies in `logs-<version>` is never written anew: every
later version must read it, recover it and go on with it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from dsh_protocol.version import VERSION

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from support import events, turns  # noqa: E402  # the folder of tests is not on the path of a program
from support.daemon import DaemonProcess, open_daemon  # noqa: E402  # likewise
from support.rpc import Connection  # noqa: E402  # likewise
from support.verdicts import read_all  # noqa: E402  # likewise

COMPRESSIONS = ("zstd", "none")
_KEPT = (".jsonl", ".jsonl.zstd")


def main() -> None:
    """Record into a folder that must not exist yet."""
    target = HERE / f"logs-{VERSION}"
    target.mkdir()
    for compression in COMPRESSIONS:
        with tempfile.TemporaryDirectory() as base:
            flags = ("--compression", compression, "--batch-window", "0.01")
            with open_daemon(Path(base), flags=flags) as daemon:
                expected = record(daemon)
                daemon.kill()
                _keep(daemon.root, target / compression)
        text = json.dumps(expected, indent=1, ensure_ascii=False) + "\n"
        (target / f"{compression}.json").write_text(text, encoding="utf-8")


def record(daemon: DaemonProcess) -> dict[str, object]:
    """Play one session of each kind; return what a reader must find."""
    with Connection(daemon.socket, name="recorder") as one:
        turns.write_session(one, "whole turn")
        _play_chunks(one)
        _play_interrupted(one)
        _play_recovered(daemon, one)
        turns.write_session(one, "ünïcödé/../😀")
        one.call("session.fork", id="whole turn", newId="fork")
        empty = one.call("session.create", id="empty")
        one.call("session.flush", id="empty", writer=empty["writer"])
        names = [view["id"] for view in one.call("session.list", limit=1000)["sessions"]]
        found: dict[str, object] = {}
        for name in sorted(names):
            header = one.call("session.stat", id=name)["session"]["header"]
            found[name] = {"header": header, "events": read_all(one, name)}
        return found


def _play_chunks(one: Connection) -> None:
    """Runs of chunks are packed into rows; several batches make several frames."""
    handle = turns.begin_turn(one, "chunks")
    for number in range(30):
        text = f'piece {number} \u2028 \\ " 😀'
        one.call("session.append", **handle, events=[events.chunk(text)] * 7)
        if number % 10 == 9:
            one.call("session.flush", **handle)
    one.call("session.append", **handle, events=[events.assistant()])
    turns.end_turn(one, handle)
    one.call("session.close", **handle)


def _play_interrupted(one: Connection) -> None:
    """One call has its result, one was started, one was not."""
    handle = turns.begin_turn(one, "interrupted", "a", "b", "c")
    for name in "ab":
        one.call("checkpoint.tool", **handle, **turns.tool(name))
    one.call("session.append", **handle, events=[events.tool_result("a")])
    one.call("session.flush", **handle)


def _play_recovered(daemon: DaemonProcess, one: Connection) -> None:
    with Connection(daemon.socket, name="first life") as first:
        handle = turns.begin_turn(first, "recovered", "x", "y")
        first.call("checkpoint.tool", **handle, **turns.tool("x"))
    while True:
        answer = one.answer(one.send("session.open", id="recovered", access="write"))
        if "result" in answer:
            break
    again = {"id": "recovered", "writer": answer["result"]["writer"]}
    one.call("session.recover", **again)
    one.call("session.append", **again, events=turns.opening(2))
    one.call("session.flush", **again)
    one.call("session.append", **again, events=[events.assistant(turn=2)])
    turns.end_turn(one, again, turn=2)
    one.call("session.close", **again)


def _keep(root: Path, target: Path) -> None:
    for log in sorted(root.rglob("*")):
        if log.name.endswith(_KEPT):
            kept = target / log.relative_to(root)
            kept.parent.mkdir(parents=True)
            shutil.copyfile(log, kept)


if __name__ == "__main__":
    main()
