"""The recipes for other places than systemd, as the page has them: they name what exists."""

from __future__ import annotations

import json
import plistlib
import re
import shlex
from pathlib import Path

import pytest

from dsh_protocol import paths
from dshd.main import main

PAGE = (Path(__file__).resolve().parents[2] / "systemd/README.md").read_text("utf-8")


def block(kind: str) -> str:
    return PAGE.partition(f"```{kind}\n")[2].partition("```")[0]


def starts(words: list[str]) -> bool:
    """Whether `dshd` takes these words."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    return ended.value.code == 0


def test_the_launch_agent_is_a_property_list_that_starts_the_daemon() -> None:
    found = plistlib.loads(block("xml").encode())
    shell, flag, line = found["ProgramArguments"]  # launchd expands nothing by itself
    assert (shell, flag) == ("/bin/sh", "-c")
    given, program, *words = shlex.split(line.partition("2>>")[0])
    assert (given, program) == ("exec", "$HOME/.local/bin/dshd")
    assert starts(words)
    assert found["Umask"] == 0o077
    assert found["KeepAlive"] == {"SuccessfulExit": False}


def test_the_container_runs_the_daemon_under_variables_that_it_reads() -> None:
    text = block("dockerfile")
    assert starts(json.loads(text.partition("\nCMD ")[2])[1:])
    named = set(re.findall(r"\b(DSHD_[A-Z_]+)=", text))
    assert named == {"DSHD_STATE_DIR", "DSHD_SOCKET"}
    given = dict(re.findall(r"\b(DSHD_[A-Z_]+)=(\S+)", text))
    assert paths.state_dir(given) == "/var/lib/dshd"
    assert paths.socket_path(given) == "/run/dshd/dshd.sock"
    for folder in json.loads(text.partition("\nVOLUME ")[2].partition("\n")[0]):
        assert folder in text.partition("install -d -m 700")[2].partition("\n")[0]


def test_drop_ins_and_flags_of_the_page_are_taken() -> None:
    for line in re.findall(r"dshd (serve(?: --[a-z-]+(?: [0-9./]+)?)*)", PAGE):
        assert starts(line.split())
    assert "loginctl enable-linger" in PAGE
    assert "dshd check-config" in PAGE
