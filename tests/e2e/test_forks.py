"""Forks of live and stored sessions through the real daemon: what the child is, what is refused, and what it costs."""

from __future__ import annotations

import os
import random
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol import jsontext
from dsh_protocol.events import Header
from dshd.sessions.fold import Fold
from dshd.sessions.foldstate import encode_state, take_state
from dshd.sessions.keeping import summary_of
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from support import events
from support.daemon import open_daemon
from support.events import stored
from support.verdicts import read_all

if TYPE_CHECKING:
    from support.daemon import DaemonProcess
    from support.rpc import Connection

MB = 1_000_000
TURNS = 40


def turn(number: int) -> list[dict[str, Any]]:
    step = {"turn": number}
    return [
        events.turn_start(number),
        events.step_start(1, number),
        events.user(f"ask {number}"),
        events.request_header(),
        *(events.chunk(text, **step) for text in ("an ", "answer ", "in ", "parts")),
        events.assistant(turn=number),
        events.step_end(1, number),
        events.turn_end(number),
    ]


TURN = len(turn(1))


@pytest.mark.parametrize("closed", [False, True])
def test_a_fork_at_each_turn_of_a_live_or_stored_session_is_as_upstream_makes_it(
    connection: Connection,
    fresh_id: str,
    closed: bool,  # noqa: FBT001  # pytest gives arguments by name
) -> None:
    writer = connection.call("session.create", id=fresh_id, cwd="/w", agentPreset="x")["writer"]
    handle = {"id": fresh_id, "writer": writer}
    for number in (1, 2, 3):
        connection.call("session.append", **handle, events=turn(number))
    connection.call("session.append", **handle, events=[events.title("the title")])
    length = 3 * TURN + 1
    if closed:
        connection.call("session.close", **handle)
    for boundary, count in (
        (TURN - 1, TURN),
        (2 * TURN - 1, 2 * TURN),
        (None, length),
        (length - 1, length),
    ):
        made = connection.call("session.fork", id=fresh_id, boundary=boundary)["session"]
        header = made["header"]
        assert {key: header.get(key) for key in ("parentSession", "seedLength", "cwd")} == {
            "parentSession": fresh_id,
            "seedLength": count,
            "cwd": "/w",
        }
        assert "agentPreset" not in header
        assert (made["state"], made["nextSeq"], made["durableSeq"]) == (
            "idle",
            count + 1,
            count + 1,
        )
        assert (made["turns"], made["writer"], made["problem"]) == (count // TURN, None, None)
        assert made["title"] == ("the title" if count == length else None)
        source, child = read_all(connection, fresh_id), read_all(connection, made["id"])
        assert child[:-1] == source[:count]
        assert child[-1]["type"] == "session/end-seed"
        assert connection.call("session.stat", id=made["id"])["session"] == made
        again = connection.call("session.fork", id=made["id"])["session"]
        assert again["nextSeq"] == count + 1, "a child that ends with the mark gets no second one"
        opened = connection.call("session.open", id=made["id"], access="write")
        assert (opened["session"]["nextSeq"], opened["recovery"]) == (count + 1, None)
        connection.call("session.close", id=made["id"], writer=opened["writer"])


def test_boundaries_that_are_none_are_refused_and_leave_nothing(
    shared_daemon: DaemonProcess, connection: Connection, fresh_id: str
) -> None:
    handle = {
        "id": fresh_id,
        "writer": connection.call("session.create", id=fresh_id)["writer"],
    }
    connection.call("session.append", **handle, events=[*turn(1), events.turn_start(2)])

    def refused(**params: Any) -> Any:
        return connection.refusal("session.fork", id=fresh_id, newId=f"{fresh_id}-c", **params)

    for live in (True, False):
        inside = refused()
        assert (inside.kind, inside.facts["openTurn"]) == ("OPEN_TURN", 2)
        for boundary in (0, 1, TURN - 2, TURN):
            assert refused(boundary=boundary).kind == "OPEN_TURN", boundary
        outside = refused(boundary=TURN + 1)
        assert (outside.kind, outside.facts["path"]) == ("INVALID_PARAMS", "params.boundary")
        assert refused(boundary=10**9).kind == "INVALID_PARAMS"
        taken = connection.refusal("session.fork", id=fresh_id, boundary=TURN - 1, newId=fresh_id)
        assert taken.kind == "SESSION_EXISTS"
        if live:
            connection.call("session.close", **handle)
    missing = connection.refusal("session.fork", id=f"{fresh_id}-none")
    assert missing.kind == "SESSION_NOT_FOUND"
    assert not list(shared_daemon.root.glob(f"*/{fresh_id}-c"))


def test_a_damaged_source_can_be_forked_in_front_of_the_damage_only(
    shared_daemon: DaemonProcess, connection: Connection, fresh_id: str
) -> None:
    with closing(open_store(shared_daemon.root).create(Header(id=fresh_id, created_at=1))) as log:
        for number in (1, 2, 3):
            log.append(stored(turn(number), first_seq=(number - 1) * TURN))
    path = shared_daemon.root / "_no-cwd" / fresh_id / "session.jsonl.zstd"
    data = bytearray(path.read_bytes())
    frames = [at for at in range(len(data)) if data.startswith(b"\x28\xb5\x2f\xfd", at)]
    data[frames[2] + 30] ^= 0x40
    path.write_bytes(data)
    good = connection.call("session.fork", id=fresh_id, boundary=TURN - 1)["session"]
    assert (good["state"], good["nextSeq"]) == ("idle", TURN + 1)
    for boundary in (2 * TURN - 1, 3 * TURN - 1, None):
        found = connection.refusal("session.fork", id=fresh_id, boundary=boundary)
        assert found.kind == "LOG_CORRUPT"
        assert found.facts["offset"] == frames[2]


def lay_large(root: Path, session_id: str, size: int) -> int:
    """Lay a stored session of about so many bytes, closed by a daemon's rules, and return its length."""
    noise = random.Random(1)  # noqa: S311  # filling, not a secret
    fold, length = Fold(), 0
    with closing(open_store(root).create(Header(id=session_id, created_at=1))) as handle:
        for number in range(1, TURNS + 1):
            pieces = [noise.randbytes(3000).hex() for _ in range(size // TURNS // 3000)]
            log = [events.turn_start(number), events.step_start(1, number)]
            log += [events.user(piece) for piece in pieces]
            log += [events.step_end(1, number), events.turn_end(number)]
            written = stored(log, first_seq=length)
            for at in range(0, len(log), 50):
                handle.append(written[at : at + 50])
            for event in written:
                fold.apply(event)
            length += len(written)
        state = encode_state(take_state(fold))
        assert handle.keep(Snapshot(length, state, jsontext.encode(summary_of(fold))))
    return length


def rss(pid: int) -> int:
    """The most memory that a process ever had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError


SIZE_MB = int(os.environ.get("DSHD_FORK_MB", "40"))
TIMES = int(os.environ.get("DSHD_FORK_TIMES", "10"))


def test_forking_a_large_session_many_times_costs_little_time_and_no_memory(
    tmp_path: Path,
) -> None:
    length = lay_large(tmp_path / "root", "large", SIZE_MB * MB)
    with open_daemon(tmp_path) as daemon, daemon.connect() as one:
        assert one.call("session.stat", id="large")["session"]["nextSeq"] == length
        before = rss(daemon.pid)
        took: list[float] = []
        middle = length // TURNS * (TURNS // 2) - 1  # every turn is as long
        for number in range(TIMES):
            began = time.perf_counter()
            boundary = None if number % 2 else middle
            child = one.call("session.fork", id="large", boundary=boundary)["session"]
            took.append(time.perf_counter() - began)
            due = length if boundary is None else middle + 1
            assert child["header"]["seedLength"] == due
            assert child["state"] == ("idle" if boundary is None else "unknown")
            page = one.call("session.read", id=child["id"], offset=due)
            assert [event["type"] for event in page["events"]] == ["session/end-seed"]
            log = daemon.root / "_no-cwd" / child["id"] / "session.jsonl.zstd"
            if number > 1:
                log.unlink()  # the disk need not hold them all
        grown = rss(daemon.pid) - before
        print(  # noqa: T201  # the figures, for who runs it with -s
            f"{SIZE_MB} MB forked {TIMES} times: median {sorted(took)[TIMES // 2]:.3f} s,"
            f" most {max(took):.3f} s, memory +{grown / MB:.1f} MB"
        )
        assert grown < 48 * MB
        assert sorted(took)[TIMES // 2] < 0.25 + SIZE_MB / 40
