"""Sessions that a list, a clock, a folder or their age could make disappear: they are there, in order, and stay."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.events import Header
from dshd.storage.jsonl.store import open_store
from support import events, turns
from support.daemon import open_daemon
from support.events import stored
from support.rpc import CallRefusedError, Connection
from support.verdicts import read_all

if TYPE_CHECKING:
    from pathlib import Path

    from support.daemon import DaemonProcess

YEAR_S = 366 * 24 * 3600


def listed(connection: Connection, **params: Any) -> dict[str, dict[str, Any]]:
    return {
        one["id"]: one for one in connection.call("session.list", limit=1000, **params)["sessions"]
    }


def laid(daemon: DaemonProcess, session_id: str, log: list[dict[str, Any]], **header: Any) -> None:
    made = Header(id=session_id, created_at=1, **header)
    with closing(open_store(daemon.root).create(made)) as handle:
        if log:
            handle.append(stored(log))
        else:
            handle.flush()


@pytest.mark.parametrize("late", [0, 1, 424, None])
def test_a_session_is_listed_whatever_its_first_events_are(
    shared_daemon: DaemonProcess, connection: Connection, late: int | None
) -> None:
    name = f"late-{late}"
    chatter = [events.turn_start(), events.step_start(), *[events.chunk("x")] * (late or 3)]
    spoken = [events.user("at last")] if late else []
    laid(shared_daemon, name, [] if late == 0 else [*chatter, *spoken])
    view = listed(connection)[name]
    assert view["problem"] is None
    assert view["nextSeq"] == (0 if late == 0 else len(chatter) + len(spoken))
    assert view == connection.call("session.stat", id=name)["session"]


def test_a_session_that_was_created_is_in_everybodys_list_at_once(
    shared_daemon: DaemonProcess, connection: Connection
) -> None:
    with Connection(shared_daemon.socket) as other:
        for number in range(20):
            writer = connection.call("session.create", id=f"fresh-{number}")["writer"]
            assert f"fresh-{number}" in listed(other)
            connection.call("session.flush", id=f"fresh-{number}", writer=writer)
            connection.call("session.close", id=f"fresh-{number}", writer=writer)
            assert listed(other)[f"fresh-{number}"]["state"] == "idle"


def test_an_id_is_found_from_every_folder_and_a_folder_only_filters(
    shared_daemon: DaemonProcess, connection: Connection
) -> None:
    laid(shared_daemon, "in-a", [events.title("x")], cwd="/nowhere/a")
    assert "in-a" in listed(connection)
    assert "in-a" in listed(connection, cwd="/nowhere/a")
    assert "in-a" not in listed(connection, cwd="/nowhere/b")
    opened = connection.call("session.open", id="in-a", access="write")
    assert opened["session"]["header"]["cwd"] == "/nowhere/a", "it need not exist"
    connection.call("session.close", id="in-a", writer=opened["writer"])


def test_nothing_is_deleted_for_its_age(tmp_path: Path) -> None:
    with open_daemon(tmp_path) as daemon:
        with daemon.connect() as one:
            for number in range(3):
                turns.write_session(one, f"old-{number}")
        assert daemon.stop() == 0
        long_ago = time.time() - YEAR_S
        for path in [daemon.root, *daemon.root.rglob("*")]:
            os.utime(path, (long_ago, long_ago))
        before = {path: path.read_bytes() for path in daemon.root.rglob("session.jsonl*")}
        daemon.start()
        with daemon.connect() as one:
            assert set(listed(one)) == {"old-0", "old-1", "old-2"}
            opened = one.call("session.open", id="old-0", access="write")
            one.call("session.close", id="old-0", writer=opened["writer"])
        assert daemon.stop() == 0
        assert {path: path.read_bytes() for path in daemon.root.rglob("session.jsonl*")} == before


def test_no_event_reaches_a_session_that_nobody_created(
    shared_daemon: DaemonProcess, connection: Connection
) -> None:
    given = {"id": "nobody", "writer": "w" * 40}
    for method, params in (
        ("session.append", {"events": [events.title()]}),
        ("session.flush", {}),
        ("checkpoint.request", {"events": [events.turn_start()]}),
        ("session.recover", {}),
        ("session.close", {}),
    ):
        assert connection.refusal(method, **given, **params).kind in {
            "SESSION_NOT_FOUND",
            "WRITER_LOST",
        }
    assert "nobody" not in listed(connection)
    assert not list(shared_daemon.root.glob("*/nobody"))


def test_of_those_who_all_want_the_newest_one_gets_it_and_the_others_are_told(
    shared_daemon: DaemonProcess, connection: Connection
) -> None:
    laid(shared_daemon, "newest", [events.title("x")], cwd="/newest")

    def take(_: int) -> str:
        one = Connection(shared_daemon.socket)
        held.append(one)
        (view,) = one.call("session.list", cwd="/newest", limit=1)["sessions"]
        try:
            one.call("session.open", id=view["id"], access="write")
        except CallRefusedError as error:
            return error.kind
        return "taken"

    held: list[Connection] = []
    with ThreadPoolExecutor(4) as pool:
        outcomes = sorted(pool.map(take, range(4)))
    for one in held:
        one.close()
    assert outcomes == ["SESSION_BUSY"] * 3 + ["taken"]


TIMES = [1000, 4_070_908_800_000, 0, 1000, 1000, 1_700_000_000_000, 2**53 - 1, 1]
"""Of now, of 2099, of 1970, of the same millisecond, of the end of all counts."""


def test_the_order_is_that_of_the_seqs_whatever_the_clock_said(
    shared_daemon: DaemonProcess, connection: Connection
) -> None:
    log = [
        {**event, "time": when}
        for event, when in zip(
            stored([events.title(str(when)) for when in TIMES]), TIMES, strict=True
        )
    ]
    with closing(
        open_store(shared_daemon.root).create(Header(id="clocks", created_at=2**53 - 1))
    ) as handle:
        handle.append(log)
    assert read_all(connection, "clocks") == log
    view = listed(connection)["clocks"]
    assert (view["title"], view["nextSeq"]) == ("1", len(TIMES))
    now = time.time() * 1000
    assert abs(view["updatedAt"] - now) < 600_000, "the file's time, not an event's"
    opened = connection.call("session.open", id="clocks", access="write")
    handle_of = {"id": "clocks", "writer": opened["writer"]}
    sent = [{**events.title(str(when)), "time": when} for when in (5, 3, 3)]
    connection.call("session.append", **handle_of, events=sent)
    connection.call("session.close", **handle_of)
    after = read_all(connection, "clocks")[len(TIMES) :]
    assert [event["time"] for event in after if event["type"] == "session/title"] == [5, 3, 3]
    assert all(type(event["time"]) is int for event in after)
