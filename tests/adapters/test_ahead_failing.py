"""What was taken ahead and goes wrong: the log and its recorder agree on what is open, and `flush` lets all go on."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from dsh_client import blocking, ledger
from dsh_client.adapters import agent_course, on_loop
from dsh_client.adapters.recorder import Recorder
from dsh_client.errors import CallTimeoutError, ClientError, ConnectionLostError, LatchedError
from dsh_protocol.errors import DshdError, FrameTooLargeError, NoSpaceError
from support.daemon import open_daemon
from support.disks import open_tiny_disk
from support.recorded import HEADER, OK, asking, begin_a_tool, prompt, saying, types

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from support.daemon import DaemonProcess
    from support.disks import TinyDisk


@pytest.fixture(params=[0.0, 60.0], ids=["long ago", "a moment ago"])
def taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it was taken ahead."""
    monkeypatch.setattr(agent_course, "_AHEAD_S", request.param)


def go_on(daemon: DaemonProcess, recorder: Recorder) -> None:
    """Run to an end, and find every step and turn of the log closed."""
    recorder.begin_run(new=False)
    recorder.request(HEADER, [prompt("Go on.")])
    recorder.answer(saying("done"))
    recorder.end_run()
    kinds = types(daemon, recorder)
    assert kinds[-2:] == ["step/end", "turn/end"]
    assert kinds.count("step/start") == kinds.count("step/end")
    assert kinds.count("turn/start") == kinds.count("turn/end")
    assert kinds.count("tool/call") == kinds.count("tool/result")


def leave(recorder: Recorder, way: str) -> None:
    """Let the run fail, end, or neither."""
    if way == "fails":
        recorder.fail_run(RuntimeError("called off"))
        recorder.flush()
    elif way == "ends":
        recorder.end_run()


WAYS = pytest.mark.parametrize("way", ["goes on", "fails", "ends"])


@WAYS
@pytest.mark.usefixtures("taken")
def test_a_prompt_that_is_too_long_is_in_no_step_twice(
    daemon: DaemonProcess, recorder: Recorder, way: str
) -> None:
    begin_a_tool(recorder)
    recorder.finish_tool("a", OK)
    limit = daemon.call("daemon.status")["limits"]["maxLineBytes"]
    with pytest.raises(FrameTooLargeError):
        recorder.request(HEADER, [prompt("x" * limit)])
    leave(recorder, way)
    go_on(daemon, recorder)


def test_a_message_brought_along_that_is_too_long_leaves_no_step(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    recorder.begin_run()
    limit = daemon.call("daemon.status")["limits"]["maxLineBytes"]
    with pytest.raises(FrameTooLargeError):
        recorder.adopt(saying("hello"), [prompt("x" * limit)])
    go_on(daemon, recorder)


@pytest.mark.usefixtures("taken")
def test_a_caller_that_is_cancelled_before_it_has_sent_anything_leaves_the_step(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    recorder.finish_tool("a", OK)
    served = recorder.asking(HEADER, [prompt("x" * 40_000)])
    assert on_loop.begin(served) == (False, None)
    served.close()
    leave(recorder, "fails")
    go_on(daemon, recorder)


@WAYS
@pytest.mark.parametrize("interrupted", [True, False], ids=["interrupted", "late"])
@pytest.mark.usefixtures("taken")
def test_what_could_not_be_sent_is_sent_again(
    daemon: DaemonProcess,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    *,
    interrupted: bool,
) -> None:
    begin_a_tool(recorder)

    def send(link: Any, _line: bytes, method: str, timeout: float) -> None:
        monkeypatch.undo()
        if not interrupted:
            raise link._late(method, timeout)  # noqa: SLF001  what `_send` itself does
        link._end(ConnectionLostError("interrupted"))  # noqa: SLF001  likewise
        raise KeyboardInterrupt

    monkeypatch.setattr(blocking.Link, "_send", send)
    with pytest.raises(KeyboardInterrupt if interrupted else CallTimeoutError):
        recorder.finish_tool("a", OK)
    if way != "fails":
        recorder.flush()
    leave(recorder, way)
    go_on(daemon, recorder)


@pytest.mark.parametrize("way", ["asks", "asks too much", "ends", "fails", "brings along"])
@pytest.mark.usefixtures("taken")
def test_where_it_alone_is_refused_there_is_no_step(
    daemon: DaemonProcess, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    begin_a_tool(recorder)
    real = blocking.Link._send  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no other place sees lines

    def send(link: blocking.Link, lines: bytes, method: str, timeout: float) -> None:
        head, newline, tail = lines.partition(b"\n")
        spoilt = tail.replace(b'"writer":"', b'"writer":5,"x":"', 1)
        real(link, head + newline + spoilt, method, timeout)

    monkeypatch.setattr(blocking.Link, "_send", send)
    recorder.finish_tool("a", OK)
    monkeypatch.setattr(blocking.Link, "_send", real)
    with suppress(DshdError, ClientError):
        if way == "asks":
            recorder.request(HEADER)
        elif way == "asks too much":
            limit = daemon.call("daemon.status")["limits"]["maxLineBytes"]
            recorder.request(HEADER, [prompt("x" * limit)])
        elif way == "ends":
            recorder.end_run()
        elif way == "fails":
            recorder.fail_run(RuntimeError("called off"))
        else:
            recorder.adopt(saying("hello"), [prompt("And?")])
    for _ in range(
        2
    ):  # of each that was refused it tells once: the checkpoint, and the end of what is no step
        with suppress(DshdError):
            recorder.flush()
    recorder.flush()
    go_on(daemon, recorder)


def test_a_result_is_recorded_though_the_latch_closes_while_it_is_sent(
    daemon: DaemonProcess, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_a_tool(recorder)
    absorb = ledger.Ledger.absorb

    def closing(self: ledger.Ledger) -> list[ledger.Entry]:
        monkeypatch.undo()
        self.latch(CallTimeoutError("an earlier call was not answered"))
        return absorb(self)

    monkeypatch.setattr(ledger.Ledger, "absorb", closing)
    with pytest.raises(LatchedError):
        recorder.finish_tool("a", OK)
    recorder.flush()
    assert types(daemon, recorder)[-2:] == ["tool/result", "step/end"]
    go_on(daemon, recorder)


def test_a_result_that_is_too_long_for_a_closed_latch_can_be_given_again(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    handle = recorder._handle  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no program closes its latch
    assert handle is not None
    handle.ledger.latch(CallTimeoutError("an earlier call was not answered"))
    limit = daemon.call("daemon.status")["limits"]["maxLineBytes"]
    with pytest.raises(FrameTooLargeError):
        recorder.finish_tool("a", {"content": [{"type": "text", "text": "x" * limit}]})
    with pytest.raises(LatchedError):
        recorder.finish_tool("a", OK)
    recorder.flush()
    go_on(daemon, recorder)


@pytest.fixture
def small(tmp_path: Path) -> Generator[tuple[TinyDisk, DaemonProcess, Recorder], None, None]:
    """A recorder whose session lies on a small disk."""
    with open_tiny_disk(tmp_path / "small") as disk, open_daemon(disk.path) as daemon:
        settings: Any = {"socket": str(daemon.socket), "timeout": 20.0}
        recorder = Recorder(f"recorded-{uuid4()}", "test", settings)
        yield disk, daemon, recorder
        recorder.close()


def long_text() -> str:
    return os.urandom(9000).hex()


@pytest.mark.parametrize("prompts", [0, 1])
@pytest.mark.usefixtures("taken")
def test_a_disk_that_was_full_when_it_was_taken_lets_all_go_on_after_a_flush(
    small: tuple[TinyDisk, DaemonProcess, Recorder], prompts: int
) -> None:
    disk, daemon, recorder = small
    begin_a_tool(recorder)
    disk.fill()
    recorder.finish_tool("a", {"content": [{"type": "text", "text": long_text()}]})
    with pytest.raises(NoSpaceError):
        recorder.request(HEADER, [prompt(long_text()) for _ in range(prompts)])
    disk.free()
    recorder.flush()
    go_on(daemon, recorder)


@pytest.mark.usefixtures("taken")
def test_a_disk_that_is_full_since_lets_no_request_pass_that_says_more(
    small: tuple[TinyDisk, DaemonProcess, Recorder],
) -> None:
    disk, daemon, recorder = small
    begin_a_tool(recorder)
    recorder.finish_tool("a", OK)
    recorder.flush()
    disk.fill()
    with pytest.raises(NoSpaceError):
        recorder.request(HEADER, [prompt(long_text())])
    disk.free()
    recorder.flush()
    go_on(daemon, recorder)


@pytest.mark.usefixtures("taken")
def test_its_failure_is_not_told_after_a_flush_that_has_made_it_good(
    small: tuple[TinyDisk, DaemonProcess, Recorder],
) -> None:
    disk, daemon, recorder = small
    begin_a_tool(recorder)
    disk.fill()
    recorder.finish_tool("a", {"content": [{"type": "text", "text": long_text()}]})
    with pytest.raises(NoSpaceError):
        recorder.flush()
    disk.free()
    recorder.flush()
    recorder.request(HEADER)
    recorder.answer(asking("b"))
    recorder.start_tool("b")
    recorder.finish_tool("b", OK)
    go_on(daemon, recorder)
