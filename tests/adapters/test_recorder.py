"""What the recorder promises every adapter, without any framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsh_protocol.errors import FrameTooLargeError, WriterLostError
from support.recorded import HEADER, OK, begin_a_tool, lose, prompt, refuses_requests, saying, types

if TYPE_CHECKING:
    from dsh_client.adapters.recorder import Recorder
    from support.daemon import DaemonProcess


def test_the_end_of_a_step_is_on_its_way_when_its_last_result_is_known(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    recorder.finish_tool("a", OK)
    recorder.request(HEADER)
    recorder.answer(saying("done"))
    recorder.end_run()
    assert types(daemon, recorder) == [
        "turn/start",
        "step/start",
        "user/message",
        "request/header",
        "assistant/message",
        "tool/call",
        "tool/result",
        "step/end",
        "step/start",
        "assistant/message",
        "step/end",
        "turn/end",
    ]


def test_a_step_whose_checkpoint_fails_lets_no_request_pass(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    lose(daemon, recorder)
    recorder.finish_tool("a", OK)
    refuses_requests(recorder)


def test_a_last_step_whose_checkpoint_fails_lets_no_turn_end(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    recorder.begin_run()
    recorder.request(HEADER, [prompt("Say.")])
    lose(daemon, recorder)
    recorder.answer(saying("done"))
    with pytest.raises(WriterLostError):
        recorder.end_run()


def test_a_last_result_that_is_too_long_can_be_given_again_shorter(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    limit = daemon.call("daemon.status")["limits"]["maxLineBytes"]
    with pytest.raises(FrameTooLargeError):
        recorder.finish_tool("a", {"content": [{"type": "text", "text": "x" * limit}]})
    recorder.finish_tool("a", OK)
    recorder.request(HEADER)
    recorder.answer(saying("done"))
    recorder.end_run()
    assert types(daemon, recorder).count("tool/result") == 1


def test_a_step_whose_end_was_on_its_way_when_the_daemon_died_is_sent_again(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    begin_a_tool(recorder)
    daemon.kill()
    recorder.finish_tool("a", OK)
    daemon.start()
    recorder.request(HEADER)
    recorder.answer(saying("done"))
    daemon.kill()
    daemon.start()
    recorder.end_run()
    kinds = types(daemon, recorder)
    assert kinds.count("tool/result") == 1
    assert kinds[-3:] == ["assistant/message", "step/end", "turn/end"]


def test_pieces_of_a_stream_reach_the_log_few_or_many_and_the_answer_cites_them(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    recorder.begin_run()
    for many in (1, 5000):
        recorder.request(HEADER, [prompt("Say.")])
        for number in range(many):
            recorder.chunk({"type": "text-delta", "index": 0, "text": f"{number} "})
        recorder.answer(saying("done"))
    recorder.end_run()
    kinds = types(daemon, recorder)
    assert kinds.count("assistant/chunk") == 5001
    assert kinds[-3:] == ["assistant/message", "step/end", "turn/end"]


def test_pieces_without_an_answer_stand_before_the_end_of_their_step(
    daemon: DaemonProcess, recorder: Recorder
) -> None:
    recorder.begin_run()
    recorder.request(HEADER, [prompt("Say.")])
    for _ in range(3):
        recorder.chunk({"type": "text-delta", "index": 0, "text": "a "})
    recorder.fail_run(RuntimeError("the model is gone"))
    recorder.flush()
    assert types(daemon, recorder)[-5:] == [*["assistant/chunk"] * 3, "step/end", "turn/end"]
