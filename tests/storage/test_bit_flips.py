"""Every 64th bit of a log of 64 KiB is flipped, one at a time; `make bitflips` flips every one."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from crash.bitflips import ENCODINGS, REFUSED, Event, memory_log, sweep, swept, written
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from properties.mortal_disk import MortalDisk
from storage.failing import HastyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression
    from properties.mortal_disk import Tree


class Folder:
    """A folder on a real disk, as the sweep lays it out and looks at it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tree(self) -> Tree:
        paths = sorted(self._path.rglob("*"))
        return {
            str(path.relative_to(self._path)): None if path.is_dir() else path.read_bytes()
            for path in paths
        }

    def lay_out(self, tree: Tree) -> None:
        for path in self._path.iterdir():
            shutil.rmtree(path)
        for name, content in tree.items():
            path = self._path / name
            if content is None:
                path.mkdir(mode=0o700)
            else:
                path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("compression", ENCODINGS)
def test_a_flipped_bit_is_refused_or_costs_the_last_batch(compression: Compression) -> None:
    found = swept(compression, 64)
    assert found.flips > 8192
    assert not found.wrong, found.wrong[:10]
    assert found.outcomes["refused"] > found.flips * 0.7
    assert found.outcomes["cut"] > 0


@pytest.mark.parametrize("compression", ENCODINGS)
def test_on_a_real_disk_and_all_decoded_anew_it_is_the_same(
    tmp_path: Path, compression: Compression
) -> None:
    folder = Folder(tmp_path)
    log = written(open_store(tmp_path, compression=compression, disk=HastyDisk()), folder)
    bits = range(5, len(log.content) * 8, 7919)
    found = sweep(log, bits)
    assert not found.wrong, found.wrong[:10]
    assert found == sweep(memory_log(compression), bits)


@pytest.mark.parametrize("compression", ENCODINGS)
def test_a_bit_that_rots_in_a_log_at_rest_is_found_when_it_is_read(
    compression: Compression,
) -> None:
    log = memory_log(compression)
    disk = log.shelf
    assert isinstance(disk, MortalDisk)
    with closing(log.store.open("s1", "write")) as handle:
        assert handle.keep(Snapshot(handle.next_seq, b"state", b"{}"))
    disk.rest()
    for bit in range(3, len(log.content) * 8, 6007):
        at = bit // 8
        hit = bytes([log.content[at] ^ 1 << bit % 8])
        disk.rot(log.path, log.content[:at] + hit + log.content[at + 1 :])
        refused = False
        events: list[Event] = []
        try:
            with closing(log.store.open("s1", "read")) as handle:
                events += handle.read()
        except REFUSED:
            refused = True
        assert refused, bit
        assert compression == "none" or events == log.events[: len(events)], bit
