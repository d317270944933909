"""What cannot be read can be deleted and brought back: neither looks into the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dshd.storage.jsonl.store import open_store
from storage.samples import made

if TYPE_CHECKING:
    from pathlib import Path

CONTENTS = {
    "nothing": b"",
    "garbage": b"garbage" * 100,
    "another version": b'{"type":"session","version":9,"id":"s1"}\n',
    "zeros": bytes(5000),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=list(CONTENTS))
def test_a_damaged_session_is_deleted_and_comes_back_as_it_was(
    tmp_path: Path, content: bytes
) -> None:
    log = made(tmp_path, 3, "none")
    log.write_bytes(content)
    store = open_store(tmp_path)
    (before,) = store.list()
    assert before.problem is not None
    store.delete("s1")
    assert list(store.list()) == []
    assert [found.session_id for found in store.list_deleted()] == ["s1"]
    store.undelete("s1")
    (after,) = store.list()
    assert (after.session_id, after.problem) == ("s1", before.problem)
    assert log.read_bytes() == content
