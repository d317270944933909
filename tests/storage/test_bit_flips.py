"""Bits of a log of 64 KiB are flipped, one at a time; `make bitflips` flips every one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from storage.bitflips import sweep

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize(
    "step", [2039, pytest.param(127, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_flipped_bit_is_refused_or_costs_the_last_batch(
    tmp_path: Path, compression: Compression, step: int
) -> None:
    count, wrong = sweep(tmp_path, compression, step)
    assert count > 100
    assert not wrong, wrong[:10]
