"""What a fork costs where nothing is kept beside its source: the history is gone through once, and never again."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import trio

from dsh_protocol.events import Header
from dsh_protocol.limits import Limits
from dshd.metrics import Metrics
from dshd.sessions.catalogue import Catalogue
from dshd.sessions.forks import fork
from dshd.sessions.registry import Registry
from dshd.storage.jsonl import forking, frames, scan
from dshd.storage.jsonl.store import open_store
from support import events
from support.events import stored

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.storage.jsonl.frames import Frame

TURNS = 60
FEW = 16
"""Frames at an end that may be looked at again: the last event, the last end of a turn, the one that is cut."""


def lay(root: Path) -> int:
    """A source of some MB, a frame for each turn, with nothing kept beside it."""
    length = 0
    with closing(open_store(root).create(Header(id="source", created_at=1))) as handle:
        for number in range(1, TURNS + 1):
            noise = [events.user(os.urandom(9000).hex()) for _ in range(5)]
            turn = [events.turn_start(number), events.step_start(1, number), *noise]
            turn += [events.step_end(1, number), events.turn_end(number)]
            handle.append(stored(turn, first_seq=length))
            length += len(turn)
    (root / "_no-cwd" / "source" / "derived.bin").unlink(missing_ok=True)
    return length


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the frame at each offset was decoded."""
    found: Counter[int] = Counter()
    real = frames.decode_frame

    def decode(frame: Frame) -> bytes:
        found[frame.offset] += 1
        return real(frame)

    monkeypatch.setattr(scan, "decode_frame", decode)
    monkeypatch.setattr(forking, "decode_frame", decode)
    return found


@pytest.mark.parametrize("turns", [None, TURNS, TURNS // 2, 1])
async def test_a_source_without_a_derived_file_is_decoded_once_and_its_child_not_at_all(
    tmp_path: Path, decoded: Counter[int], turns: int | None
) -> None:
    length = lay(tmp_path)
    boundary = None if turns is None else length // TURNS * turns - 1
    async with trio.open_nursery() as nursery:
        registry = Registry(
            open_store(tmp_path),
            limits=Limits(),
            window=0.1,
            metrics=Metrics(),
            nursery=nursery,
        )
        child, fold = await fork(registry, "source", boundary, "child")
        assert fold is not None
        assert fold.turns == (turns or TURNS)
        assert sum(decoded.values()) <= (turns or TURNS) + FEW
        assert max(decoded.values()) <= FEW
        decoded.clear()
        view: dict[str, Any] = await Catalogue(registry).show_new(child, fold)
        assert view["nextSeq"] == fold.next_seq
        await registry.in_opener(_opened, registry, child)
        assert sum(decoded.values()) <= FEW
        nursery.cancel_scope.cancel()


def _opened(registry: Registry, session_id: str) -> None:
    registry.store.open(session_id, "write").close()
