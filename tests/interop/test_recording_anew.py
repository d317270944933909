"""Recorded sessions lived through once more: the same events by way of the daemon give the same log.

The table beside this file says for every recorded log that it is admitted, or which rule refuses it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from interop.player import (
    Player,
    RefusedError,
    header_text,
    is_of_the_daemon,
    without_what_the_daemon_says,
)
from interop.recorded import Recorded, recorded_logs
from support.canonical import canonical, sha256
from support.logs import expand_row, pack_rows, read_frames, read_log
from support.vectors import vectors

if TYPE_CHECKING:
    from support.daemon import DaemonProcess
    from support.rpc import Connection

TABLE = Path(__file__).parent / "admitted.json"
LOGS = [log for log in recorded_logs() if log.loads and not log.is_legacy]
ADMITTED = "admitted"
FILE = "*/*/session.jsonl.zstd"


def table() -> dict[str, str]:
    verdicts: dict[str, str] = json.loads(TABLE.read_bytes())
    return verdicts


def test_the_table_names_every_log() -> None:
    vectors()
    assert list(table()) == [log.name for log in LOGS]


@pytest.mark.parametrize("log", LOGS, ids=[log.name for log in LOGS])
def test_a_recorded_log_is_recorded_anew(daemon: DaemonProcess, log: Recorded) -> None:
    events = read_log(log.source, log.truncate_to)
    older = set(daemon.root.glob(FILE))
    of_its_own = log.session_id if log.session_id != "s" else log.name
    player = Player(daemon, log, of_its_own)
    try:
        player.play(events)
    except RefusedError as error:
        verdict = error.rule
    else:
        verdict = ADMITTED
    assert verdict == table()[log.name]
    if verdict == ADMITTED:
        (path,) = set(daemon.root.glob(FILE)) - older
        check_file(path, log, player, events)
        check_reading(daemon, log, player, events)


def check_file(path: Path, log: Recorded, player: Player, events: list[dict[str, Any]]) -> None:
    """Each frame holds what was sent up to a wait for the disk, packed by the rules, byte for byte."""
    header, *frames = read_frames(path)
    wanted = {**log.facts["header"], "id": player.session_id}
    assert header_text(json.loads(header)) == header_text(wanted)
    decoded = [
        [event for line in frame.split(b"\n")[:-1] for event in expand_row(json.loads(line))]
        for frame in frames
    ]
    assert [len(batch) for batch in decoded] == player.batches
    for frame, batch in zip(frames, decoded, strict=True):
        rows = "".join(canonical(row) + "\n" for row in pack_rows(batch))
        assert frame == rows.encode()
    stored = [event for batch in decoded for event in batch]
    assert same_log(stored, events)


def check_reading(
    daemon: DaemonProcess, log: Recorded, player: Player, events: list[dict[str, Any]]
) -> None:
    with daemon.connect() as connection:
        found = read_whole(connection, player.session_id)
    assert same_log(found, events)
    if not any(is_of_the_daemon(event) for event in found):
        assert sha256(found) == log.facts["stored_events_sha256"]


def read_whole(connection: Connection, session_id: str) -> list[dict[str, Any]]:
    """Return every event of a session, in pages as large as the daemon gives."""
    found: list[dict[str, Any]] = []
    while True:
        page = connection.call("session.read", id=session_id, offset=len(found))
        found += page["events"]
        if page["end"]:
            return found


def same_log(found: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> bool:
    """Whether both are the same, an end-seed at the end aside: one is written with the next event only."""
    pair = [without_what_the_daemon_says(events) for events in (found, recorded)]
    texts = [json.dumps(events[:-1] if is_end_seed(events[-1:]) else events) for events in pair]
    return texts[0] == texts[1]


def is_end_seed(events: list[dict[str, Any]]) -> bool:
    return bool(events) and events[0]["type"] == "session/end-seed"
