"""Many who want the same thing at once: one gets it, and the others are told who."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import EXIT_CANNOT_START
from support import events, turns
from support.daemon import DaemonProcess, open_daemon
from support.puppets import open_puppets
from support.rpc import Connection
from support.verdicts import read_all

if TYPE_CHECKING:
    from pathlib import Path

CLIENTS = 20


def test_twenty_clients_race_for_one_session_and_nineteen_are_told_who_won(
    daemon: DaemonProcess,
) -> None:
    with daemon.connect() as one:
        next_seq = turns.write_session(one, "s")
    names = [f"client {number}" for number in range(CLIENTS)]
    with open_puppets(daemon.socket, *names) as puppets:
        for _ in range(4):
            wanted = [["session.open", {"id": "s", "access": "write"}]]
            for puppet in puppets:
                puppet.begin("send", "a", wanted)
            ids = [puppet.outcome()["ids"][0] for puppet in puppets]
            answers = [puppet.answer(call_id) for puppet, call_id in zip(puppets, ids, strict=True)]
            (winner,) = [at for at, answer in enumerate(answers) if "result" in answer]
            opened = answers.pop(winner)["result"]
            assert opened["session"]["nextSeq"] == next_seq + 1
            holder = {"pid": puppets[winner].pid, "client": names[winner], "connected": True}
            for answer in answers:
                facts = answer["error"]["data"]
                assert facts["kind"] == "SESSION_BUSY"
                assert facts["holder"].items() >= holder.items()
                assert str(puppets[winner].pid) in answer["error"]["message"]
                assert names[winner] in answer["error"]["message"]
            puppets[winner].call("session.close", id="s", writer=opened["writer"])
    with daemon.connect() as one:
        assert len(read_all(one, "s")) == next_seq, "opening and closing alone has grown the log"


def test_twenty_clients_race_to_create_one_session_and_one_does(daemon: DaemonProcess) -> None:
    connections = [Connection(daemon.socket) for _ in range(CLIENTS)]
    sent = [(one, one.send("session.create", id="s")) for one in connections]
    answers = [one.answer(call_id) for one, call_id in sent]
    kinds = [answer["error"]["data"]["kind"] for answer in answers if "error" in answer]
    assert kinds == ["SESSION_EXISTS"] * (CLIENTS - 1)
    for one in connections:
        one.close()


def test_a_second_daemon_on_one_root_names_the_first_and_disturbs_nothing(
    tmp_path: Path, daemon: DaemonProcess
) -> None:
    with daemon.connect() as one:
        handle = turns.begin_turn(one, "s", "x")
        before = daemon.socket.stat(), sorted(daemon.root.iterdir())
        second = DaemonProcess(tmp_path / "second")
        command = [*second.command[:-1], str(daemon.root)]
        for socket in (second.socket, daemon.socket):  # apart, and in the first one's place
            command[-3] = str(socket)
            ended = subprocess.run(
                command, env=second.env, capture_output=True, timeout=30, check=False
            )
            assert ended.returncode == EXIT_CANNOT_START
            assert str(daemon.pid).encode() in ended.stderr + ended.stdout
        assert not second.socket.exists()
        second.remove()
        after = daemon.socket.stat(), sorted(daemon.root.iterdir())
        assert (after[0].st_ino, after[0].st_mtime_ns) == (before[0].st_ino, before[0].st_mtime_ns)
        assert after[1] == before[1]
        started = one.call("checkpoint.tool", **handle, **turns.tool("x"))
        assert started["decision"] == "DISPATCH"


def test_sigterm_with_busy_clients_makes_what_was_admitted_durable_and_ends_in_seconds(
    tmp_path: Path,
) -> None:
    with open_daemon(tmp_path, flags=("--batch-window", "60")) as daemon:
        connections = [Connection(daemon.socket, name=f"busy {at}") for at in range(10)]
        idle = [Connection(daemon.socket) for _ in range(10)]
        idle[0].socket.sendall(b'{"jsonrpc":"2.0","id":1,"meth')  # in the middle of a line
        admitted: dict[str, int] = {}
        for at, one in enumerate(connections):
            handle = turns.begin_turn(one, f"s{at}")
            pieces = [events.chunk(str(n)) for n in range(5)]
            admitted[f"s{at}"] = one.call("session.append", **handle, events=pieces)["nextSeq"]
            for seq in range(9, 200):  # more than it answers before it is told to stop
                one.send("session.append", **handle, events=[events.chunk()], expectedSeq=seq)
        assert daemon.stop(limit=8) == 0
        for one in connections:
            session_id = f"s{connections.index(one)}"
            while True:
                try:
                    answer = one.read_message()
                except ConnectionRefusedError:
                    break
                if "result" in answer:
                    admitted[session_id] = answer["result"]["nextSeq"]
                else:
                    assert answer["error"]["data"]["kind"] == "SHUTTING_DOWN"
        daemon.start()
        with daemon.connect() as one:
            for session_id, next_seq in admitted.items():
                stored = read_all(one, session_id)
                assert len(stored) >= next_seq
                assert [event["seq"] for event in stored] == list(range(len(stored)))
        for one in (*connections, *idle):
            one.close()


def test_a_waiting_checkpoint_is_answered_before_the_daemon_ends(daemon: DaemonProcess) -> None:
    with daemon.connect() as one:
        handle = turns.begin_turn(one, "s", "x", "y", "z")
        sent = [one.send("checkpoint.tool", **handle, **turns.tool(name)) for name in "xyz"]
        os.kill(daemon.pid, signal.SIGTERM)
        answers: list[dict[str, Any]] = []
        for call_id in sent:
            try:
                answers.append(one.answer(call_id))
            except ConnectionRefusedError:
                break
        assert daemon.process.wait(10) == 0
        daemon.start()
    with daemon.connect() as one:
        stored = read_all(one, "s")
        started = [e["data"]["callId"] for e in stored if e["type"] == "tool/call"]
        dispatched = [a for a in answers if a.get("result", {}).get("decision") == "DISPATCH"]
        assert len(started) >= len(dispatched)


def test_daemon_shutdown_answers_first_and_loses_nothing(tmp_path: Path) -> None:
    with open_daemon(tmp_path, flags=("--batch-window", "60")) as daemon:
        with daemon.connect() as one:
            handle = turns.begin_turn(one, "s")
            one.call("session.append", **handle, events=[events.chunk()])
            assert one.call("daemon.shutdown") == {}
            assert daemon.process.wait(10) == 0
        daemon.start()
        with daemon.connect() as one:
            assert len(read_all(one, "s")) == 5
