"""`dshctl` as a process: what it imports, how long it takes, and odd streams and locales."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import IO, TYPE_CHECKING

import pytest

from cli.scripted import session
from dsh_client.cli.verbs import VERBS

if TYPE_CHECKING:
    from cli.scripted import ScriptedDaemon

PROGRAM = [sys.executable, "-m", "dsh_client.cli.main"]
FORBIDDEN = {
    "anyio",
    "asyncio",
    "click",
    "concurrent.futures",
    "dataclasses",
    "dsh_client.connection",
    "dsh_protocol.method",
    "inspect",
    "jsonrpcserver",
    "jsonschema",
    "ipaddress",
    "logging",
    "msgspec",
    "pathlib",
    "platform",
    "rich",
    "shutil",
    "sniffio",
    "structlog",
    "sqlite3",
    "subprocess",
    "tempfile",
    "trio",
    "typing_extensions",
    "urllib.parse",
    "uuid",
    "zstandard",
}
SHOW_MODULES = """
import json, sys
from dsh_client.cli.main import main
code = main(sys.argv[1:])
json.dump(sorted(sys.modules), sys.stderr)
sys.exit(code)
"""


def fill(daemon: ScriptedDaemon, count: int) -> None:
    found = [session(f"s{number:04}", title="会议 \x1b[31m \ud800") for number in range(count)]
    daemon.answers["session.list"] = lambda _: {"sessions": found, "nextCursor": None}


def run(
    daemon: ScriptedDaemon,
    *words: str,
    stdout: int | IO[bytes] = subprocess.PIPE,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*PROGRAM, "--socket", str(daemon.path), *words],
        check=False,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=env,
        timeout=60,
    )


def test_list_loads_only_what_it_needs(daemon: ScriptedDaemon) -> None:
    fill(daemon, 3)
    ended = subprocess.run(
        [sys.executable, "-c", SHOW_MODULES, "--socket", str(daemon.path), "list"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    loaded = set(json.loads(ended.stderr))
    assert loaded & FORBIDDEN == set()
    verbs = {f"dsh_client.cli.commands.{verb.name}" for verb in VERBS}
    assert loaded & verbs == {"dsh_client.cli.commands.list"}


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1", ""])
@pytest.mark.parametrize("encoding", [None, "ascii", "latin-1"])
def test_a_poor_locale_costs_no_traceback(
    daemon: ScriptedDaemon, locale: str, encoding: str | None
) -> None:
    fill(daemon, 1)
    env = {**os.environ, "LC_ALL": locale}
    if encoding is not None:
        env["PYTHONIOENCODING"] = encoding
    table = run(daemon, "list", env=env)
    assert table.returncode == 0
    assert table.stderr == b""
    assert b"\x1b" not in table.stdout
    document = run(daemon, "-o", "json", "list", env=env)
    assert json.loads(document.stdout.decode())["sessions"][0]["title"] == "会议 \x1b[31m \ud800"


def test_a_reader_that_goes_away_is_no_error(daemon: ScriptedDaemon) -> None:
    fill(daemon, 5000)
    reader, writer = os.pipe()
    os.close(reader)
    ended = run(daemon, "list", stdout=writer)
    os.close(writer)
    assert ended.returncode == 141
    assert ended.stderr == b""


WORDS = (
    "-o json list",
    "list",
    "rpc session.list",
    "completion zsh",
    "--help",
    "list -h",
    "-V",
)


@pytest.mark.parametrize("words", WORDS)
def test_output_that_is_lost_is_told_and_a_failure(daemon: ScriptedDaemon, words: str) -> None:
    fill(daemon, 1)
    with open("/dev/full", "wb") as full:  # noqa: PTH123  # a device
        ended = run(daemon, *words.split(" "), stdout=full)
    assert ended.returncode == 1
    assert ended.stderr == (b"dshctl: cannot write to standard output: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_cost_no_traceback_and_a_closed_output_is_lost(
    daemon: ScriptedDaemon, closed: str
) -> None:
    fill(daemon, 1)
    line = f"exec {sys.executable} -m dsh_client.cli.main --socket {daemon.path}"
    for words in ("list", "-o json list", "rpc session.list"):
        ended = subprocess.run(
            ["/bin/sh", "-c", f"{line} {words} {closed}"],
            check=False,
            capture_output=True,
            timeout=60,
        )
        lost = ">&-" in closed.split(" ")
        assert ended.returncode == (1 if lost else 0)
        assert b"Traceback" not in ended.stderr + ended.stdout
        assert (b"standard output: Bad file" in ended.stderr) == (closed == ">&-")
        assert bool(ended.stdout) != lost


@pytest.mark.parametrize(("columns", "widest"), [("1", 1), ("30", 30), ("200", 200), ("junk", 80)])
def test_a_terminal_gets_a_table_of_its_width(
    daemon: ScriptedDaemon, columns: str, widest: int
) -> None:
    fill(daemon, 2)
    master, terminal = pty.openpty()
    env = {**os.environ, "COLUMNS": columns, "LC_ALL": "C.UTF-8"}
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    ended = run(daemon, "list", stdout=terminal, env=env)
    os.close(terminal)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert ended.returncode == 0
    assert ended.stderr == b""
    assert "\x1b" not in shown
    lines = shown.split("\r\n")
    assert len(lines) == 4
    assert all(len(line) <= widest for line in lines)
