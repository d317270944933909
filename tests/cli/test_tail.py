"""Following a session: every event once and in order, whatever daemon, reader and connection do meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import pytest

from browser.hostile import LEAK, write_hostile
from cli.looking import Dshctl
from cli.scripted import session
from dsh_client.cli.following import Follower, SessionEndedError
from dsh_client.cli.main import main
from dsh_client.errors import DaemonUnavailableError
from dsh_protocol.errors import SessionNotFoundError
from support import events, turns
from support.daemon import DaemonProcess, open_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = [sys.executable, "-m", "dsh_client.cli.main"]
MANY = 30_000
ROUNDS = 5
ALL = 12


class MoodyDaemon:
    """Answers `session.subscribe` with what a list of moods says, subscription after subscription.

    A mood is how many events are sent, and what then happens: `lag`, `gap`, `drop`, or `end`.
    """

    def __init__(self, path: Path, moods: list[tuple[int, str]]) -> None:
        self.path = path
        self.asked: list[int] = []
        self._moods = moods
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rwb") as line:
            self._serve(line)

    def _serve(self, line: Any) -> None:
        while request := line.readline():
            call = json.loads(request)
            method = call["method"]
            result: dict[str, Any] = {"protocolVersion": 1}
            if method == "session.subscribe":
                result = {"subscriptionId": f"s{len(self.asked)}"}
            elif method == "session.open":
                if call["params"]["id"] != "a1":
                    error = SessionNotFoundError("no such session").to_wire()
                    send(line, id=call["id"], error=error)
                    continue
                result = {"session": session("a1"), "writer": None, "recovery": None}
            elif method == "session.list":
                result = {"sessions": [], "nextCursor": None}
            send(line, id=call["id"], result=result)
            if (
                method == "session.subscribe"
                and self._play(line, call["params"]["fromSeq"]) == "drop"
            ):
                return

    def _play(self, line: Any, start: int) -> str:
        name = {"subscriptionId": f"s{len(self.asked)}"}
        self.asked.append(start)
        count, mood = self._moods.pop(0)
        stop = min(start + count, ALL)
        for seq in range(max(start - 1, 0), stop):  # one that it had already comes again
            notify(line, "session.event", {**name, "events": [event(seq)]})
        if mood == "lag":
            notify(line, "session.lagged", {**name, "fromSeq": stop})
        elif mood == "gap":
            notify(line, "session.event", {**name, "events": [event(stop + 1)]})
        elif mood == "end":
            notify(line, "session.ended", {**name, "reason": "deleted"})
        return mood


def send(line: Any, **message: Any) -> None:
    line.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    line.flush()


def notify(line: Any, method: str, params: dict[str, Any]) -> None:
    send(line, method=method, params=params)


def event(seq: int) -> dict[str, Any]:
    return {"type": "x/y", "seq": seq, "time": 1, "data": {}, "ignorable": True}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path) as running:
        yield running


@pytest.fixture
def dshctl(daemon: DaemonProcess, capsysbinary: pytest.CaptureFixture[bytes]) -> Dshctl:
    return Dshctl(daemon, capsysbinary)


def start_tail(daemon: DaemonProcess, *words: str) -> subprocess.Popen[bytes]:
    command = [*PROGRAM, "--socket", str(daemon.socket), *words]
    env = {**daemon.env, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def output_of(tail: subprocess.Popen[bytes]) -> IO[bytes]:
    assert tail.stdout is not None
    return tail.stdout


def seqs(tail: subprocess.Popen[bytes], count: int) -> list[int]:
    return [json.loads(output_of(tail).readline())["seq"] for _ in range(count)]


def interrupt(tail: subprocess.Popen[bytes]) -> str:
    """End it as a person does, and return what it said on standard error."""
    tail.send_signal(signal.SIGINT)
    _, err = tail.communicate(timeout=20)
    assert tail.returncode == 130
    assert b"Traceback" not in err
    return err.decode()


# --- over lags, gaps and lost connections


@pytest.mark.parametrize("mood", ["lag", "gap", "drop"])
def test_nothing_is_missing_and_nothing_comes_twice(tmp_path: Path, mood: str) -> None:
    moods = [(3, mood), (0, mood), (4, mood), (ALL, "end")]
    moody = MoodyDaemon(tmp_path / "s", moods)
    follower = Follower(str(moody.path), "a1", 2, 5.0)
    seen: list[int] = []
    batches = follower.batches()
    while len(seen) < ALL - 2:
        seen += [one["seq"] for one in next(batches)]
    with pytest.raises(SessionEndedError, match="deleted"):
        next(batches)
    moody.stop()
    assert seen == list(range(2, ALL))
    assert moody.asked == [2, 5, 5, 9]
    assert follower.lags == (3 if mood == "lag" else 0)


def test_a_daemon_that_does_not_come_back_is_told(tmp_path: Path) -> None:
    moody = MoodyDaemon(tmp_path / "s", [(3, "drop")])
    follower = Follower(str(moody.path), "a1", 0, 0.3)
    batches = follower.batches()
    next(batches)
    moody.stop()
    moody.path.unlink()
    with pytest.raises(DaemonUnavailableError, match="did not come back"):
        list(batches)


def test_a_reader_that_fell_behind_a_real_daemon_gets_everything(daemon: DaemonProcess) -> None:
    with daemon.connect() as agent:
        handle = turns.begin_turn(agent, "busy", "a")
        follower = Follower(str(daemon.socket), "busy", 0, 20.0)
        batches = follower.batches()
        seen = [one["seq"] for one in next(batches)]
        filler = events.chunk("x" * 1500)
        # Who reads stored events is paced and told nothing; who was given live ones before is told that it lags.
        for _ in range(ROUNDS):
            for _ in range(3):  # one at a time: read as they come
                agent.call("session.append", **handle, events=[filler])
                agent.call("session.flush", **handle)
                seen += [one["seq"] for one in next(batches)]
            for _ in range(MANY // 1000):  # nobody reads meanwhile
                agent.call("session.append", **handle, events=[filler] * 1000)
            next_seq = agent.call("session.flush", **handle)["nextSeq"]
            while len(seen) < next_seq:
                seen += [one["seq"] for one in next(batches)]
            assert seen == list(range(next_seq))
            if follower.lags:
                break
        follower.close()
    assert follower.lags >= 1


# --- as a command


def test_tail_begins_with_the_last_events_and_goes_on(daemon: DaemonProcess) -> None:
    with daemon.connect() as agent:
        handle = turns.begin_turn(agent, "talk", "a")
        tail = start_tail(daemon, "-o", "jsonl", "tail", "-f", "-n", "2", "ta")
        assert seqs(tail, 2) == [3, 4]
        agent.call("checkpoint.tool", **handle, **turns.tool("a"))
        assert seqs(tail, 1) == [5]
        said = interrupt(tail)
    assert said.endswith("to go on: dshctl tail talk:6\n")


def test_a_tail_goes_on_where_it_is_told(daemon: DaemonProcess, dshctl: Dshctl) -> None:
    with daemon.connect() as agent:
        turns.write_session(agent, "a:1")
    for words, first in ((["tail", "a:1"], 0), (["tail", "a:1:4"], 4), (["log", "-f", "a:1"], 0)):
        tail = start_tail(daemon, "-o", "jsonl", *words)
        assert seqs(tail, 7 - first) == list(range(first, 7))
        assert "to go on: dshctl tail a:1:7" in interrupt(tail)
    tail = start_tail(daemon, "-o", "jsonl", "log", "a:1", "--from", "5", "-f")
    assert seqs(tail, 2) == [5, 6]
    interrupt(tail)
    assert dshctl("tail", "b:4") == 4
    assert dshctl("-o", "json", "tail", "a:1") == 2


def test_a_tail_outlives_its_daemon(daemon: DaemonProcess) -> None:
    with daemon.connect() as agent:
        turns.write_session(agent, "long")
    tail = start_tail(daemon, "-o", "jsonl", "tail", "long:0")
    assert seqs(tail, 7) == list(range(7))
    daemon.kill()
    daemon.start()
    with daemon.connect() as agent:
        opened = agent.call("session.open", id="long", access="write")
        handle = {"id": "long", "writer": opened["writer"]}
        agent.call("session.append", **handle, events=turns.opening(2))
        agent.call("session.flush", **handle)
        assert seqs(tail, 5) == list(range(7, 12))
    interrupt(tail)


def test_a_tail_whose_reader_goes_away_ends_at_once(daemon: DaemonProcess) -> None:
    with daemon.connect() as agent:
        turns.write_session(agent, "quiet")
    tail = start_tail(daemon, "-o", "jsonl", "tail", "quiet")
    assert seqs(tail, 7) == list(range(7))
    output_of(tail).close()  # nothing more is written: it must notice without
    assert tail.wait(20) == 141
    assert tail.stderr is not None
    assert b"Traceback" not in tail.stderr.read()
    tail.stderr.close()


def test_a_tail_of_a_session_that_is_deleted_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moody = MoodyDaemon(tmp_path / "s", [(3, "end")])
    assert main(["--socket", str(moody.path), "tail", "a1:0"]) == 4
    moody.stop()
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert "the session is gone: deleted" in err


def test_a_tail_hides_secrets_and_stays_safe_on_a_terminal(daemon: DaemonProcess) -> None:
    write_hostile(daemon, "hostile")
    stored = daemon.call("session.stat", id="hostile")["session"]["nextSeq"]
    tail = start_tail(daemon, "tail", "hostile:0")
    lines = [output_of(tail).readline() for _ in range(stored)]
    text = b"".join(lines)
    assert not set(text) & set(b"\x1b\x07\x08\r\x00\x9b")
    assert LEAK.encode() not in text
    assert b"[redacted password]" in text
    assert text.isascii()
    tail.send_signal(signal.SIGINT)
    tail.communicate(timeout=20)
    assert os.WEXITSTATUS(tail.returncode << 8) == 130
