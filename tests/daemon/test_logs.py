from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from socket import AF_UNIX, SOCK_DGRAM, socket
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "sk-canary-4242"
PRELUDE = """
import structlog, logging
from dshd.logs import configure_logs
configure_logs()
log = structlog.get_logger()
"""


def logged(body: str, stderr: Any = subprocess.PIPE, **env: str) -> str:
    """Run a few lines with a configured log in a process of their own; return its standard error."""
    script = PRELUDE + body
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, **env},
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr or ""


def test_an_event_is_one_json_line_time_and_level_first() -> None:
    line = logged("log.info('session.opened', session='s-1', next_seq=3)")
    assert line.count("\n") == 1
    event = json.loads(line)
    assert list(event)[:3] == ["time", "level", "event"]
    assert event["event"] == "session.opened"
    assert event["next_seq"] == 3


def test_text_with_line_ends_and_lone_surrogates_stays_on_one_line() -> None:
    line = logged(r"log.warning('odd', session='a\nb\u2028\ud800')")
    assert line.count("\n") == 1
    assert json.loads(line)["session"] == "a\nb\u2028\\ud800"


@pytest.mark.parametrize(
    "body",
    [
        f"log.info('x', data={{'text': '{CANARY}'}})",
        f"log.info('x', events=['{CANARY}'])",
        f"log.info('x', raw=b'{CANARY}')",
        f"log.info('x', text='.' * 500 + '{CANARY}')",
        f"try: int('{CANARY}')\nexcept ValueError: log.exception('x')",
        f"try: {{}}['{CANARY}']\nexcept KeyError as e: log.error('x', exc_info=e)",
        (
            f"try: raise ExceptionGroup('{CANARY}', [ValueError('{CANARY}')])\n"
            "except* ValueError as e: log.error('x', exc_info=e)"
        ),
        f"logging.getLogger('lib').error('%s', '{CANARY}')",
        f"try: int('{CANARY}')\nexcept ValueError: logging.getLogger('lib').exception('{CANARY}')",
        f"logging.getLogger('jsonrpcserver.dispatcher').error('{CANARY}')",
    ],
)
def test_content_does_not_reach_the_log_whatever_the_call_site_passes(body: str) -> None:
    assert CANARY not in logged(body)


def test_an_exception_is_told_by_type_and_place_and_an_os_error_by_its_reason_too() -> None:
    event = json.loads(logged("try: open('/nowhere')\nexcept OSError: log.exception('x')"))
    assert event["error"] == "FileNotFoundError"
    assert "No such file" in event["reason"]
    assert "<module>" in event["stack"]


def test_priorities_are_written_for_the_journal_and_for_nothing_else(tmp_path: Path) -> None:
    body = "log.error('x'); log.info('y')"
    assert logged(body, JOURNAL_STREAM="1:1").startswith("{")
    with (tmp_path / "journal").open("w") as journal:
        found = os.fstat(journal.fileno())
        logged(body, journal, JOURNAL_STREAM=f"{found.st_dev}:{found.st_ino}")
    lines = (tmp_path / "journal").read_text().split("\n")
    assert [line[:4] for line in lines] == ["<3>{", "<6>{", ""]


def test_the_journal_gets_each_value_as_a_field_and_a_line_where_it_is_away(
    tmp_path: Path,
) -> None:
    body = (
        "from dshd.journal import Journal\n"
        f"configure_logs(journal=Journal({str(tmp_path / 's')!r}))\n"
        f"log.warning('session.flush_failed', session='a\\nb', n=3, data=['{CANARY}'])"
    )
    with (tmp_path / "stderr").open("w") as stderr, socket(AF_UNIX, SOCK_DGRAM) as journal:
        found = os.fstat(stderr.fileno())
        stream = f"{found.st_dev}:{found.st_ino}"
        logged(body, stderr, JOURNAL_STREAM=stream)
        line = (tmp_path / "stderr").read_text()
        assert line.startswith('<4>{"time"'), "nobody listens: the line, with its priority"
        journal.bind(str(tmp_path / "s"))
        logged(body, stderr, JOURNAL_STREAM=stream)
        sent = journal.recv(65536)
        assert (tmp_path / "stderr").read_text() == line, "not twice"
        journal.setblocking(False)  # noqa: FBT003  # the standard library's signature
        logged(body, JOURNAL_STREAM=stream)
        with pytest.raises(BlockingIOError):
            journal.recv(1)
    assert b"PRIORITY=4\n" in sent
    assert b"SYSLOG_IDENTIFIER=dshd\n" in sent
    assert b"DSHD_EVENT=session.flush_failed\n" in sent
    assert b"DSHD_SESSION\n" + (3).to_bytes(8, "little") + b"a\nb\n" in sent
    assert b"DSHD_N=3\n" in sent
    assert sent.startswith(b"MESSAGE=session.flush_failed session=a\\nb n=3")
    assert CANARY.encode() not in sent


def test_on_a_terminal_a_person_reads_lines_that_do_not_steer_it() -> None:
    leader, follower = pty.openpty()
    body = r"log.warning('session.flush_failed', session='a\x1b[2J\n', kind='NO_SPACE', n=1.5, why='a b')"
    try:
        logged(body, follower)
        line = os.read(leader, 4096).decode()
    finally:
        os.close(leader)
        os.close(follower)
    assert re.match(r"[0-9:.]{12} warning session\.flush_failed ", line)
    assert line.endswith(' session=a\\x1b[2J\\n kind=NO_SPACE n=1.5 why="a b"\r\n')


def test_a_log_whose_reader_is_gone_raises_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        logged("log.error('x')", write)
    finally:
        os.close(write)
