"""`dshctl completion`: the scripts, run by the shells that they are for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cli.scripted import session
from dsh_client.cli.verbs import VERBS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cli.conftest import Ended
    from cli.scripted import ScriptedDaemon

    Dshctl = Callable[..., Ended]
    Complete = Callable[..., list[str]]

SHELLS = ("bash", "zsh", "fish")
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_dshctl
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { :; }
_files() { print FILES; }
compadd() { [[ $1 == -- ]] && shift; print -l -- ${(M)@:#${words[CURRENT]}*}; }
script=$1; shift
source $script
words=("$@"); CURRENT=$#
_dshctl
"""
FISH = 'source $argv[1]; complete -C "$argv[2..]"'


@pytest.fixture(params=SHELLS)
def complete(
    request: pytest.FixtureRequest, daemon: ScriptedDaemon, dshctl: Dshctl, tmp_path: Path
) -> Complete:
    """Return what a shell offers for the last of some words."""
    shell: str = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed; its script is only looked at")
    script = tmp_path / "completion"
    script.write_text(dshctl("completion", shell).out)
    program = tmp_path / "bin" / "dshctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dsh_client.cli.main "$@"\n')
    program.chmod(0o700)
    command = {
        "bash": ["bash", "--norc", "-c", BASH, "bash"],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh"],
        "fish": ["fish", "--no-config", "-c", FISH],
    }[shell]

    def run(*words: str) -> list[str]:
        typed = [" ".join(words)] if shell == "fish" else list(words)
        ended = subprocess.run(
            [*command, str(script), *typed],
            capture_output=True,
            check=False,
            timeout=60,
            cwd=tmp_path,
            env={
                **os.environ,
                "HOME": str(tmp_path),
                "PATH": f"{program.parent}:{os.environ['PATH']}",
                "DSHD_SOCKET": str(daemon.path),
            },
        )
        assert ended.stderr == b"", ended.stderr.decode()
        return [line.partition("\t")[0] for line in ended.stdout.decode().split("\n") if line]

    return run


def test_verbs_options_values_files_and_ids_are_completed(
    complete: Complete, daemon: ScriptedDaemon, tmp_path: Path
) -> None:
    found = [session("0198-a"), session("0198 b"), session("other")]
    daemon.answers["session.list"] = lambda _: {"sessions": found, "nextCursor": None}
    (tmp_path / "run.html").touch()
    assert set(complete("dshctl", "un")) == {"unarchive", "undelete", "unpin"}
    assert set(complete("dshctl", "--timeout", "3", "sta")) == {"stats", "status"}
    assert "--older-than" in complete("dshctl", "prune", "--o")
    assert complete("dshctl", "import", "--from", "cl") == ["claude-code"]
    assert set(complete("dshctl", "list", "-o", "js")) == {"json", "jsonl"}
    assert complete("dshctl", "completion", "fi") == ["fish"]
    ids = complete("dshctl", "show", "0198")
    assert ids[0].startswith("0198")
    assert {one.replace("\\", "").strip("'") for one in ids} == {"0198-a", "0198 b"}
    assert complete("dshctl", "tail", "@") == ["@last"]
    files = complete("dshctl", "export", "x", "--to", "run")
    assert files in (["run.html"], ["FILES"])


def test_no_daemon_costs_no_more_than_the_ids(complete: Complete, daemon: ScriptedDaemon) -> None:
    daemon.stop()
    assert complete("dshctl", "show", "@") == ["@last"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_and_option_is_in_the_script(dshctl: Dshctl, shell: str) -> None:
    script = dshctl("completion", shell).out
    for verb in VERBS:
        assert all(name in script for name in (verb.name, *verb.aliases))
    options = ("--no-redact", "--takeover", "--older-than", "--from", "--as", "--tree")
    stems = [name[2:] if shell == "fish" else name for name in options]
    assert all(stem in script for stem in stems)


def test_a_shell_that_nobody_knows_is_refused(dshctl: Dshctl) -> None:
    assert dshctl("completion", "tcsh").code == 2
