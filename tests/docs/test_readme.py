"""The README is run, not believed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol import errors
from support.daemon import open_daemon

if TYPE_CHECKING:
    from dsh_client.shapes import ToolCall

TREE = Path(__file__).resolve().parents[2]
README = (TREE / "README.md").read_text("utf-8")


def test_the_example_is_a_working_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, example = re.findall(
        r"```python\n(.*?)```", README, re.DOTALL
    )  # the first is run where its framework is
    answers: list[Any] = [
        [{"type": "tool-call", "id": "c1", "name": "bash", "arguments": '{"command":"make"}'}],
        "They pass.",
    ]
    ran: list[tuple[str, str | None]] = []
    seen: list[int] = []

    def ask_the_model(messages: list[dict[str, Any]]) -> Any:
        seen.append(len(messages))
        return answers.pop(0)

    def run_the_tool(call: ToolCall, key: str | None) -> str:
        ran.append((call.name, key))
        return "ok"

    with open_daemon(tmp_path) as daemon:
        monkeypatch.setenv("DSHD_SOCKET", str(daemon.socket))
        agent = {"ask_the_model": ask_the_model, "run_the_tool": run_the_tool}
        exec(compile(example, "README.md", "exec"), agent)  # noqa: S102  # the point: the text itself runs
        (session,) = daemon.call("session.list")["sessions"]
    assert (session["id"], session["state"], session["turns"]) == ("fix-the-parser", "idle", 1)
    assert [name for name, _ in ran] == ["bash"]
    assert re.fullmatch(r"dshd1-[0-9a-f]{32}", ran[0][1] or "")
    assert seen == [1, 3]


def test_every_exit_code_is_named() -> None:
    codes = {str(value) for name, value in vars(errors).items() if name.startswith("EXIT_")}
    line = re.search(r"Exit codes: (.*?)\n\n", README, re.DOTALL)
    assert line is not None
    assert set(re.findall(r"(?:^|· )(\d+) ", line.group(1).replace("\n", " "))) == codes


def test_every_make_target_that_is_mentioned_exists() -> None:
    rules = set(re.findall(r"^([a-z-]+):", (TREE / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md", "systemd/README.md"):
        text = (TREE / page).read_text("utf-8")
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
            assert target in rules, (page, target)


@pytest.mark.parametrize("program", [["dshd.main"], ["dsh_client.cli.main"]])
def test_every_command_that_is_mentioned_exists(program: list[str]) -> None:
    name = "dshd" if program == ["dshd.main"] else "dshctl"
    shown = subprocess.run(
        [sys.executable, "-m", *program, "--help"], capture_output=True, text=True, check=True
    )
    for verb in set(re.findall(rf"^{name} ([a-z]+)", README, re.MULTILINE)):
        assert verb in shown.stdout, verb


def test_every_link_leads_somewhere() -> None:
    for page in [
        *TREE.glob("*.md"),
        *(p for d in ("daemon", "protocol", "systemd") for p in (TREE / d).rglob("*.md")),
    ]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), (page.name, target)
