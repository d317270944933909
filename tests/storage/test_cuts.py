"""The recorded cuts of whole logs: where the tail begins, and how many events stand before it."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import FormatUnsupportedError, LogCorruptError
from dshd.storage.jsonl.store import open_store
from storage.failing import HastyDisk
from support.vectors import vectors

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.storage.jsonl.store import JsonlStore

AT_MOST = 60
"""Of each table's cuts, evenly chosen: all of them take minutes."""


def test_a_recorded_cut_is_repaired_where_it_was_recorded(tmp_path: Path) -> None:
    folder = vectors() / "torn"
    for path in sorted(folder.glob("*.json")):
        table = json.loads(path.read_bytes())
        base = next(p for p in (folder / table["base"], vectors() / table["base"]) if p.exists())
        whole = base.read_bytes()
        log = tmp_path / path.stem / table["path"]
        log.parent.mkdir(parents=True)
        store = open_store(tmp_path / path.stem, disk=HastyDisk())
        cuts = table["cuts"]
        for row in cuts[:: len(cuts) // AT_MOST + 1]:
            cut = dict(zip(table["columns"], row, strict=True))
            log.write_bytes(whole[: cut["cut_at"]])
            found = opened(store, table["session_id"])
            if found != "retired":  # those are refused for writing, as they stand
                assert found == recorded(cut), (path.name, cut)
                assert found == "corrupt" or log.stat().st_size == found[1]


def recorded(cut: dict[str, Any]) -> Any:
    """What is expected of us: a torn frame is set aside whole, so what others salvage of it does not count."""
    if cut["load"] != "ok":
        return "corrupt"
    end = cut["cut_at"] if cut["truncate_to"] is None else cut["truncate_to"]
    return (cut["events_kept"] - cut["recovered_count"], end)


def opened(store: JsonlStore, session_id: str) -> Any:
    try:
        with closing(store.open(session_id, "write")) as handle:
            return (handle.next_seq, handle.size_bytes)
    except FormatUnsupportedError:
        return "retired"
    except LogCorruptError:
        return "corrupt"
