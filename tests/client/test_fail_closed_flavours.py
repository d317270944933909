"""A full disk and a log that cannot be written, through both flavours: no request, no body, and on it goes after."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from dsh_client import async_session
from dsh_client.blocking import Client
from dsh_client.connection import connect
from dsh_client.errors import LatchedError
from dsh_client.session import open_session
from dsh_protocol.errors import DshdError, NoSpaceError, WriteFailedError
from support.daemon import DaemonProcess, open_daemon
from support.disks import TinyDisk, open_immutable, open_tiny_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager
    from pathlib import Path

HEADER = {"config": {"provider": "p", "model": "m"}}
FLAVOURS = ["blocking", "asyncio", "trio"]


@pytest.fixture
def disk(tmp_path: Path) -> Generator[TinyDisk, None, None]:
    with open_tiny_disk(tmp_path / "root") as disk:
        yield disk


@pytest.fixture
def daemon(disk: TinyDisk) -> Generator[DaemonProcess, None, None]:
    """A daemon whose root lies on a tiny disk."""
    with open_daemon(disk.path.parent) as daemon:
        yield daemon


def bulk() -> str:
    """A text that no compression gets into the few pages that a file beside the log gives back when it is replaced."""
    return secrets.token_hex(64 * 1024)


def asked() -> list[dict[str, Any]]:
    calls = [{"type": "tool-call", "id": i, "name": "t", "arguments": "{}"} for i in ("a", "b")]
    return [{"type": "text", "text": bulk()}, *calls]


class Trouble:
    """The disk's trouble at one moment of the agent's turn, and what ran."""

    def __init__(
        self, moment: str, block: Callable[[], AbstractContextManager[None]], kind: type[DshdError]
    ) -> None:
        self.moment = moment
        self.kind = kind
        self.ran: list[str] = []
        self._block = block
        self._open: AbstractContextManager[None] | None = None

    def begin(self, moment: str) -> bool:
        if moment == self.moment:
            self._open = self._block()
            self._open.__enter__()
        return moment == self.moment

    def end(self) -> None:
        assert self._open is not None
        self._open.__exit__(None, None, None)


def blocking_agent(daemon: DaemonProcess, trouble: Trouble) -> None:
    with Client(daemon.socket) as client, open_session("s", client=client) as session:
        with session.turn("first") as turn, turn.step() as step:
            step.request(HEADER)
            step.answer("ready")
        with session.turn(bulk()) as turn, turn.step() as step:
            if trouble.begin("request"):
                with pytest.raises(trouble.kind):
                    step.request(HEADER)
                with pytest.raises(LatchedError):
                    step.request(HEADER)
                with pytest.raises(trouble.kind):
                    session.flush()
                trouble.end()
                session.flush()
            with step.request(HEADER):
                trouble.ran.append("request")
            first, second = step.answer(asked())
            if trouble.begin("tool"):
                with pytest.raises(trouble.kind), step.tool(first):
                    trouble.ran.append("never")
                with pytest.raises(LatchedError), step.tool(second):
                    trouble.ran.append("never")
                trouble.end()
                session.flush()
            else:
                with step.tool(first) as tool:
                    trouble.ran.append("a")
                    tool.result("ok")
            with step.tool(second) as tool:
                trouble.ran.append("b")
                tool.result("ok")


async def awaited_agent(daemon: DaemonProcess, trouble: Trouble) -> None:
    async with (
        connect(daemon.socket) as client,
        async_session.open_session("s", client=client) as session,
    ):
        async with session.turn("first") as turn, turn.step() as step:
            await step.request(HEADER)
            await step.answer("ready")
        async with session.turn(bulk()) as turn, turn.step() as step:
            if trouble.begin("request"):
                with pytest.raises(trouble.kind):
                    await step.request(HEADER)
                with pytest.raises(LatchedError):
                    await step.request(HEADER)
                with pytest.raises(trouble.kind):
                    await session.flush()
                trouble.end()
                await session.flush()
            async with step.request(HEADER):
                trouble.ran.append("request")
            first, second = await step.answer(asked())
            if trouble.begin("tool"):
                with pytest.raises(trouble.kind):
                    async with step.tool(first):
                        trouble.ran.append("never")
                with pytest.raises(LatchedError):
                    async with step.tool(second):
                        trouble.ran.append("never")
                trouble.end()
                await session.flush()
            else:
                async with step.tool(first) as tool:
                    trouble.ran.append("a")
                    await tool.result("ok")
            async with step.tool(second) as tool:
                trouble.ran.append("b")
                await tool.result("ok")


def go(flavour: str, daemon: DaemonProcess, trouble: Trouble) -> None:
    """Run the agent; afterwards its turns are closed and everything is there."""
    if flavour == "blocking":
        blocking_agent(daemon, trouble)
    else:
        anyio.run(awaited_agent, daemon, trouble, backend=flavour)
    assert trouble.ran == (["request", "b"] if trouble.moment == "tool" else ["request", "a", "b"])
    events = daemon.call("session.read", id="s")["events"]
    assert [event["seq"] for event in events] == list(range(len(events)))
    types = [event["type"] for event in events]
    assert types.count("turn/end") == 2
    assert types.count("tool/call") == types.count("tool/result") == 2
    assert types[-1] == "turn/end"


@pytest.mark.parametrize("moment", ["request", "tool"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_with_the_disk_full_nothing_runs_and_the_same_session_goes_on_after(
    daemon: DaemonProcess, disk: TinyDisk, flavour: str, moment: str
) -> None:
    @contextmanager
    def full() -> Generator[None, None, None]:
        disk.fill()
        yield
        disk.free()

    go(flavour, daemon, Trouble(moment, full, NoSpaceError))


@pytest.mark.parametrize("moment", ["request", "tool"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_with_the_log_read_only_nothing_runs_and_the_same_session_goes_on_after(
    tmp_path: Path, flavour: str, moment: str
) -> None:
    with open_daemon(tmp_path) as daemon:

        @contextmanager
        def immutable() -> Generator[None, None, None]:
            (log,) = daemon.root.glob("**/s/session.jsonl*")
            with open_immutable(log):
                yield

        go(flavour, daemon, Trouble(moment, immutable, WriteFailedError))
