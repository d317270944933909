"""Labels and the trash: a session is named, archived, put away and brought back, and its log notices nothing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.daemon import open_daemon
from support.rpc import Connection
from wire.shapes import SESSION, Recorder, keys, until_accepted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.daemon import DaemonProcess

    FreshId = Callable[[], str]


def folder(daemon: DaemonProcess, session_id: str) -> Path:
    (found,) = daemon.root.glob(f"*/{session_id}")
    return found


def listed(connection: Connection, **params: Any) -> dict[str, dict[str, Any]]:
    page = connection.call("session.list", limit=1000, **params)
    return {session["id"]: session for session in page["sessions"]}


# --- labels


def test_labels_stand_beside_a_log_that_stays_as_it_is(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    turns.write_session(connection, name)
    (log,) = folder(daemon, name).glob("session.jsonl*")
    before, looked = log.read_bytes(), connection.call("session.stat", id=name)["session"]
    assert "labels" not in looked
    answer = connection.call("session.setLabel", id=name, title="Fix the build", pinned=True)
    assert set(answer) == {"session"}
    found = answer["session"]
    assert set(found) == SESSION | {"labels"}
    assert found["title"] == "Fix the build"
    assert found["labels"] == {"title": "Fix the build", "archived": False, "pinned": True}
    assert {**found, "title": looked["title"]} == {**looked, "labels": found["labels"]}
    assert log.read_bytes() == before
    assert (folder(daemon, name) / "labels.json").stat().st_mode & 0o777 == 0o600
    assert listed(connection)[name] == found


def test_what_is_absent_stays_and_an_empty_title_takes_the_label_away(
    connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    turns.write_session(connection, name)
    connection.call("session.setLabel", id=name, title="one", archived=True)
    found = connection.call("session.setLabel", id=name, pinned=True)["session"]
    assert found["labels"] == {"title": "one", "archived": True, "pinned": True}
    found = connection.call("session.setLabel", id=name, title="")["session"]
    assert (found["title"], found["labels"]["title"]) == (None, None)
    found = connection.call("session.setLabel", id=name, archived=False, pinned=False)["session"]
    assert "labels" not in found


def test_a_live_session_is_labelled_while_its_agent_writes(
    connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    handle = turns.begin_turn(connection, name)
    found = connection.call("session.setLabel", id=name, title="live")["session"]
    assert (found["title"], found["state"]) == ("live", "active")
    assert listed(connection)[name]["title"] == "live"
    turns.end_turn(connection, handle)
    connection.call("session.close", **handle)
    assert connection.call("session.stat", id=name)["session"]["title"] == "live"
    opened = connection.call("session.open", id=name, access="write")
    assert opened["session"]["labels"]["title"] == "live"
    connection.call("session.close", id=name, writer=opened["writer"])


def test_a_session_of_which_nothing_is_on_disk_has_no_label_yet(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    refusal = connection.refusal("session.setLabel", id=recorder.id, title="x")
    assert refusal.kind == "SESSION_NOT_FOUND"
    assert "first flush" in refusal.error["message"]
    recorder.call("session.close")
    assert connection.refusal("session.setLabel", id=recorder.id).kind == "SESSION_NOT_FOUND"


@pytest.mark.parametrize("title", ["x" * 1001, 7])
def test_a_title_is_a_short_text(connection: Connection, fresh_id: FreshId, title: Any) -> None:
    name = fresh_id()
    turns.write_session(connection, name)
    refusal = connection.refusal("session.setLabel", id=name, title=title)
    assert (refusal.kind, refusal.facts["path"]) == ("INVALID_PARAMS", "params.title")


def test_labels_that_cannot_be_read_are_none(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    turns.write_session(connection, name)
    connection.call("session.setLabel", id=name, title="x")
    (folder(daemon, name) / "labels.json").write_text('{"title": 7', "utf-8")
    found = connection.call("session.stat", id=name)["session"]
    assert (found["title"], "labels" in found) == (None, False)
    assert connection.call("session.setLabel", id=name, title="y")["session"]["title"] == "y"


def test_a_list_tells_archived_ones_apart_and_counts(
    connection: Connection, fresh_id: FreshId
) -> None:
    shelved, open_one = fresh_id(), fresh_id()
    for name in (shelved, open_one):
        turns.write_session(connection, name)
    connection.call("session.setLabel", id=shelved, archived=True)
    only = listed(connection, archived=True)
    assert shelved in only
    assert open_one not in only
    rest = listed(connection, archived=False)
    assert open_one in rest
    assert shelved not in rest
    assert {shelved, open_one} <= set(listed(connection))
    page = connection.call("session.list", archived=True, limit=1, count=True)
    assert page["total"] == len(only)
    late = only[shelved]["updatedAt"] + 1
    assert shelved not in listed(connection, since=late)
    assert shelved in listed(connection, since=late - 1)


# --- the trash


def test_a_deleted_session_is_gone_and_comes_back_as_it_was(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    turns.write_session(connection, name)
    connection.call("session.setLabel", id=name, title="kept")
    place = folder(daemon, name)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    looked = connection.call("session.stat", id=name)["session"]
    assert connection.call("session.delete", id=name) == {}
    assert not place.exists()
    assert connection.refusal("session.stat", id=name).kind == "SESSION_NOT_FOUND"
    assert connection.refusal("session.delete", id=name).kind == "SESSION_NOT_FOUND"
    assert name not in listed(connection)
    gone = listed(connection, deleted=True)[name]
    assert set(gone) == SESSION | keys("labels deletedAt")
    assert (gone["title"], gone["problem"], gone["state"]) == ("kept", None, "idle")
    found = connection.call("session.undelete", id=name)["session"]
    assert found == looked
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    assert name not in listed(connection, deleted=True)
    assert connection.refusal("session.undelete", id=name).kind == "SESSION_EXISTS"
    assert connection.refusal("session.undelete", id="never").kind == "SESSION_NOT_FOUND"


def test_what_was_deleted_last_under_an_id_comes_back(
    connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    for title in ("first", "second"):
        turns.write_session(connection, name)
        connection.call("session.setLabel", id=name, title=title)
        connection.call("session.delete", id=name)
    assert connection.call("session.undelete", id=name)["session"]["title"] == "second"
    assert connection.refusal("session.undelete", id=name).kind == "SESSION_EXISTS"
    connection.call("session.delete", id=name)
    recorder = Recorder(connection, name)
    assert connection.refusal("session.undelete", id=name).kind == "SESSION_EXISTS"
    recorder.call("session.close")
    assert connection.call("session.undelete", id=name)["session"]["title"] == "second"


def test_what_is_purged_is_gone_for_good_and_nothing_else_is(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    for title in ("first", "second", "third"):
        turns.write_session(connection, name)
        connection.call("session.setLabel", id=name, title=title)
        if title != "third":
            connection.call("session.delete", id=name)
    trashed = connection.call("session.list", deleted=True)["sessions"]
    when = {one["title"]: one["deletedAt"] for one in trashed if one["id"] == name}
    assert connection.refusal("session.purge", id=name, deletedAt=1).kind == "SESSION_NOT_FOUND"
    assert connection.call("session.purge", id=name, deletedAt=when["second"]) == {}
    again = connection.refusal("session.purge", id=name, deletedAt=when["second"])
    assert again.kind == "SESSION_NOT_FOUND"
    assert connection.call("session.stat", id=name)["session"]["title"] == "third"
    connection.call("session.delete", id=name)
    trashed = connection.call("session.list", deleted=True)["sessions"]
    (third,) = (one["deletedAt"] for one in trashed if (one["id"], one["title"]) == (name, "third"))
    connection.call("session.purge", id=name, deletedAt=third)
    assert connection.call("session.undelete", id=name)["session"]["title"] == "first"
    assert not list((daemon.root / ".trash").glob("gone-*"))


def test_a_session_with_a_writer_is_busy(connection: Connection, fresh_id: FreshId) -> None:
    name = fresh_id()
    handle = turns.begin_turn(connection, name)
    refusal = connection.refusal("session.delete", id=name)
    assert refusal.kind == "SESSION_BUSY"
    assert refusal.facts["holder"]["connected"] is True
    turns.end_turn(connection, handle)
    connection.call("session.close", **handle)
    assert connection.call("session.delete", id=name) == {}


def test_a_session_that_a_living_process_may_go_on_with_is_busy(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    with Connection(daemon.socket, name="agent") as agent:
        turns.begin_turn(agent, name)
    until_closed(connection, name)
    refusal = connection.refusal("session.delete", id=name)
    assert refusal.kind == "SESSION_BUSY"
    assert refusal.facts["holder"]["connected"] is False
    assert refusal.facts["holder"]["pid"] == os.getpid()


def until_closed(connection: Connection, name: str) -> None:
    while connection.call("session.stat", id=name)["session"]["revision"].startswith("live:"):
        pass


def test_whoever_follows_a_deleted_session_is_told(
    connection: Connection, fresh_id: FreshId
) -> None:
    name = fresh_id()
    turns.write_session(connection, name)
    following = connection.call("session.subscribe", id=name, fromSeq=1000)["subscriptionId"]
    connection.call("session.delete", id=name)
    ended = connection.read_message() if not connection.notifications else None
    ended = connection.notifications.popleft() if ended is None else ended
    assert ended["method"] == "session.ended"
    assert ended["params"] == {"subscriptionId": following, "reason": "the session was deleted"}


def test_damaged_newer_and_headless_sessions_are_put_away_like_any_other(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    header = {"type": "session", "version": 7, "createdAt": 0, "delegationDepth": 0}
    for text in (b"", b"nonsense\n", json.dumps({**header, "id": "x"}).encode() + b"\n"):
        name = fresh_id()
        place = daemon.root / "--odd--" / name
        place.mkdir(parents=True, mode=0o700)
        (place / "session.jsonl").write_bytes(text)
        assert connection.call("session.delete", id=name) == {}
        assert not place.exists()
        assert name in listed(connection, deleted=True)
        assert connection.call("session.undelete", id=name)["session"]["id"] == name
        assert (place / "session.jsonl").read_bytes() == text


def test_nothing_outside_the_root_is_ever_moved(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId, tmp_path: Path
) -> None:
    name = fresh_id()
    (tmp_path / "session.jsonl").write_bytes(b"not ours\n")
    project = daemon.root / "--odd--"
    project.mkdir(exist_ok=True, mode=0o700)
    (project / name).symlink_to(tmp_path)
    assert connection.refusal("session.delete", id=name).kind == "UNSAFE_PATH"
    assert (tmp_path / "session.jsonl").read_bytes() == b"not ours\n"
    (project / name).unlink()
    for hostile in ("../../..", ".trash", "../x", "a/b/c"):  # no other test makes them
        assert connection.refusal("session.delete", id=hostile).kind == "SESSION_NOT_FOUND"
        assert connection.refusal("session.undelete", id=hostile).kind == "SESSION_NOT_FOUND"


def test_a_fork_outlives_its_parent(connection: Connection, fresh_id: FreshId) -> None:
    parent, child = fresh_id(), fresh_id()
    turns.write_session(connection, parent)
    connection.call("session.fork", id=parent, newId=child)
    before = connection.call("session.read", id=child)
    connection.call("session.delete", id=parent)
    assert connection.call("session.read", id=child) == before
    opened = connection.call("session.open", id=child, access="write")
    assert opened["session"]["problem"] is None
    connection.call("session.close", id=child, writer=opened["writer"])


def test_labels_and_trash_outlive_a_killed_daemon(tmp_path: Path) -> None:
    with open_daemon(tmp_path) as daemon:
        with daemon.connect() as connection:
            for name in ("kept", "gone"):
                turns.write_session(connection, name)
            connection.call("session.setLabel", id="kept", title="T", archived=True)
            connection.call("session.delete", id="gone")
        daemon.kill()
        daemon.start()
        with daemon.connect() as connection:
            assert list(listed(connection, archived=True)) == ["kept"]
            assert list(listed(connection, deleted=True)) == ["gone"]
            found = connection.call("session.undelete", id="gone")["session"]
            assert (found["state"], found["problem"]) == ("idle", None)
            again = until_accepted(connection, "session.open", id="gone", access="write")
            appended = [events.turn_start(2)]
            connection.call("session.append", id="gone", writer=again["writer"], events=appended)
