"""Real agents' logs through the gate: what recorded agents do is what a client may append.

The table says which logs are refused and why; every other event of every other log passes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.errors import EventInvalidError
from dshd.sessions import rules
from dshd.sessions.fold import Fold
from support.folds import folded, state
from support.logs import read_log
from support.vectors import vectors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Events = list[dict[str, Any]]

REFUSED = {
    # recorded streams without any turn around them
    "headless-ralph-loop-1.jsonl": "no-open-turn",
    "headless-ralph-loop-2.jsonl": "no-open-turn",
}


def is_ours(event: dict[str, Any]) -> bool:
    """Whether the daemon writes such an event, and no client."""
    data = event["data"]
    if event["type"] == "tool/result" and event["surfaceOp"] == "append":
        return str(data["message"]["id"]).startswith("interrupted-tool-result-")
    if event["type"] == "turn/end":
        return bool(data["reason"]["kind"] == "interrupted")
    return bool(event["type"] == "session/end-seed")


def logs() -> Iterator[tuple[str, Path, int | None]]:
    """Yield every log that a write handle can be opened on."""
    folder = vectors()
    for log in json.loads((folder / "logs" / "manifest.json").read_bytes())["logs"]:
        if log["verdict"] == "loads" and not log["needs_legacy_import"]:
            yield log["file"], folder / "logs" / log["file"], log["truncate_to"]
    for case in sorted(path for path in (folder / "zstd").iterdir() if path.is_dir()):
        expected = json.loads((case / "expected.json").read_bytes())
        if not expected["needs_legacy_import"]:
            (path,) = case.glob("session.*")
            yield case.name, path, None


def batches(events: Events, size: int) -> Iterator[Events]:
    """Yield the events in calls of at most `size`, the daemon's own apart."""
    batch: Events = []
    for event in events:
        if is_ours(event) or len(batch) == size:
            yield batch
            batch = []
        if is_ours(event):
            yield [event]
        else:
            batch.append(event)
    yield batch


def play(events: Events, size: int) -> Fold:
    fold = Fold()
    for batch in batches(events, size):
        if batch and is_ours(batch[0]):
            with pytest.raises(EventInvalidError):
                rules.admit(fold, batch, 0)
            fold.apply(batch[0])
            continue
        assert rules.admit(fold, batch, 0) == batch
    return fold


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_what_recorded_agents_wrote_is_admitted_as_they_wrote_it(size: int) -> None:
    refused: dict[str, str] = {}
    judged = 0
    for name, path, truncate_to in logs():
        events = read_log(path, truncate_to)
        judged += 1
        try:
            fold = play(events, size)
        except EventInvalidError as error:
            refused[name] = error.facts["rule"]
        else:
            assert state(fold) == state(folded(events)), name
    assert refused == REFUSED
    assert judged > 130
