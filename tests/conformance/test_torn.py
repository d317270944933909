"""Whole files cut at every byte: what was acknowledged is kept, what was cut off is kept beside the log.

Recorded is what the format's own program kept. It salvages rows of an unfinished frame; ours sets the frame aside
whole, so that there the events before the frame are due (differences.toml, `torn`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol.defects import retired_shape
from dsh_protocol.errors import DshdError, FormatUnsupportedError
from dshd.sessions.closers import closers
from dshd.storage.jsonl.store import JsonlStore, open_store
from storage.failing import HastyDisk
from support.folds import folded
from support.logs import read_log
from support.vectors import vectors, vectors_present

if TYPE_CHECKING:
    from pathlib import Path

QUARANTINE = "torn-*.bin"
NOTHING_GOOD = {"no-header-frame", "no-header-line"}


@dataclass(frozen=True)
class Cut:
    """One row of a table: what was recorded of the first `at` bytes."""

    at: int
    load: str
    kept: int | None
    truncate_to: int | None
    salvaged: int | None
    closers: int | None
    listed: int


def tables() -> list[str]:
    if not vectors_present():
        return []
    return sorted(path.stem for path in (vectors() / "torn").glob("*.json"))


class Torn:
    """A log that is cut again and again, at its place under a root."""

    def __init__(self, name: str, root: Path) -> None:
        folder = vectors() / "torn"
        facts = json.loads((folder / f"{name}.json").read_bytes())
        source: Path = folder / facts["base"]
        self.cuts = [Cut(*row) for row in facts["cuts"]]
        self.zstd = facts["encoding"] == "zstd"
        self.frame_starts: list[int] = facts.get("frame_starts", [])
        self.session_id: str = facts["session_id"]
        self.events = read_log(source)
        self.content = source.read_bytes()
        self.log = root / facts["path"]
        self.log.parent.mkdir(parents=True)
        self.store = open_store(root, disk=HastyDisk())

    def cut_at(self, at: int) -> bytes:
        """Leave the first `at` bytes and nothing else in the session's directory."""
        for path in self.log.parent.iterdir():
            path.unlink()
        self.log.write_bytes(self.content[:at])
        return self.content[:at]

    def set_aside(self) -> bytes:
        """Return what was cut off and kept."""
        return b"".join(path.read_bytes() for path in self.log.parent.glob(QUARANTINE))


@pytest.mark.parametrize("name", tables())
def test_a_log_cut_anywhere_keeps_what_was_acknowledged(tmp_path: Path, name: str) -> None:
    torn = Torn(name, tmp_path)
    for cut in torn.cuts:
        content = torn.cut_at(cut.at)
        if cut.load != "ok":
            assert cut.load.rsplit(":", 1)[1] in NOTHING_GOOD
            check_refused(torn, content)
            continue
        check_opens(torn, cut, content)


def check_refused(torn: Torn, content: bytes) -> None:
    """Without a header there is nothing to open; the bytes stay, and the list shows where."""
    with pytest.raises(DshdError) as caught:
        torn.store.open(torn.session_id, "write")
    assert caught.value.kind == "LOG_CORRUPT"
    assert torn.log.read_bytes() == content
    assert torn.set_aside() == b""
    (shown,) = torn.store.list()
    assert shown.problem is not None


def check_opens(torn: Torn, cut: Cut, content: bytes) -> None:
    assert cut.kept is not None
    due, end = cut.kept, cut.truncate_to if cut.truncate_to is not None else cut.at
    if cut.truncate_to is not None and torn.zstd:
        assert end == max(start for start in torn.frame_starts if start <= cut.at)
        due -= cut.salvaged or 0
    seen = read(torn.store, torn.session_id)
    assert seen == torn.events[:due]
    assert torn.log.read_bytes() == content, "reading has changed the log"
    if any(map(retired_shape, seen)):
        with pytest.raises(FormatUnsupportedError):
            torn.store.open(torn.session_id, "write")
        assert torn.log.read_bytes() == content
        return
    handle = torn.store.open(torn.session_id, "write")
    events = list(handle.read())
    handle.close()
    assert events == seen
    assert torn.log.read_bytes() == content[:end]
    assert torn.set_aside() == content[end:]
    if not cut.salvaged:
        assert len(closers(folded(events))) == cut.closers
    before = digest(torn)
    torn.store.open(torn.session_id, "write").close()
    assert digest(torn) == before, "opening a mended log once more has changed it"
    (shown,) = torn.store.list()
    assert shown.problem is None
    assert cut.listed == 1


def read(store: JsonlStore, session_id: str) -> list[Any]:
    handle = store.open(session_id, "read")
    try:
        return list(handle.read())
    finally:
        handle.close()


def digest(torn: Torn) -> dict[str, str]:
    """Return what is in the session's directory."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in torn.log.parent.iterdir()
    }


def test_every_table_is_there() -> None:
    vectors()
    assert len(tables()) == 18
