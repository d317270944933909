"""Lines of a raw log that an unfinished write stands in: what is whole behind it is saved, and the rest is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsh_protocol import jsontext
from dshd.offline import new_judge
from dshd.storage.jsonl.salvage import salvage
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.verify import Looker
from storage.samples import batch, event, made, read

if TYPE_CHECKING:
    from pathlib import Path

LOOKER = Looker(new_judge)
ROW = jsontext.encode(event(3, text='a "quoted" {"type":"x","seq":1} text'))
PACKED = (
    b'{"type":"text-chunks","seq0":3,"time0":1,"data":{"turn":1,"step":1,"index":0,'
    b'"dt":[1,1],"texts":["a","b","c"]}}'
)
FRONTS = {
    "the same event, cut": ROW[:40],
    "all of it but its end": ROW[:-1],
    "twice cut": ROW[:50] + ROW[:30],
    "half a sector of zeros": bytes(512),
    "garbage": bytes(range(128, 256)),
    "another log's end": b'"}}',
}


@pytest.mark.parametrize("front", FRONTS.values(), ids=list(FRONTS))
@pytest.mark.parametrize("whole", [ROW, PACKED], ids=["event", "packed"])
def test_a_whole_row_behind_half_of_one_is_saved_and_the_half_is_named(
    tmp_path: Path, front: bytes, whole: bytes
) -> None:
    log = made(tmp_path, 3, "none")
    start = log.stat().st_size
    count = 3 if whole is PACKED else 1
    rest = b"".join(jsontext.encode(one) + b"\n" for one in batch(3 + count, 4))
    log.write_bytes(log.read_bytes() + front + whole + b"\n" + rest)
    report = salvage(str(log), tmp_path, tmp_path / "to", None, LOOKER)
    assert [(gap.start, gap.end) for gap in report.left_out] == [(start, start + len(front))]
    assert not report.renumbered
    found = read(open_store(tmp_path / "to"))
    assert found[:3] == batch(0, 3)
    assert found[3 + count :] == batch(3 + count, 4)
    assert jsontext.encode(found[3]) == ROW or found[3]["data"]["chunk"]["text"] == "a"


def test_a_line_of_very_many_beginnings_is_given_up_in_time(tmp_path: Path) -> None:
    log = made(tmp_path, 3, "none")
    start = log.stat().st_size
    with log.open("ab") as file:
        file.write(b'{"type":"x","seq":3,' * 20_000 + b"\n")
    report = salvage(str(log), tmp_path, tmp_path / "to", None, LOOKER)
    assert [(gap.start, gap.end) for gap in report.left_out] == [(start, log.stat().st_size)]
