"""The checkpoint of a request that is taken ahead, while the framework is on its way from the step before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from dsh_client.adapters import agent_course
from dsh_protocol.errors import FrameTooLargeError
from support.recorded import (
    HEADER,
    OK,
    asking,
    begin_a_tool,
    lose,
    prompt,
    refuses_requests,
    saying,
    types,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_client.adapters.recorder import Recorder
    from support.daemon import DaemonProcess


def requests_passed(daemon: DaemonProcess) -> float:
    """How many checkpoints of requests the daemon has passed."""
    for line in daemon.call("daemon.metrics")["text"].split("\n"):
        sample, _, value = line.rpartition(" ")
        if sample == 'dshd_checkpoint_seconds_count{checkpoint="request"}':
            return float(value)
    return 0.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def end_the_tool(daemon: DaemonProcess, recorder: Recorder) -> list[str]:
    """Give the step's last result and return the log's events when the next step stands there, all of it passed."""
    passed = requests_passed(daemon)
    recorder.finish_tool("a", OK)
    until(lambda: requests_passed(daemon) == passed + 1)
    kinds = types(daemon, recorder)
    assert kinds[-3:] == ["tool/result", "step/end", "step/start"]
    return kinds


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, what was taken ahead counts."""
    monkeypatch.setattr(agent_course, "_AHEAD_S", 60.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken ahead is never a moment ago."""
    monkeypatch.setattr(agent_course, "_AHEAD_S", 0.0)


@pytest.mark.usefixtures("patient")
def test_the_next_request_finds_its_checkpoint_passed(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    before = end_the_tool(daemon, recorder)
    passed = requests_passed(daemon)
    recorder.request(HEADER)
    assert requests_passed(daemon) == passed
    assert types(daemon, recorder) == before
    recorder.answer(asking("b"))
    recorder.start_tool("b")
    recorder.finish_tool("b", OK)
    recorder.request(HEADER)
    recorder.answer(saying("done"))
    recorder.end_run()
    steps = [kind for kind in types(daemon, recorder) if kind.startswith("step/")]
    assert steps == ["step/start", "step/end"] * 3


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ((HEADER, [prompt("And this?")]), "user/message"),
        (({"config": {"provider": "fake", "model": "two"}},), "request/header"),
    ],
)
def test_a_request_that_says_more_takes_its_own_in_the_same_step(
    daemon: DaemonProcess, recorder: Recorder, more: tuple[Any, ...], kind: str
) -> None:
    begin_a_tool(recorder)
    before = end_the_tool(daemon, recorder)
    passed = requests_passed(daemon)
    recorder.request(*more)
    assert requests_passed(daemon) == passed + 1
    assert types(daemon, recorder) == [*before, kind]


@pytest.mark.usefixtures("hasty")
def test_one_that_was_passed_too_long_ago_is_asked_for_again(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    before = end_the_tool(daemon, recorder)
    passed = requests_passed(daemon)
    recorder.request(HEADER)
    assert requests_passed(daemon) == passed + 1
    assert types(daemon, recorder) == before


@pytest.mark.usefixtures("hasty")
def test_so_a_handle_that_was_lost_since_lets_no_request_pass(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    end_the_tool(daemon, recorder)
    lose(daemon, recorder)
    refuses_requests(recorder)


@pytest.mark.usefixtures("patient")
def test_one_that_fails_lets_no_request_pass(daemon: DaemonProcess, recorder: Recorder) -> None:
    begin_a_tool(recorder)
    lose(daemon, recorder)
    recorder.finish_tool("a", OK)
    refuses_requests(recorder)


@pytest.mark.usefixtures("patient")
def test_what_the_daemon_died_over_is_sent_again(daemon: DaemonProcess, recorder: Recorder) -> None:
    begin_a_tool(recorder)
    daemon.kill()
    recorder.finish_tool("a", OK)
    daemon.start()
    recorder.request(HEADER)
    recorder.answer(saying("done"))
    recorder.end_run()
    kinds = types(daemon, recorder)
    assert kinds[-6:] == [
        *("tool/result", "step/end", "step/start", "assistant/message", "step/end", "turn/end")
    ]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["ends", "fails", "closes"])
def test_a_run_without_that_request_closes_the_step(
    daemon: DaemonProcess, recorder: Recorder, way: str
) -> None:
    begin_a_tool(recorder)
    before = end_the_tool(daemon, recorder)
    if way == "ends":
        recorder.end_run()
    elif way == "fails":
        recorder.fail_run(RuntimeError("no more steps"))
        recorder.flush()
    else:
        recorder.close()
    assert types(daemon, recorder) == [*before, "step/end", "turn/end"]
    recorder.begin_run()
    recorder.request(HEADER, [prompt("Again.")])
    recorder.answer(saying("done"))
    recorder.end_run()
    assert types(daemon, recorder)[-6:].count("turn/end") == 1


@pytest.mark.usefixtures("patient")
def test_a_message_that_the_program_brings_along_goes_into_that_step(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    before = end_the_tool(daemon, recorder)
    recorder.adopt(saying("somebody else said"), [prompt("And you?")])
    assert types(daemon, recorder) == [*before, "user/message", "assistant/message"]


def test_none_is_taken_where_the_model_is_not_asked_next(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    recorder.finish_tool("a", OK, goes_on=False)
    recorder.end_run()
    assert types(daemon, recorder)[-3:] == ["tool/result", "step/end", "turn/end"]


@pytest.mark.usefixtures("patient")
def test_a_last_result_that_is_too_long_takes_none_and_can_be_given_again(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    limit = daemon.call("daemon.status")["limits"]["maxLineBytes"]
    with pytest.raises(FrameTooLargeError):
        recorder.finish_tool("a", {"content": [{"type": "text", "text": "x" * limit}]})
    end_the_tool(daemon, recorder)
    recorder.request(HEADER)
    recorder.answer(saying("done"))
    recorder.end_run()
    assert types(daemon, recorder).count("tool/result") == 1
