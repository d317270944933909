"""What is too large is refused by a stated limit before anything has happened; what is merely large is kept whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dsh_client.blocking import Client
from dsh_client.session import open_session
from dsh_protocol.errors import EventInvalidError, FrameTooLargeError, InvalidParamsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.daemon import DaemonProcess

HEADER = {"config": {"provider": "p", "model": "m"}}
ASKED = [{"type": "tool-call", "id": "c", "name": "t", "arguments": "{}"}]
A_MILLION_LINES = "of it\n" * 1_000_000


@pytest.fixture
def client(shared_daemon: DaemonProcess) -> Iterator[Client]:
    one = Client(shared_daemon.socket, timeout=60)
    yield one
    one.close()


def texts(daemon: DaemonProcess, session_id: str) -> list[str]:
    """The texts of the results of a session's tools, page by page."""
    found: list[str] = []
    offset, end = 0, False
    while not end:
        page = daemon.call("session.read", id=session_id, offset=offset)
        for event in page["events"]:
            if event["type"] == "tool/result":
                (block,) = event["data"]["message"]["content"]
                found += [part["text"] for part in block["content"]]
        offset, end = page["nextOffset"], page["end"]
    return found


def test_a_result_of_a_million_lines_is_kept_and_one_over_the_limit_leaves_room_for_a_shorter_one(
    shared_daemon: DaemonProcess, client: Client, fresh_id: str
) -> None:
    with open_session(fresh_id, client=client) as session, session.turn("hello") as turn:
        with turn.step() as step:
            step.request(HEADER)
            (call,) = step.answer(ASKED)
            with step.tool(call) as tool:
                tool.result(A_MILLION_LINES)
        with turn.step() as step:
            step.request(HEADER)
            (call,) = step.answer([{**ASKED[0], "id": "d"}])
            with step.tool(call) as tool:
                with pytest.raises(FrameTooLargeError) as caught:
                    tool.result(A_MILLION_LINES * 5)
                facts: dict[str, Any] = caught.value.facts
                assert (facts["limit"], facts["max"]) == ("maxLineBytes", 16 * 1024 * 1024)
                with pytest.raises(EventInvalidError, match="surrogate"):
                    tool.result("cut in the middle of a pair: \ud83d")
                with pytest.raises(InvalidParamsError, match=r"events\[0\]"):
                    tool.result([{"type": "text", "text": {"a set"}}])
                tool.result("the result is too long: 30,000,000 characters")
    kept = texts(shared_daemon, fresh_id)
    assert kept[0] == A_MILLION_LINES
    assert kept[1:] == ["the result is too long: 30,000,000 characters"]


def test_a_checkpoint_over_the_limit_is_refused_before_anything_ran_and_the_last_one_stands(
    shared_daemon: DaemonProcess, client: Client, fresh_id: str
) -> None:
    with open_session(fresh_id, client=client) as session, session.turn("hello") as turn:
        with turn.step() as step:
            step.request(HEADER)
            step.answer("so far")
        before = shared_daemon.call("session.stat", id=fresh_id)["session"]["durableSeq"]
        with turn.step() as step:
            with pytest.raises(FrameTooLargeError):
                step.request({**HEADER, "snapshot": "x" * (17 << 20)})
            assert (
                shared_daemon.call("session.stat", id=fresh_id)["session"]["durableSeq"] >= before
            )
            step.request(HEADER)
            step.answer("and on")
    assert shared_daemon.call("session.stat", id=fresh_id)["session"]["state"] == "idle"


def test_a_few_sessions_with_huge_titles_or_headers_do_not_cost_everybody_the_list(
    daemon: DaemonProcess,
) -> None:
    client = Client(daemon.socket, timeout=60)
    huge = "é" * 3 * 1024 * 1024
    for number in range(4):
        named = {"id": f"named-{number}"}
        writer = client.call("session.create", **named)["writer"]
        title = {"type": "session/title", "data": {"title": huge}}
        client.call("session.append", **named, writer=writer, events=[title])
        client.call("session.flush", **named, writer=writer)
        client.call("session.create", id=f"composed-{number}", agentPreset=huge)
    found: dict[str, Any] = {}
    cursor: dict[str, str] = {}
    while True:
        page = client.call("session.list", **cursor)
        assert page["sessions"]
        found |= {one["id"]: one for one in page["sessions"]}
        if page["nextCursor"] is None:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert len(found) == 8
    for number in range(4):
        shown = found[f"named-{number}"]["title"]
        assert shown == huge[: len(shown) - 1] + "…"
        assert len(shown) < 20_000
        assert found[f"composed-{number}"]["header"]["agentPreset"] == huge
    client.close()
