"""What can be read of a damaged log becomes a new one, and every byte that gave nothing is named."""

from __future__ import annotations

import random
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol import jsontext
from dsh_protocol.errors import FormatUnsupportedError, LogCorruptError, SessionExistsError
from dsh_protocol.events import Header, header_to_wire
from dshd.offline import new_judge
from dshd.storage.jsonl.frames import FrameEncoder
from dshd.storage.jsonl.salvage import Salvage, salvage
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.verify import Looker, verify
from support import events
from support.events import stored

if TYPE_CHECKING:
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression

HEADER = Header(
    id="s", created_at=5, cwd="/w", parent_session="p", seed_length=9, origin="subagent"
)
LOOKER = Looker(new_judge)
MAGIC = b"\x28\xb5\x2f\xfd"
Log = list[dict[str, Any]]


def turn(number: int) -> Log:
    return [
        events.turn_start(number),
        events.step_start(1, number),
        events.user(f"ask {number}"),
        *(events.chunk(text, turn=number) for text in "stream"),
        events.assistant(turn=number, sourceEventSeqs=[]),
        events.step_end(1, number),
        events.turn_end(number),
    ]


TURN = len(turn(1))


def laid(root: Path, compression: Compression = "zstd", turns: int = 4) -> tuple[Path, Log]:
    """A log of one frame, or some lines, a turn."""
    log: Log = []
    with closing(open_store(root, compression=compression).create(HEADER)) as handle:
        for number in range(1, turns + 1):
            written = stored(turn(number), first_seq=len(log))
            written[-3]["sourceEventSeqs"] = [event["seq"] for event in written[3:9]]
            handle.append(written)
            log += written
    name = "session.jsonl.zstd" if compression == "zstd" else "session.jsonl"
    return root / "--w--" / "s" / name, log


def frames_of(data: bytes | bytearray) -> list[int]:
    return [at for at in range(len(data)) if data.startswith(MAGIC, at)]


def saved(path: Path, to: Path, new_id: str | None = None) -> tuple[Salvage, Log]:
    before = path.read_bytes()
    report = salvage(str(path), path.parent, to, new_id, LOOKER)
    assert path.read_bytes() == before
    assert not list(to.glob(".salvage-*"))
    if report.new_id is None:
        return report, []
    assert verify(str(report.new_path), to, LOOKER).whole
    with closing(open_store(to).open(report.new_id, "write")) as handle:
        found = list(handle.read())
    assert [event["seq"] for event in found] == list(range(report.events))
    return report, found


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_whole_log_is_copied_event_by_event(tmp_path: Path, compression: Compression) -> None:
    path, log = laid(tmp_path / "from", compression)
    report, found = saved(path, tmp_path / "to")
    assert found == log
    assert (report.whole, report.renumbered, report.left_out) == (True, False, [])
    with closing(open_store(tmp_path / "to").open("s", "read")) as handle:
        assert handle.header == HEADER


def test_a_bad_frame_in_the_middle_costs_itself_and_what_follows_moves_up(tmp_path: Path) -> None:
    path, log = laid(tmp_path / "from")
    data = bytearray(path.read_bytes())
    frames = frames_of(data)
    data[frames[2] + 20] ^= 1
    path.write_bytes(data)
    report, found = saved(path, tmp_path / "to")
    assert [(gap.start, gap.end) for gap in report.left_out] == [(frames[2], frames[3])]
    assert report.renumbered
    assert len(found) == 3 * TURN
    assert found[:TURN] == log[:TURN]
    moved, kept = found[TURN:], log[2 * TURN :]
    assert [event["data"] for event in moved] == [event["data"] for event in kept]
    assert moved[9]["sourceEventSeqs"] == [TURN + at for at in range(3, 9)]


def test_a_frame_with_nothing_in_it_is_named(tmp_path: Path) -> None:
    path, log = laid(tmp_path / "from")
    data = path.read_bytes()
    path.write_bytes(data + FrameEncoder().encode(b""))
    report, found = saved(path, tmp_path / "to")
    assert [(gap.start, gap.end) for gap in report.left_out] == [(len(data), path.stat().st_size)]
    assert [event["data"] for event in found] == [event["data"] for event in log]


def test_a_bad_line_in_the_middle_costs_itself(tmp_path: Path) -> None:
    path, log = laid(tmp_path / "from", "none")
    lines = path.read_bytes().splitlines(keepends=True)  # of bytes, where only line ends count
    bad = 4
    start = sum(map(len, lines[:bad]))
    cut = lines[bad][:10] + b"\0" * 512 + b"\n"
    path.write_bytes(b"".join([*lines[:bad], cut, *lines[bad + 1 :]]))
    report, found = saved(path, tmp_path / "to")
    assert [(gap.start, gap.end) for gap in report.left_out] == [(start, start + len(cut))]
    assert len(found) == len(log) - 6, "the packed row held six chunks"
    assert "sourceEventSeqs" not in found[3], "its sources are lost"
    assert found[-3]["sourceEventSeqs"] == list(range(len(found) - 9, len(found) - 3))


def test_a_lost_header_is_replaced_by_one_that_has_the_id_alone(tmp_path: Path) -> None:
    for compression in ("zstd", "none"):
        path, log = laid(tmp_path / compression, compression)
        data = bytearray(path.read_bytes())
        data[20] ^= 0xFF
        path.write_bytes(data)
        report, found = saved(path, tmp_path / f"{compression}-to")
        assert report.header_lost
        assert not report.whole
        assert report.left_out[0].start == 0
        assert found == log
        with closing(open_store(tmp_path / f"{compression}-to").open("s", "read")) as handle:
            assert handle.header == Header(id="s", created_at=0)


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"garbage", MAGIC, b"\n\n\n"])
@pytest.mark.parametrize("name", ["session.jsonl.zstd", "session.jsonl"])
def test_of_what_holds_nothing_no_session_is_made(
    tmp_path: Path, content: bytes, name: str
) -> None:
    path = tmp_path / "--w--" / "s" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    report, _ = saved(path, tmp_path / "to")
    assert (report.new_id, report.events, report.whole) == (None, 0, False)
    assert sum(gap.end - gap.start for gap in report.left_out) == len(content)
    assert not list((tmp_path / "to").glob("*/*"))


def test_nothing_is_written_over_an_existing_session(tmp_path: Path) -> None:
    path, _ = laid(tmp_path / "from")
    other, _ = laid(tmp_path / "to", turns=1)
    before = other.read_bytes()
    with pytest.raises(SessionExistsError):
        saved(path, tmp_path / "to")
    assert other.read_bytes() == before
    report, _ = saved(path, tmp_path / "to", "another")
    assert report.new_id == "another"


def test_another_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    wire = {"type": "session", **header_to_wire(HEADER), "version": 3}
    path.write_bytes(jsontext.encode(wire) + b"\n")
    with pytest.raises(FormatUnsupportedError):
        salvage(str(path), tmp_path, tmp_path / "to", None, LOOKER)
    assert not (tmp_path / "to").exists()


def test_two_logs_of_one_session_are_salvaged_one_by_one(tmp_path: Path) -> None:
    path, log = laid(tmp_path / "from")
    raw, _ = laid(tmp_path / "raw", "none", turns=2)
    twin = path.with_name("session.jsonl")
    twin.write_bytes(raw.read_bytes())
    with pytest.raises(LogCorruptError, match=r"session\.jsonl\.zstd.*session\.jsonl"):
        salvage("s", tmp_path / "from", tmp_path / "to", None, LOOKER)
    _, found = saved(path, tmp_path / "to", "one")
    assert found == log
    _, found = saved(twin, tmp_path / "to", "two")
    assert found == log[: 2 * TURN]


def test_a_replacement_whose_range_is_lost_is_left_out_and_said(tmp_path: Path) -> None:
    path, log = laid(tmp_path / "from", turns=2)
    with closing(open_store(tmp_path / "from").open("s", "write")) as handle:
        summary = events.user("summary", surfaceOp={"op": "replace", "start": 2, "end": 9})
        summary["sourceEventSeqs"] = [2, 9]
        handle.append(stored([events.turn_start(3), summary], first_seq=len(log)))
    data = bytearray(path.read_bytes())
    frames = frames_of(data)
    data[frames[1] + 20] ^= 1
    path.write_bytes(data)
    report, found = saved(path, tmp_path / "to")
    assert len(found) == TURN + 1
    assert [gap.row for gap in report.left_out] == [None, 1]
    assert "range" in report.left_out[1].reason


def test_repeated_and_disordered_seqs_are_kept_once(tmp_path: Path) -> None:
    rows = [jsontext.encode({"type": "session", **header_to_wire(HEADER)})]
    rows += [jsontext.encode(event) for event in stored(turn(1))]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join([*rows[:6], rows[3], *rows[5:]]) + b"\n")
    report, found = saved(path, tmp_path / "to")
    assert [event["seq"] for event in found] == list(range(TURN))
    assert [gap.reason for gap in report.left_out] == [
        "seq 2 again, or out of order",
        "seq 4 again, or out of order",
    ]


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_of_any_damage_every_byte_is_kept_or_named_and_nothing_is_invented(
    tmp_path: Path, compression: Compression
) -> None:
    path, log = laid(tmp_path / "from", compression, turns=3)
    whole = path.read_bytes()
    known = [jsontext.encode([event["type"], event["data"]]) for event in log]
    chance = random.Random(5)  # noqa: S311  # damage is drawn, not a secret
    for number in range(60):
        data = bytearray(whole)
        at = chance.randrange(len(data))
        size = chance.choice([1, 1, 7, 64, 512])
        kind = chance.randrange(3)
        if kind == 0:
            data[at : at + size] = bytes(len(data[at : at + size]))
        elif kind == 1:
            data[at] ^= 1 << chance.randrange(8)
        else:
            del data[at : at + size]
        path.write_bytes(data)
        report, found = saved(path, tmp_path / "to", f"n{number}")
        assert all(0 <= gap.start <= gap.end <= len(data) for gap in report.left_out)
        if compression == "zstd":  # what a checksum guards is right or not there
            assert all(jsontext.encode([e["type"], e["data"]]) in known for e in found)
        if bytes(data) != whole and len(found) < len(log):
            assert not report.whole or kind == 2


def test_a_row_of_another_vocabulary_is_no_damage(tmp_path: Path) -> None:
    encoder = FrameEncoder()
    header = jsontext.encode({"type": "session", **header_to_wire(HEADER)}) + b"\n"
    newer = {"type": "later/thing", "seq": 0, "time": 1, "data": {"x": [1]}}
    path = tmp_path / "x.jsonl.zstd"
    path.write_bytes(encoder.encode(header) + encoder.encode(jsontext.encode(newer) + b"\n"))
    report = salvage(str(path), tmp_path, tmp_path / "to", None, LOOKER)
    assert report.whole
    with closing(open_store(tmp_path / "to").open("s", "read")) as handle:
        assert list(handle.read()) == [newer]
