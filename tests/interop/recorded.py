"""The recorded logs of the golden vectors, each with its place below a root and what is recorded of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.vectors import vectors, vectors_present

if TYPE_CHECKING:
    from pathlib import Path

LOGS_AT = "--fixture--/s/session.jsonl"


@dataclass(frozen=True)
class Recorded:
    """One log.

    Attributes:
        source: The file.
        place: Below a root.
        session_id: In its header.
        facts: What the manifest, or its `expected.json`, says of it.
    """

    name: str
    source: Path
    place: str
    session_id: str
    facts: dict[str, Any]

    @property
    def is_legacy(self) -> bool:
        """Whether old shapes would have to be imported."""
        return bool(self.facts["needs_legacy_import"])

    @property
    def loads(self) -> bool:
        """Whether the format's own program loads it."""
        return bool(self.facts.get("verdict", "loads") == "loads")

    @property
    def truncate_to(self) -> int | None:
        """Where its torn tail begins."""
        found: int | None = self.facts.get("truncate_to")
        return found

    def put(self, root: Path) -> Path:
        """Copy it to its place below a root."""
        place = root / self.place
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.source, place)
        return place


def recorded_logs() -> list[Recorded]:
    """Return all of them, also those that do not load; none where the vectors are absent."""
    if not vectors_present():
        return []
    folder = vectors()
    manifest = json.loads((folder / "logs" / "manifest.json").read_bytes())
    found = [
        Recorded(log["file"], folder / "logs" / log["file"], LOGS_AT, manifest["session_id"], log)
        for log in manifest["logs"]
    ]
    for expected in sorted((folder / "zstd").glob("*/expected.json")):
        facts = json.loads(expected.read_bytes())
        source = expected.parent / facts["file"]
        found.append(Recorded(facts["name"], source, facts["path"], facts["session_id"], facts))
    return found
