"""Characters that some programs take for the end of a line, in and out by every way: lines end at 0x0A alone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support import events, turns

if TYPE_CHECKING:
    from support.daemon import DaemonProcess
    from support.rpc import Connection

ENDS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r\r\n\n"
SECRET = "sk-ant-api03-" + "Ab1" * 20
TEXT = f"before{ENDS}{SECRET}{ENDS}after"


@pytest.fixture(scope="module")
def session_id(shared_daemon: DaemonProcess) -> str:
    with shared_daemon.connect() as one:
        handle = turns.begin_turn(one, "ends")
        asked = [events.assistant(), events.step_end(), events.step_start(2), events.user(TEXT)]
        one.call("session.append", **handle, events=asked)
        done = [events.step_end(2)]
        one.call("checkpoint.turnEnd", **handle, events=done, reason={"kind": "completed"})
        one.call("session.append", **handle, events=[events.title(f"title{ENDS}")])
        one.call("session.close", **handle)
    return "ends"


def said(rows: list[dict[str, Any]]) -> str:
    """The text of the last user message among events or messages."""
    found = [
        row.get("data", row) for row in rows if row.get("type", "user/message") == "user/message"
    ]
    text: str = [one for one in found if one.get("role") == "user"][-1]["content"][0]["text"]
    return text


def test_the_socket_carries_them(connection: Connection, session_id: str) -> None:
    assert said(connection.call("session.read", id=session_id)["events"]) == TEXT
    assert said(connection.call("session.messages", id=session_id)["messages"]) == TEXT
    assert connection.call("session.stat", id=session_id)["session"]["title"] == f"title{ENDS}"


@pytest.mark.parametrize(
    "words",
    [
        ("-o", "jsonl", "log", "ends"),
        ("-o", "jsonl", "messages", "ends"),
        ("export", "ends", "-f", "jsonl"),
    ],
    ids=["log", "messages", "export"],
)
@pytest.mark.parametrize("redacted", [True, False])
def test_so_does_every_command_with_and_without_what_is_hidden(
    shared_daemon: DaemonProcess,
    session_id: str,
    words: tuple[str, ...],
    redacted: bool,  # noqa: FBT001  # pytest gives arguments by name
) -> None:
    more = () if redacted else ("--no-redact",)
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "dsh_client.cli.main",
            "--socket",
            str(shared_daemon.socket),
            *words,
            *more,
        ],
        check=True,
        capture_output=True,
        env=shared_daemon.env,
        timeout=60,
    )
    rows = [json.loads(line) for line in ended.stdout.split(b"\n")[:-1]]
    text = said(rows)
    assert (SECRET in text) is not redacted
    head, tail = text.split(ENDS)[0], text.split(ENDS)[-1]
    assert (head, tail) == ("before", "after")
    assert text.count(ENDS) == 2
