"""The labels, `labels.json` beside a log: the title a person gave, and whether it is archived or pinned.

The rule that holds here: the log and its header know nothing of them, and labels that say nothing are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dshd.storage.records import read_record, write_record
from dshd.storage.store import Labels

if TYPE_CHECKING:
    from dshd.storage.files import Disk

LABELS = "labels.json"


def read_labels(disk: Disk, directory: int) -> Labels | None:
    """Return the labels in an open session directory; None where there are none that can be read."""
    found = read_record(disk, directory, LABELS, Labels)
    return None if found == Labels() else found


def write_labels(disk: Disk, directory: int, labels: Labels) -> None:
    """Replace the labels, durable on return. Raises OSError."""
    write_record(disk, directory, LABELS, labels)
