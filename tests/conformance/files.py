"""What a store of format version 0 must do with its files: checks over a `FileStorage`, for any store of that format.

The rule that holds here: bytes are looked at with the standard library and a decompressor, never with the store's own
reader; what is laid out is written by hand.
"""

from __future__ import annotations

import json
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import zstandard

from conformance.cases import FileStorage, Suite, refused
from conformance.suite import Event, batch, chunk, event, header, listed, stored, write
from dsh_protocol.errors import (
    DshdError,
    FormatUnsupportedError,
    LogCorruptError,
    SessionNotFoundError,
    UnsafePathError,
)

if TYPE_CHECKING:
    from pathlib import Path

FILES: Suite[FileStorage] = Suite()
holds = FILES.holds

HEADER: dict[str, Any] = {
    "type": "session",
    "version": 0,
    "id": "s",
    "createdAt": 1000,
    "cwd": "/w",
    "delegationDepth": 0,
}
TURN: list[Event] = [
    {"type": "turn/start", "seq": 0, "time": 1, "data": {"turn": 1}},
    {"type": "turn/end", "seq": 1, "time": 2, "data": {"turn": 1, "reason": {"kind": "completed"}}},
]


def text(value: Any) -> bytes:
    """Return the compact JSON text of a value, as a line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def frame(content: bytes) -> bytes:
    """Return one Zstandard frame as the format has it."""
    encoder = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=False)
    stream = encoder.compressobj()
    return stream.compress(content) + stream.flush()


def log_of(storage: FileStorage, session_id: str = "s", project: str = "--w--") -> Path:
    """Return the place of a session's log."""
    return storage.root / project / session_id / storage.log_name


def is_framed(storage: FileStorage) -> bool:
    """Whether the logs of a storage are made of frames."""
    return storage.log_name.endswith(".zstd")


def lay(storage: FileStorage, first: Any, *batches: bytes, tail: bytes = b"") -> Path:
    """Lay out a log: a header (a value, or a line), batches of rows, and whatever follows."""
    log = log_of(storage)
    log.parent.mkdir(parents=True, exist_ok=True)
    parts = [first if isinstance(first, bytes) else text(first), *batches]
    log.write_bytes(b"".join(map(frame, parts) if is_framed(storage) else parts) + tail)
    return log


def frames_of(log: Path) -> list[bytes]:
    """Return the content of each frame of a log; of a raw one its header and the rest."""
    content = log.read_bytes()
    if log.suffix != ".zstd":
        end = content.index(b"\n") + 1
        return [content[:end], content[end:]] if content[end:] else [content[:end]]
    found: list[bytes] = []
    while content:
        stream = zstandard.ZstdDecompressor().decompressobj()
        found.append(stream.decompress(content))
        assert stream.eof
        content = stream.unused_data
    return found


def rows_of(log: Path) -> list[Any]:
    """Return the rows of a log, the header's aside."""
    return [json.loads(line) for line in b"".join(frames_of(log)).split(b"\n")[1:-1]]


def packed(storage: FileStorage, events: list[Event]) -> list[Any]:
    """Return the rows that one batch is stored as, after seeing that it is read back the same."""
    name = f"p{len(listed(storage.open()))}"
    write(storage.open(), events, header(name))
    assert stored(storage.open(), name) == events
    return rows_of(log_of(storage, name))


# ---------------------------------------------------------------------- what is written


@holds("J37", "Z9", "J62")
def check_the_bytes_of_a_new_log(storage: FileStorage) -> None:
    """The header's line, keys in their order, then one compact row an event; in frames, one for either."""
    write(storage.open(), TURN)
    log = log_of(storage)
    line = (
        b'{"type":"session","version":0,"id":"s","createdAt":1000,"cwd":"/w","delegationDepth":0}\n'
    )
    assert frames_of(log) == [line, b"".join(map(text, TURN))]
    assert [
        path.name for path in log.parent.iterdir() if path.name.startswith("session.jsonl")
    ] == [storage.log_name]
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@holds("J29", "Z13")
def check_what_is_written_is_never_rewritten(storage: FileStorage) -> None:
    """Every append leaves the bytes before it alone, and is one frame; reopening adds nothing."""
    lengths: list[bytes] = []
    for seq in range(4):
        store = storage.open()
        with closing(store.open("s", "write") if seq else store.create(header())) as handle:
            handle.append(batch(2 * seq, 2))
        lengths.append(log_of(storage).read_bytes())
        storage.open().open("s", "write").close()
        assert log_of(storage).read_bytes() == lengths[-1]
    for before, after in pairwise(lengths):
        assert after.startswith(before)
        added = after[len(before) :]
        if is_framed(storage):
            stream = zstandard.ZstdDecompressor().decompressobj()
            added = stream.decompress(added)
            assert (stream.eof, stream.unused_data) == (True, b"")
        assert added.count(b"\n") == 2


@holds("U1", "U2", "U4", "U5", "J56", "J59")
def check_runs_of_chunks_become_rows(storage: FileStorage) -> None:
    """Three or more pieces of one kind are one row; two are not; everything else stands alone and ends a run."""
    rows = packed(
        storage, [chunk(0, "a"), chunk(1, ""), chunk(2, "c"), event(3), *map(chunk, (4, 5))]
    )
    data = {"turn": 1, "step": 1, "index": 0, "dt": [1, 1], "texts": ["a", "", "c"]}
    assert rows[0] == {"type": "text-chunks", "seq0": 0, "time0": 1000, "data": data}
    assert list(rows[0]["data"]) == list(data)
    assert [row["seq"] for row in rows[1:]] == [3, 4, 5]
    (row,) = packed(storage, [chunk(seq, kind="reasoning-delta") for seq in range(4)])
    assert (row["type"], row["data"]["texts"]) == ("reasoning-chunks", ["x"] * 4)
    with closing(storage.open().open("p0", "write")) as handle:
        assert handle.next_seq == 6
        handle.append(batch(6, 1))


def tool_piece(seq: int, call_id: str = "c", name: str | None = None) -> Event:
    """Return a piece of the arguments of a call."""
    one = chunk(seq)
    named = {} if name is None else {"name": name}
    delta = {"type": "tool-call-delta", "index": 0, "id": call_id, **named, "argumentsDelta": "{"}
    one["data"]["chunk"] = delta
    return one


@holds("U3", "U7")
def check_runs_of_call_pieces_keep_id_and_name(storage: FileStorage) -> None:
    """A row has one id, and one name or none; either changing begins another row."""
    named = [tool_piece(seq, name="t") for seq in range(3)]
    nameless = [tool_piece(seq) for seq in range(3, 6)]
    other = [tool_piece(seq, "d") for seq in range(6, 9)]
    rows = packed(storage, [*named, *nameless, *other])
    assert [row["type"] for row in rows] == ["tool-call-chunks"] * 3
    assert [row["data"]["id"] for row in rows] == ["c", "c", "d"]
    assert ["name" in row["data"] for row in rows] == [True, False, False]
    assert list(rows[0]["data"]) == ["turn", "step", "index", "dt", "id", "name", "args"]


@holds("U6", "U8", "U10", "U11", "U12")
def check_what_does_not_belong_to_a_run_stands_alone(storage: FileStorage) -> None:
    """Another kind, step or index, a field too many, a mark: no such piece is packed; time may go back."""
    back = [chunk(0, time=3000), chunk(1, time=2000), chunk(2, time=2000)]
    (row,) = packed(storage, back)
    assert (row["time0"], row["data"]["dt"]) == (3000, [-1000, 0])

    def changed(seq: int, **change: Any) -> Event:
        one = chunk(seq)
        one["data"] |= {key: change[key] for key in ("step", "turn", "more") if key in change}
        one["data"]["chunk"] |= {key: change[key] for key in ("index", "extra") if key in change}
        return one | {key: change[key] for key in ("ignorable",) if key in change}

    changes: list[Event] = [{"step": 2}, {"turn": 2}, {"index": 1}, {"extra": 1}, {"more": 1}]
    changes += [{"ignorable": True}]
    for change in changes:
        events = [chunk(0), chunk(1), changed(2, **change), chunk(3), chunk(4)]
        rows = packed(storage, events)
        assert [row.get("seq") for row in rows] == [0, 1, 2, 3, 4], change


@holds("J57", "J58", "U14")
def check_packed_and_unpacked_rows_may_stand_in_one_log(storage: FileStorage) -> None:
    """A reader does not ask how a run was written; runs cut by the end of a batch neither."""
    events = [chunk(seq, f"{seq}") for seq in range(12)]
    row = {"turn": 1, "step": 1, "index": 0, "dt": [1, 1, 1], "texts": ["3", "4", "5", "6"]}
    rows = {"type": "text-chunks", "seq0": 3, "time0": 1003, "data": row}
    lay(storage, HEADER, b"".join(map(text, [*events[:3], rows])), text(events[7]))
    with closing(storage.open().open("s", "write")) as handle:
        handle.append(events[8:10])
        handle.append(events[10:])
    assert stored(storage.open()) == events


# ---------------------------------------------------------------------- headers


@holds("O35", "O36", "J6", "J8", "J9")
def check_another_version_is_unsupported_not_damaged(storage: FileStorage) -> None:
    """Whatever else is in its header: refused as of another version, with its path, its bytes left, and listed."""
    for version in (1, -1, 2, 7, 0.5):
        for fields in ({}, {"id": 5}, {"createdAt": None}, {"delegationDepth": "x"}):
            log = lay(storage, {**HEADER, "version": version, **fields}, text("anything"))
            before = log.read_bytes()
            for access in ("read", "write"):
                with refused(FormatUnsupportedError) as caught:
                    storage.open().open("s", access)
                assert caught[0].facts["path"] == str(log)
            (found,) = storage.open().list()
            assert found.problem is not None
            assert found.problem.kind == "FORMAT_UNSUPPORTED"
            assert log.read_bytes() == before


BAD_HEADERS: list[Any] = [
    *(b"[]\n", b"null\n", b"5\n", b'"session"\n', b"{}\n", b"\n", b"{bad\n", b"\xef\xbb\xbf{}\n"),
    *({**HEADER, "version": bad} for bad in ("0", None, True)),
    *({**HEADER, "type": "other"}, {**HEADER, "id": 1}, {**HEADER, "id": None}),
    *({**HEADER, "createdAt": bad} for bad in (1.5, -1, 2**53, "1", None)),
    *({**HEADER, "delegationDepth": bad} for bad in (1.5, -1, "0", None)),
    {key: value for key, value in HEADER.items() if key != "delegationDepth"},
    *({**HEADER, "agentPreset": 1}, {**HEADER, "origin": "user"}),
    *({**HEADER, "sandboxMode": "x"}, {**HEADER, "approvalPolicy": "ask"}),
]


@holds("J7", "J42", "J43", "J44", "J46", "J49", "J73")
def check_a_line_that_is_no_header_is_damage(storage: FileStorage) -> None:
    """It is refused, listed with its problem, and nothing is changed."""
    for bad in BAD_HEADERS:
        log = lay(storage, bad, *([text(TURN[0])]))
        before = log.read_bytes()
        with refused(LogCorruptError):
            storage.open().open("s", "write")
        (found,) = storage.open().list()
        assert found.problem is not None, bad
        assert log.read_bytes() == before


@holds("J41", "J71", "Z11", "Z23", "Z24")
def check_a_log_without_a_header_is_damage(storage: FileStorage) -> None:
    """Empty, cut in its header, or no log at all: listed with its problem; the sessions beside it are not disturbed."""
    write(storage.open(), TURN, header("good"))
    whole = frame(text(HEADER)) if is_framed(storage) else text(HEADER)
    for content in (b"", whole[:1], whole[:-1], b"\0" * 64, b"x" * 5):
        log = log_of(storage)
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(content)
        with refused(LogCorruptError):
            storage.open().open("s", "write")
        assert listed(storage.open()) == ["good", "s"]
        assert stored(storage.open(), "good") == TURN
        assert log.read_bytes() == content


@holds("J72", "Z14")
def check_a_long_header_is_read_whole(storage: FileStorage) -> None:
    """A header of more than a few kilobytes is one like any other; a list does not read behind it."""
    preset = "".join(chr(0x4E00 + place * 7919 % 20000) for place in range(9000))
    log = lay(storage, {**HEADER, "agentPreset": preset}, *([text(TURN[0])]))
    assert stored(storage.open()) == TURN[:1]
    content = log.read_bytes()
    log.write_bytes(content[:-3] + b"\xff\xff\n")
    (found,) = storage.open().list()
    assert found.header is not None
    assert found.header.agent_preset == preset


@holds("S6", "J33", "J74", "J76", "J77")
def check_a_log_in_the_wrong_place_is_not_continued(storage: FileStorage) -> None:
    """Its header names another session or project, or it stands twice: named and refused, and neither log mended."""
    wrong: list[Any] = [{**HEADER, "id": "other"}, {**HEADER, "id": ""}, {**HEADER, "cwd": "/x"}]
    wrong += [{key: value for key, value in HEADER.items() if key != "cwd"}]
    for bad in wrong:
        log = lay(storage, bad, text(TURN[0]), tail=b'{"torn')
        before = log.read_bytes()
        with refused(LogCorruptError):
            storage.open().open("s", "write")
        (found,) = storage.open().list()
        assert found.problem is not None
        assert log.read_bytes() == before
    good = lay(storage, HEADER, text(TURN[0]))
    twin = log_of(storage, project="--x--")
    twin.parent.mkdir(parents=True)
    twin.write_bytes(good.read_bytes())
    with refused(LogCorruptError) as caught:
        storage.open().open("s", "write")
    assert str(good) in str(caught[0])
    assert str(twin) in str(caught[0])
    (found,) = storage.open().list()
    assert found.problem is not None


# ---------------------------------------------------------------------- rows


BAD_ROWS: dict[str, Any] = {
    "data is no object": {"data": []},
    "keys beside": {"more": 1},
    "a negative seq": {"seq0": -1},
    "a seq that is none": {"seq0": 0.5},
    "a time that is none": {"time0": 1.5},
    "no members": {"texts": [], "dt": []},
    "a member that is no text": {"texts": ["a", 1, "c"]},
    "too many gaps": {"dt": [1, 1, 1]},
    "too few gaps": {"dt": [1]},
    "a gap that is none": {"dt": [1, 0.5]},
    "a time beyond": {"time0": 2**53 - 1},
    "a turn that is no number": {"turn": "1"},
    "a turn that is true": {"turn": True},
}


@holds("U13", "J60")
def check_a_malformed_row_is_a_defect(storage: FileStorage) -> None:
    """A packed row of another shape is not guessed at: with a closed turn behind it the log is damaged."""
    for name, change in BAD_ROWS.items():
        data: Event = {"turn": 1, "step": 1, "index": 0, "dt": [1, 1], "texts": ["a", "b", "c"]}
        data |= {key: change[key] for key in data if key in change}
        row: Event = {"type": "text-chunks", "seq0": 0, "time0": 1, "data": data}
        row |= {key: value for key, value in change.items() if key not in data}
        end = {**TURN[1], "seq": 3}
        log = lay(storage, HEADER, text(row) + text(end))
        before = log.read_bytes()
        with refused(LogCorruptError):
            storage.open().open("s", "write")
        assert log.read_bytes() == before, name


@holds("U9")
def check_times_too_far_apart_are_not_packed(storage: FileStorage) -> None:
    """A gap that is no exact integer in every program ends a run."""
    far = 2**53 - 1
    events = [chunk(0, time=-far), chunk(1, time=-far), chunk(2, time=far), chunk(3, time=far)]
    assert [row["seq"] for row in packed(storage, events)] == [0, 1, 2, 3]


@holds("J40", "Z5", "Z16", "J38")
def check_rows_longer_than_any_buffer(storage: FileStorage) -> None:
    """Rows around the sizes of buffers and of decoder blocks, in batches of their own and together."""
    sizes = [1, 4095, 8191, 65536, 131071, 131072, 131073, 400_000]
    noise = "".join(chr(0x100 + place * 48271 % 3000) for place in range(max(sizes)))
    events = [event(seq, text=noise[:size]) for seq, size in enumerate(sizes)]
    with closing(storage.open().create(header())) as handle:
        for one in events[:5]:
            handle.append([one])
        handle.append(events[5:])
    assert stored(storage.open()) == events
    with closing(storage.open().open("s", "read")) as reader:
        assert list(reader.read(6, 1)) == events[6:7]


@holds("J39", "J51", "J52", "Z21")
def check_a_defect_before_a_closed_turn_is_damage(storage: FileStorage) -> None:
    """A turn that was ended behind it was acknowledged, so the defect was too. What stands before is still read."""
    bads = [b"\n", b"{bad\n", b"null\n", b"5\n", text({**TURN[0], "seq": 9}), b"\xff\xfe\n"]
    for bad in bads:
        log = lay(storage, HEADER, text(event(0)), bad + text({**TURN[1], "seq": 1}))
        before = log.read_bytes()
        with refused(LogCorruptError) as caught:
            storage.open().open("s", "write")
        assert caught[0].facts["path"] == str(log)
        assert caught[0].facts["expected"] == 1
        seen: list[Event] = []
        with closing(storage.open().open("s", "read")) as reader, refused(LogCorruptError):
            seen.extend(reader.read())
        assert seen in ([], [event(0)])
        assert log.read_bytes() == before


@holds("J50", "J54", "J55", "J61", "J88", "Z19", "NH19", "Z18", "Z20")
def check_an_unfinished_last_write_is_set_aside(storage: FileStorage) -> None:
    """It is never served; opening for writing keeps its bytes beside the log, cuts it off, and the log goes on."""
    rows = text({**TURN[0], "seq": 2})
    last = frame(rows) if is_framed(storage) else rows
    for size in range(1, len(last)):
        log = lay(storage, HEADER, b"".join(map(text, TURN)), tail=last[:size])
        good = log.read_bytes()[:-size]
        assert stored(storage.open()) == TURN
        assert log.read_bytes() == good + last[:size]
        with closing(storage.open().open("s", "write")) as handle:
            assert handle.next_seq == 2
            assert log.read_bytes() == good
            kept = [p for p in log.parent.iterdir() if p.read_bytes() == last[:size]]
            assert len(kept) == 1, size
            assert not kept[0].name.endswith((".jsonl", ".jsonl.zstd"))
            handle.append(batch(2, 1))
        assert stored(storage.open()) == [*TURN, *batch(2, 1)]
        for path in log.parent.iterdir():
            path.unlink()


# ---------------------------------------------------------------------- what lies beside


@holds("J68", "NO2")
def check_what_lies_in_a_session_directory_is_nobodys_business(storage: FileStorage) -> None:
    """Other files beside a log, and leftovers of a writer that died, change nothing and stay."""
    log = lay(storage, HEADER, b"".join(map(text, TURN)))
    for name in ("index.bin", "notes.txt", "session.jsonl.0123456789ab.tmp", "x.jsonl.bak"):
        (log.parent / name).write_bytes(b"not ours")
    assert listed(storage.open()) == ["s"]
    with closing(storage.open().open("s", "write")) as handle:
        handle.append(batch(2, 1))
    assert stored(storage.open()) == [*TURN, *batch(2, 1)]
    assert (log.parent / "notes.txt").read_bytes() == b"not ours"
    (log.parent / "session.lock").unlink(missing_ok=True)
    storage.open().open("s", "write").close()


@holds("J69", "J70")
def check_a_log_without_a_directory_is_no_session(storage: FileStorage) -> None:
    """A log right in a project directory is not read, and disturbs no session; other files there are passed over."""
    write(storage.open(), TURN)
    for name in ("old.jsonl", "old.jsonl.zstd"):
        (storage.root / "--w--" / name).write_bytes(text(HEADER))
    (storage.root / "--w--" / "readme.txt").write_bytes(b"x")
    found = {one.session_id: one.problem for one in storage.open().list()}
    assert found.pop("s") is None
    assert set(found) <= {"old.jsonl", "old.jsonl.zstd"}
    assert None not in found.values()
    assert stored(storage.open()) == TURN
    with refused(DshdError):
        storage.open().open("old", "write")


@holds("J84")
def check_a_root_that_is_none_is_not_taken_for_an_empty_one(storage: FileStorage) -> None:
    """A file in the place of the root: a list says so, and nothing is created in it or instead of it."""
    storage.root.parent.mkdir(parents=True, exist_ok=True)
    storage.root.write_bytes(b"x")
    with refused(DshdError):
        listed(storage.open())
    with refused(DshdError):
        write(storage.open(), TURN)
    assert storage.root.read_bytes() == b"x"


@holds("J21", "J86", "J20")
def check_what_goes_while_it_is_looked_for_is_not_there(storage: FileStorage) -> None:
    """A session or project removed by hand is not found; one that became a file is named, and harms no other."""
    write(storage.open(), TURN, header("a"))
    write(storage.open(), TURN, header("b", cwd="/x"))
    store = storage.open()
    found = store.list()
    log_of(storage, "a").unlink()
    assert {one.session_id for one in found} <= {"a", "b"}
    with refused(SessionNotFoundError):
        store.stat("a")
    (storage.root / "--w--" / "a" / "session.lock").unlink(missing_ok=True)
    for path in (storage.root / "--w--" / "a").iterdir():
        path.unlink()
    (storage.root / "--w--" / "a").rmdir()
    (storage.root / "--w--" / "a").write_bytes(b"")
    with refused(UnsafePathError, SessionNotFoundError):
        store.open("a", "write")
    assert stored(store, "b") == TURN
    assert "b" in listed(store)


@holds("J25", "J26", "H6", "H7", "S51", "S52", "L9")
def check_retired_shapes_are_read_and_not_continued(storage: FileStorage) -> None:
    """What this format gave up is told from damage: given as stored, never continued."""
    header_data = {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "fallback"}
    retired: list[Event] = [
        {"type": "request/header-delta", "seq": 0, "time": 1, "data": {}},
        {"type": "request/header", "seq": 0, "time": 1, "data": header_data},
        {"type": "mode/set", "seq": 0, "time": 1, "data": {"mode": "x"}},
    ]
    for one in retired:
        log = lay(storage, HEADER, text(one))
        before = log.read_bytes()
        with refused(FormatUnsupportedError):
            storage.open().open("s", "write")
        assert stored(storage.open()) == [one]
        assert log.read_bytes() == before


@holds("Z7", "Z8", "Z1")
def check_frames_that_others_may_write(storage: FileStorage) -> None:
    """With a content size, without a checksum, empty, or a row over two frames: read. In a raw log there is none."""
    if not is_framed(storage):
        return
    log = log_of(storage)
    log.parent.mkdir(parents=True)
    rows = b"".join(map(text, TURN))
    sized = zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=True)
    bare = zstandard.ZstdCompressor(level=19, write_checksum=False, write_content_size=True)
    for frames in (
        [sized.compress(rows)],
        [bare.compress(rows)],
        [frame(b""), frame(rows), frame(b"")],
        [frame(rows[:50]), sized.compress(rows[50:])],
        [frame(rows[at : at + 1]) for at in range(len(rows))],
    ):
        log.write_bytes(frame(text(HEADER)) + b"".join(frames))
        assert stored(storage.open()) == TURN
        storage.open().open("s", "write").close()
