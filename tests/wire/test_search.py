"""The search: what was said is found in every session, and the index changes nothing but the time it takes."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns
from support.daemon import DaemonProcess, open_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.rpc import Connection

QUERIES = (
    "lighthouse",
    "LIGHT",
    "light house",
    '"turn 1"',
    "会议",
    "议记",
    "naïve cafe",
    "snake_case",
    "answer",
    "nowhere",
    '" OR lighthouse',
)


def say(connection: Connection, name: str, *texts: str) -> None:
    """Write a session in which a user says something."""
    handle = turns.begin_turn(connection, name)
    said = [events.user(text) for text in texts]
    connection.call("session.append", **handle, events=[events.assistant(), *said])
    turns.end_turn(connection, handle)
    connection.call("session.close", **handle)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path_factory.mktemp("search")) as made:
        with made.connect() as connection:
            say(connection, "sea", "the lighthouse keeper", "a Lighthouse, again")
            say(connection, "town", "snake_case in main.py", "naïve café")
            say(connection, "asia", "明天的会议记录在哪里")
            say(connection, "plain")
        yield made


@pytest.fixture
def connection(daemon: DaemonProcess) -> Iterator[Connection]:
    with daemon.connect() as made:
        yield made


def found(connection: Connection, text: str, **params: Any) -> list[tuple[str, int, str]]:
    answer = connection.call("session.search", text=text, **params)
    assert set(answer) == {"hits", "nextCursor"}
    return [(hit["session"]["id"], hit["seq"], hit["excerpt"]) for hit in answer["hits"]]


def index_of(daemon: DaemonProcess) -> Path:
    return daemon.root / "search.sqlite"


def test_words_are_found_with_what_stands_around_them(connection: Connection) -> None:
    assert found(connection, "lighthouse") == [
        ("sea", 6, "a Lighthouse, again"),
        ("sea", 5, "the lighthouse keeper"),
    ]
    assert found(connection, "again light") == [("sea", 6, "a Lighthouse, again")]
    assert found(connection, "case") == [("town", 5, "snake_case in main.py")]
    assert found(connection, "cafe") == [("town", 6, "naïve café")]
    assert found(connection, "house") == []


def test_words_of_a_script_without_spaces_are_found_inside_a_sentence(
    connection: Connection,
) -> None:
    for words in ("会议", "记录", "会议记录", "在"):
        assert found(connection, words) == [("asia", 5, "明天的会议记录在哪里")]
    assert found(connection, "议会") == []


def test_what_is_quoted_stands_together(connection: Connection) -> None:
    assert found(connection, '"lighthouse keeper"') == [("sea", 5, "the lighthouse keeper")]
    assert found(connection, '"keeper lighthouse"') == []
    assert found(connection, "keeper lighthouse") == [("sea", 5, "the lighthouse keeper")]


@pytest.mark.parametrize(
    "text",
    [
        *(
            '"',
            '" OR x',
            "NEAR(a b)",
            "body:x",
            "a AND",
            "-lighthouse*",
            "((",
            "x\0y",
            "^light",
            "{a}",
        ),
        *("'; DROP TABLE texts; --", "\u200b", "a" * 100_000, " ".join("abc" * 1000)),
    ],
)
def test_nothing_that_is_typed_is_a_language(connection: Connection, text: str) -> None:
    answer = connection.answer(connection.send("session.search", text=text))
    if "error" in answer:
        assert answer["error"]["data"]["kind"] == "INVALID_PARAMS"
        assert answer["error"]["data"]["path"] == "params.text"
    assert found(connection, "lighthouse")


@pytest.mark.parametrize(
    "params",
    [{"text": "!?"}, {"text": ""}, {"text": "a", "limit": 0}, {"text": "a", "cursor": "?"}],
)
def test_what_cannot_be_looked_for_is_refused(
    connection: Connection, params: dict[str, Any]
) -> None:
    assert connection.refusal("session.search", **params).kind == "INVALID_PARAMS"


def test_pages_tell_everything_once(connection: Connection) -> None:
    whole = found(connection, "answer turn", limit=100) or found(connection, "turn", limit=100)
    assert len({session for session, _, _ in whole}) == 4
    pages: list[tuple[str, int, str]] = []
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        answer = connection.call("session.search", text="turn", limit=1, **more)
        pages += [(one["session"]["id"], one["seq"], one["excerpt"]) for one in answer["hits"]]
        cursor = answer["nextCursor"]
        if cursor is None:
            break
    assert pages == whole
    assert len(found(connection, "lighthouse", perSession=1)) == 1


def test_what_comes_is_found_as_soon_as_it_is_durable(
    daemon: DaemonProcess, connection: Connection
) -> None:
    handle = turns.begin_turn(connection, "growing")
    for number in range(3):
        said = [events.user(f"zebra{number}")]
        connection.call("session.append", **handle, events=said)
        connection.call("session.flush", **handle)
        assert [seq for _, seq, _ in found(connection, f"zebra{number}")] == [4 + number]
    turns.end_turn(connection, handle)
    connection.call("session.close", **handle)
    assert len(found(connection, "zebra")) == 3
    connection.call("session.delete", id="growing")
    assert found(connection, "zebra") == []
    connection.call("session.undelete", id="growing")
    assert len(found(connection, "zebra")) == 3
    connection.call("session.delete", id="growing")


def test_a_log_that_another_program_replaced_is_read_anew(
    daemon: DaemonProcess, connection: Connection
) -> None:
    say(connection, "old", "walrus")
    say(connection, "new", "octopus")
    assert found(connection, "walrus")
    for name in ("old", "new"):
        connection.call("session.delete", id=name)
    (place,) = daemon.root.glob(".trash/*/*/new")
    (log,) = place.glob("session.jsonl*")
    target = daemon.root / place.parent.name / "new"
    shutil.copytree(place, target)
    assert found(connection, "walrus") == []
    assert [name for name, _, _ in found(connection, "octopus")] == ["new"]
    connection.call("session.delete", id="new")
    assert log.exists()


def everything(connection: Connection) -> list[Any]:
    return [found(connection, query, limit=100) for query in QUERIES]


@pytest.mark.slow
def test_without_the_index_the_same_is_found(daemon: DaemonProcess, connection: Connection) -> None:
    before = everything(connection)
    assert sum(map(len, before)) > 10
    mode = index_of(daemon).stat().st_mode
    assert mode & 0o777 == 0o600
    # gone while the daemon runs; gone, empty, garbage, of another version, in a running daemon's place
    index_of(daemon).unlink()
    assert everything(connection) == before
    for content in (None, b"", b"garbage" * 1000):
        daemon.stop()
        if content is None:
            index_of(daemon).unlink(missing_ok=True)
        else:
            index_of(daemon).write_bytes(content)
        daemon.start()
        with daemon.connect() as again:
            assert everything(again) == before
    assert (daemon.root / "search.sqlite.damaged").read_bytes() == b"garbage" * 1000


@pytest.mark.slow
def test_a_damaged_page_is_noticed_and_the_index_made_anew(daemon: DaemonProcess) -> None:
    with daemon.connect() as connection:
        before = everything(connection)
    daemon.stop()
    content = bytearray(index_of(daemon).read_bytes())
    for at in range(8192, len(content), 4096):
        content[at : at + 64] = os.urandom(64)
    index_of(daemon).write_bytes(content)
    daemon.start()
    with daemon.connect() as connection:
        assert everything(connection) == before


@pytest.mark.slow
def test_where_there_can_be_no_index_the_logs_are_read(daemon: DaemonProcess) -> None:
    with daemon.connect() as connection:
        before = everything(connection)
        daemon.stop()
        index_of(daemon).unlink()
        index_of(daemon).mkdir()
        daemon.start()
    with daemon.connect() as connection:
        assert everything(connection) == before
        assert found(connection, "lighthouse", perSession=1, limit=1)
    assert "search.index_unusable" in daemon.output()
    daemon.stop()
    index_of(daemon).rmdir()
    daemon.start()
