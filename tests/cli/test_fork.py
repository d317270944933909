"""`dshctl fork` against a real daemon: a second way on, and the first one untouched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.looking import OPEN, Dshctl, place_logs
from support.daemon import DaemonProcess, open_daemon
from support.verdicts import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

PARENT = "acp-multi-turn"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path_factory.mktemp("fork")) as running:
        place_logs(running, (PARENT, OPEN))
        yield running


@pytest.fixture
def dshctl(daemon: DaemonProcess, capsysbinary: pytest.CaptureFixture[bytes]) -> Dshctl:
    return Dshctl(daemon, capsysbinary)


def test_a_fork_begins_as_the_other_and_tells_its_name(
    dshctl: Dshctl, daemon: DaemonProcess
) -> None:
    with daemon.connect() as reader:
        before = read_all(reader, PARENT)
        assert dshctl.text("fork", "acp-mul", "--as", "second") == (
            f"second is a fork of {PARENT} with {len(before) + 1} events\n"
        )
        assert dshctl.err == f"to see where they part later: dshctl diff {PARENT} second\n"
        assert read_all(reader, "second")[: len(before)] == before
        assert read_all(reader, PARENT) == before


def test_a_fork_at_an_event_has_what_is_up_to_there(dshctl: Dshctl, daemon: DaemonProcess) -> None:
    with daemon.connect() as reader:
        events = read_all(reader, PARENT)
        end = next(event["seq"] for event in events if event["type"] == "turn/end")
        document = dshctl.document("fork", PARENT, "--at", str(end))
        session = document["session"]
        assert set(document) == {"session"}
        assert session["header"]["parentSession"] == PARENT
        assert (session["header"]["seedLength"], session["turns"]) == (end + 1, 1)
        assert read_all(reader, session["id"])[: end + 1] == events[: end + 1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nothing"], 4, "try: dshctl list --all"),
        ([PARENT, "--at", "3"], 1, "seq 3 lies inside turn 1; fork at the end of a turn"),
        ([OPEN], 1, "[OPEN_TURN]"),
        ([PARENT, "--at", "9999"], 2, "seq 9999 is no boundary in it"),
        ([PARENT, "--as", OPEN], 5, f"try: dshctl show {OPEN}"),
        ([PARENT, "--at", "-1"], 2, "try: dshctl fork --help"),
    ],
)
def test_what_cannot_be_forked_says_why(
    dshctl: Dshctl, words: list[str], code: int, said: str
) -> None:
    assert dshctl("fork", *words) == code
    assert said in dshctl.err
