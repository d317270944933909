"""Long output on a terminal goes through a pager, and nothing else does."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cli.scripted import session

if TYPE_CHECKING:
    from pathlib import Path

    from cli.scripted import ScriptedDaemon

ROWS = 10


class Seen(NamedTuple):
    code: int
    screen: str
    paged: str | None


def look(
    daemon: ScriptedDaemon,
    folder: Path,
    *words: str,
    pager: str | None = None,
    rows: int = ROWS,
) -> Seen:
    """Run `dshctl` at a terminal of ten rows; the pager keeps what it is given."""
    kept = folder / "paged"
    program = folder / "pager"
    program.write_text(f"#!/bin/sh\ncat > {kept}\n")
    program.chmod(0o700)
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 200, 0, 0))
    ended = subprocess.run(
        [sys.executable, "-m", "dsh_client.cli.main", "--socket", str(daemon.path), *words],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        timeout=60,
        env={**os.environ, "DSHD_PAGER": str(program) if pager is None else pager},
    )
    os.close(terminal)
    screen = b""
    try:
        while piece := os.read(master, 65536):
            screen += piece
    except OSError:
        pass
    os.close(master)
    return Seen(ended.returncode, screen.decode(), kept.read_text() if kept.exists() else None)


@pytest.fixture
def many(daemon: ScriptedDaemon) -> ScriptedDaemon:
    found = [session(f"s{number:03}") for number in range(20)]
    answer = {"sessions": found, "nextCursor": None, "total": 20}
    daemon.answers["session.list"] = lambda _: answer
    return daemon


def test_more_than_a_screen_goes_through_the_pager_and_notes_come_after(
    many: ScriptedDaemon, tmp_path: Path
) -> None:
    seen = look(many, tmp_path, "list", "--all")
    assert seen.code == 0
    assert seen.paged is not None
    assert seen.paged.count("\n") == 21
    assert "s019" not in seen.screen
    assert seen.screen.startswith("20 of 20 sessions")


def test_what_fits_or_is_for_programs_or_goes_on_by_itself_is_printed(
    many: ScriptedDaemon, tmp_path: Path
) -> None:
    for words in (
        ["list", "--all", "--no-pager"],
        ["--no-pager", "list", "--all"],
        ["-o", "jsonl", "list", "--all"],
    ):
        seen = look(many, tmp_path, *words)
        assert (seen.code, seen.paged) == (0, None), words
        assert "s019" in seen.screen
    for pager in ("", "cat", "no-such-pager", "'"):
        assert "s019" in look(many, tmp_path, "list", "--all", pager=pager).screen
    assert look(many, tmp_path, "list", "--all", rows=0).paged is None  # nobody knows how many
    many.answers["session.list"] = lambda _: {"sessions": [session("few")], "nextCursor": None}
    seen = look(many, tmp_path, "list", "--all")
    assert seen.paged is None
    assert "few" in seen.screen


def test_a_reader_that_has_enough_is_no_error(many: ScriptedDaemon, tmp_path: Path) -> None:
    found = [session(f"s{number:05}", title="x" * 100) for number in range(3000)]
    many.answers["session.list"] = lambda _: {"sessions": found, "nextCursor": None}
    seen = look(many, tmp_path, "list", "--all", pager="head -n 1")
    assert seen.code == 0
    assert "Traceback" not in seen.screen
