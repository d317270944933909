"""Logs that other hands touched, under a live writer or not: nothing is glued to them, and no other session notices."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.events import Header
from dshd.storage.jsonl.layout import encode_segment
from dshd.storage.jsonl.store import open_store
from support import events
from support.events import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.daemon import DaemonProcess
    from support.rpc import Connection

GOOD = [events.turn_start(), events.step_start(), events.user(), events.step_end()]
CLOSED = [*GOOD, events.turn_end()]
NOBODY = 65534


def delete(log: Path) -> None:
    log.unlink()


def delete_directory(log: Path) -> None:
    shutil.rmtree(log.parent)


def replace(log: Path) -> None:
    copy = log.with_name("copy")
    copy.write_bytes(log.read_bytes())
    copy.rename(log)


def replace_by_other(log: Path) -> None:
    other = log.with_name("other")
    with closing(open_store(log.parent / "x").create(Header(id="other", created_at=1))) as handle:
        handle.append(stored(CLOSED))
    (log.parent / "x" / "_no-cwd" / "other" / log.name).rename(other)
    shutil.rmtree(log.parent / "x")
    other.rename(log)


def cut(log: Path) -> None:
    os.truncate(log, log.stat().st_size - 20)


def cut_to_nothing(log: Path) -> None:
    os.truncate(log, 0)


def grow(log: Path) -> None:
    with log.open("ab") as file:
        file.write(b'{"type":"x"}\n')


def link(log: Path) -> None:
    kept = log.with_name("kept")
    log.rename(kept)
    log.symlink_to(kept)


def link_outside(log: Path) -> None:
    log.unlink()
    log.symlink_to("/etc/passwd")


def fifo(log: Path) -> None:
    log.unlink()
    os.mkfifo(log)


def directory(log: Path) -> None:
    log.unlink()
    log.mkdir()


def give_away(log: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(log, NOBODY, NOBODY)


def swap_directory(log: Path) -> None:
    kept = log.parent.with_name(f"{log.parent.name}-kept")
    log.parent.rename(kept)
    log.parent.symlink_to(kept)


TOUCHES: list[Any] = [
    delete,
    delete_directory,
    replace,
    replace_by_other,
    cut,
    cut_to_nothing,
    grow,
    link,
    link_outside,
    fifo,
    directory,
    give_away,
]
AT_REST: dict[Any, set[str]] = {
    delete: {"SESSION_NOT_FOUND"},
    delete_directory: {"SESSION_NOT_FOUND"},
    replace: set(),
    replace_by_other: {"LOG_CORRUPT"},
    cut: {"LOG_CORRUPT"},
    cut_to_nothing: {"LOG_CORRUPT"},
    grow: set(),
    link: {"UNSAFE_PATH"},
    link_outside: {"UNSAFE_PATH"},
    fifo: {"UNSAFE_PATH"},
    directory: {"UNSAFE_PATH"},
    give_away: {"UNSAFE_PATH"},
    swap_directory: {"UNSAFE_PATH"},
}
"""What a write-open of a session at rest answers; nothing where it may be opened."""


def snapshot(place: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a path but what is ours to write: mode, owner, size, target, content."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted([place, *place.rglob("*")]):
        if path.name in {"derived.bin", "holder.json", "session.lock"} or not os.path.lexists(path):
            continue
        state = path.lstat()
        regular = path.is_file() and not path.is_symlink()
        content = path.read_bytes() if regular else None
        size = state.st_size if regular else 0
        found[str(path)] = (state.st_mode, state.st_uid, size, content)
    return found


def log_of(daemon: DaemonProcess, session_id: str) -> Path:
    return daemon.root / "_no-cwd" / encode_segment(session_id) / "session.jsonl.zstd"


@pytest.fixture
def bystander(connection: Connection, fresh_id: str) -> Iterator[None]:
    """Another session, which must be written to all the while."""
    name = f"{abs(hash(fresh_id))}-bystander"
    writer = connection.call("session.create", id=name)["writer"]
    handle = {"id": name, "writer": writer}
    connection.call("session.append", **handle, events=GOOD)
    yield
    done = connection.call("checkpoint.turnEnd", **handle, reason={"kind": "completed"})
    assert done["durableSeq"] == done["nextSeq"] == len(CLOSED)
    connection.call("session.close", **handle)


def listed(connection: Connection, session_id: str) -> dict[str, Any] | None:
    """What a list says of one session; the list itself must always work."""
    views: list[dict[str, Any]] = connection.call("session.list", limit=1000)["sessions"]
    assert any("bystander" in view["id"] for view in views)
    return next((view for view in views if view["id"] == session_id), None)


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("touch", TOUCHES)
def test_a_log_that_is_touched_under_its_writer_gets_nothing_more(
    shared_daemon: DaemonProcess,
    connection: Connection,
    fresh_id: str,
    touch: Callable[[Path], None],
) -> None:
    handle = {"id": fresh_id, "writer": connection.call("session.create", id=fresh_id)["writer"]}
    connection.call("session.append", **handle, events=GOOD)
    connection.call("session.flush", **handle)
    log = log_of(shared_daemon, fresh_id)
    touch(log)
    before = snapshot(log.parent)
    connection.call("session.append", **handle, events=[events.turn_end()])
    for _ in range(2):
        assert connection.refusal("session.flush", **handle).kind == "LOG_CHANGED"
    refused = connection.refusal("checkpoint.turnEnd", **handle, reason={"kind": "completed"})
    assert refused.kind in {"LOG_CHANGED", "EVENT_INVALID"}
    view = listed(connection, fresh_id)
    assert view is not None
    assert view["problem"]["kind"] == "LOG_CHANGED"
    assert connection.refusal("session.close", **handle).kind == "LOG_CHANGED"
    assert snapshot(log.parent) == before, "something was written, made or mended"


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("touch", [*TOUCHES, swap_directory])
def test_a_log_that_is_touched_at_rest_is_named_and_left(
    shared_daemon: DaemonProcess,
    connection: Connection,
    fresh_id: str,
    touch: Callable[[Path], None],
) -> None:
    handle = {"id": fresh_id, "writer": connection.call("session.create", id=fresh_id)["writer"]}
    connection.call("session.append", **handle, events=CLOSED)
    connection.call("session.close", **handle)
    log = log_of(shared_daemon, fresh_id)
    touch(log)
    due = AT_REST[touch]
    before = snapshot(log.parent)
    view = listed(connection, fresh_id)
    if due == {"SESSION_NOT_FOUND"}:
        assert view is None
    elif due:
        assert view is not None
        assert {view["problem"]["kind"]} == due
        assert str(log.parent) in view["problem"]["path"]
        stat = connection.call("session.stat", id=fresh_id)["session"]
        assert (stat["state"], stat["problem"]["kind"]) == ("damaged", view["problem"]["kind"])
    if due:
        opened = connection.refusal("session.open", id=fresh_id, access="write")
        assert {opened.kind} == due
        assert snapshot(log.parent) == before, "something was written, made or mended"
        return
    whole = connection.call("session.read", id=fresh_id)["events"]
    assert [event["type"] for event in whole] == [event["type"] for event in CLOSED]
    handle["writer"] = connection.call("session.open", id=fresh_id, access="write")["writer"]
    connection.call("session.append", **handle, events=[events.turn_start(2)])
    assert connection.call("session.close", **handle)["durableSeq"] == len(CLOSED) + 2
    aside = list(log.parent.glob("torn-*.bin"))
    assert len(aside) == (1 if touch is grow else 0), "what was cut is set aside"


@pytest.mark.usefixtures("bystander")
def test_two_logs_of_one_session_are_damage_and_both_are_named(
    shared_daemon: DaemonProcess, connection: Connection, fresh_id: str
) -> None:
    for compression in ("zstd", "none"):
        store = open_store(shared_daemon.root.parent / compression, compression=compression)
        with closing(store.create(Header(id=fresh_id, created_at=1))) as handle:
            handle.append(stored(CLOSED))
        made = shared_daemon.root.parent / compression / "_no-cwd" / encode_segment(fresh_id)
        shutil.copytree(made, log_of(shared_daemon, fresh_id).parent, dirs_exist_ok=True)
    place = log_of(shared_daemon, fresh_id).parent
    before = snapshot(place)
    view = listed(connection, fresh_id)
    assert view is not None
    assert view["state"] == "damaged"
    opened = connection.refusal("session.open", id=fresh_id, access="write")
    forked = connection.refusal("session.fork", id=fresh_id)
    created = connection.refusal("session.create", id=fresh_id)
    assert (opened.kind, forked.kind, created.kind) == (
        "LOG_CORRUPT",
        "LOG_CORRUPT",
        "SESSION_EXISTS",
    )
    for text in (view["problem"]["message"], str(opened)):
        assert str(place / "session.jsonl") in text
        assert str(place / "session.jsonl.zstd") in text
    assert snapshot(place) == before
