"""A recorder driven by hand: what a framework would tell it, and what the log has of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from dsh_client.errors import LatchedError
from dsh_protocol.errors import WriterLostError

if TYPE_CHECKING:
    from dsh_client.adapters.recorder import Recorder
    from support.daemon import DaemonProcess

HEADER = {"config": {"provider": "fake", "model": "one"}}
OK = {"content": [{"type": "text", "text": "ok"}]}


def prompt(text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"id": str(uuid4()), "role": "user", "source": {"kind": "user"}, "content": content}


def asking(*calls: str) -> dict[str, Any]:
    blocks = [{"type": "tool-call", "id": one, "name": "look", "arguments": "{}"} for one in calls]
    return {"id": str(uuid4()), "role": "assistant", "content": blocks}


def saying(text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"id": str(uuid4()), "role": "assistant", "content": content}


def types(daemon: DaemonProcess, recorder: Recorder) -> list[str]:
    found: list[str] = []
    while True:
        page = daemon.call("session.read", id=recorder.session_id, offset=len(found))
        found += [event["type"] for event in page["events"]]
        if not page["events"]:
            return found


def begin_a_tool(recorder: Recorder) -> None:
    recorder.begin_run()
    recorder.request(HEADER, [prompt("Look.")])
    recorder.answer(asking("a"))
    recorder.start_tool("a")


def lose(daemon: DaemonProcess, recorder: Recorder) -> None:
    """Take the write handle away, over a connection of somebody else."""
    handle = recorder._handle  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no program asks for its right
    assert handle is not None
    daemon.call("session.close", id=handle.id, writer=handle.ledger.writer)


def refuses_requests(recorder: Recorder) -> None:
    """Find that no request passes, the first for the handle that was lost, any other for the latch."""
    with pytest.raises(WriterLostError):
        recorder.request(HEADER)
    with pytest.raises(LatchedError):
        recorder.request(HEADER)
