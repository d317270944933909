"""Every error ends in its exit code, one line of what, and one line of what to try."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dsh_client.cli.main import main
from dsh_client.cli.verbs import VERBS
from dsh_protocol.errors import DshdError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cli.conftest import Ended
    from cli.scripted import ScriptedDaemon

    Dshctl = Callable[..., Ended]

KINDS = {cls.kind: cls for cls in DshdError.__subclasses__()}
FREE = {"version", "doctor", "completion"}
"""Verbs that need no daemon."""
CODES = {
    "SESSION_NOT_FOUND": 4,
    "SESSION_EXISTS": 5,
    "SESSION_BUSY": 5,
    "WRITER_LOST": 5,
    "SEQ_CONFLICT": 5,
    "ROOT_LOCKED": 78,
    "ID_INVALID": 2,
    "PARSE_ERROR": 2,
    "INVALID_REQUEST": 2,
    "METHOD_NOT_FOUND": 2,
    "INVALID_PARAMS": 2,
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_exit_code_of_an_error_follows_its_kind(
    daemon: ScriptedDaemon, dshctl: Dshctl, kind: str
) -> None:
    def fail(_: dict[str, Any]) -> Any:
        raise KINDS[kind]("some\x1bthing is wrong", index=3)

    daemon.answers["any.method"] = fail
    daemon.answers["checkpoint.request"] = fail
    ended = dshctl("-o", "json", "rpc", "any.method", '{"id": "a1"}')
    assert ended.code == CODES.get(kind, 1)
    assert ended.out == ""
    first, facts, *_, last = ended.err.splitlines()
    assert first == f"dshctl: some\\x1bthing is wrong [{kind}]"
    assert facts == 'facts: {"index": 3}'
    assert last.startswith("try: ")
    assert dshctl("rpc", "checkpoint.request").code == CODES.get(kind, 6)


def test_an_aborted_tool_checkpoint_is_a_refusal(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    daemon.answers["checkpoint.tool"] = lambda params: params
    assert dshctl("rpc", "checkpoint.tool", '{"decision": "DISPATCH"}').code == 0
    assert dshctl("rpc", "checkpoint.tool", '{"decision": "ABORTED_BEFORE_DISPATCH"}').code == 6


@pytest.mark.parametrize(
    "params",
    [
        '{"id": "a", "id": "b"}',
        '{"id": "a", "i\\u0064": "a"}',
        '{"events": [{"data": {"x": 1, "y": {"": 1, "": 1}}}]}',
        '{"a\\u001b": null, "a\\u001b": null}',
    ],
)
@pytest.mark.parametrize("way", ["word", "stdin"])
def test_a_key_that_stands_twice_is_refused_and_nothing_is_sent(
    daemon: ScriptedDaemon, dshctl: Dshctl, monkeypatch: pytest.MonkeyPatch, params: str, way: str
) -> None:
    sent: list[Any] = []
    daemon.answers["any.method"] = sent.append
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(params.encode())))
    ended = dshctl("rpc", "any.method", params if way == "word" else "-")
    assert ended.code == 2
    assert "stands twice in one object" in ended.err
    assert "\x1b" not in ended.err
    assert sent == []


def test_a_negative_zero_is_sent_as_it_was_written(daemon: ScriptedDaemon, dshctl: Dshctl) -> None:
    daemon.answers["any.method"] = lambda params: {"told": repr(params)}
    ended = dshctl("-o", "json", "rpc", "any.method", '{"a": -0, "b": [-0.0, 0, -10]}')
    assert ended.document["told"] == "{'a': -0.0, 'b': [-0.0, 0, -10]}"


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS if verb.name not in FREE])
def test_a_daemon_that_does_not_run_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    none: list[str] = []
    special = {
        "list": none,
        "status": none,
        "top": none,
        "stop": none,
        "metrics": none,
        "trash": none,
        "rpc": ["daemon.status"],
        "diff": ["a1", "b1"],
        "rename": ["a1", "title"],
        "prune": ["--older-than", "1d"],
        "import": ["--from", "codex", "/dev/null"],
    }
    words = special.get(verb, ["a1"])
    for place in ("nowhere", "x" * 200):
        assert main(["--socket", str(tmp_path / place), verb, *words]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert place in err
        assert err.splitlines()[-1].startswith("try: dshd serve, in another terminal")


def test_a_dead_socket_is_no_daemon(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(daemon.path)
    daemon.path.rename(path + ".kept")
    daemon.stop()
    assert main(["--socket", path + ".kept", "status"]) == 3
    assert "no daemon answers" in capsys.readouterr().err


def test_version_needs_no_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--socket", str(tmp_path / "nowhere"), "version"]) == 0
    out, err = capsys.readouterr()
    assert "daemon    not running" in out
    assert "dshd serve" in err


def test_an_unusable_environment_is_exit_code_78(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DSHD_SOCKET", "relative/path")
    assert main(["list"]) == 78
    assert "DSHD_SOCKET" in capsys.readouterr().err


def test_a_daemon_that_does_not_answer_is_not_taken_for_none(
    daemon: ScriptedDaemon, dshctl: Dshctl
) -> None:
    held = threading.Event()
    daemon.answers["daemon.status"] = lambda _: held.wait(60)
    ended = dshctl("--timeout", "0.2", "status")
    held.set()
    assert ended.code == 1
    assert "within 0.2 s" in ended.err
    assert ended.err.splitlines()[-1] == "try: dshctl status, or a longer --timeout"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate"],
        ["show"],
        ["list", "-n", "x"],
        ["list", "-n", "-1"],
        ["log", "a1", "--from", "-1"],
        ["messages", "a1", "-n", "-1"],
        ["list", "-o", "yaml"],
        ["list", "--here", "--cwd", "/"],
        ["list", "-s", "sleepy"],
        ["--timeout", "0", "list"],
        ["--timeout", "nan", "list"],
        ["lis"],
        ["list", "\x1b[31m"],
    ],
)
def test_wrong_usage_is_exit_code_2(
    daemon: ScriptedDaemon, dshctl: Dshctl, words: list[str]
) -> None:
    ended = dshctl(*words)
    assert ended.code == 2
    assert ended.out == ""
    assert "\x1b" not in ended.err
    assert "try: dshctl" in ended.err
    assert daemon.calls == []


@pytest.mark.parametrize("words", [["--help"], ["-V"], *([verb.name, "-h"] for verb in VERBS)])
def test_help_and_version_go_to_standard_output(dshctl: Dshctl, words: list[str]) -> None:
    ended = dshctl(*words)
    assert ended.code == 0
    assert ended.out
    assert ended.err == ""
