"""Hostile bytes, sort by sort, from a log and from the socket: carried exactly or refused, within bounds of memory."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dshd.storage.jsonl.frames import FrameEncoder
from support.daemon import open_daemon
from support.rpc import CallRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.daemon import DaemonProcess
    from support.rpc import Connection

MB = 1_000_000
LIMIT_S = 10.0
EXACT = "exact"
CORRUPT = "LOG_CORRUPT"
ENCODER = FrameEncoder()
END = b'{"type":"turn/end","seq":%d,"time":1,"data":{"turn":1,"reason":{"kind":"completed"}}}\n'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with open_daemon(tmp_path_factory.mktemp("hostile")) as process:
        yield process


@pytest.fixture
def connection(daemon: DaemonProcess) -> Iterator[Connection]:
    with daemon.connect() as connected:
        yield connected


def peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def title(text: bytes) -> bytes:
    """An event whose data holds a JSON text as it is."""
    return b'{"type":"llm/retry","seq":0,"time":1,"data":{"x":%b}}' % text


def row(members: bytes, gaps: bytes, kind: bytes = b"text-chunks") -> bytes:
    data = b'{"turn":1,"step":1,"index":0,"dt":[%b],"texts":[%b]}' % (gaps, members)
    return b'{"type":"%b","seq0":0,"time0":1,"data":%b}' % (kind, data)


ROWS: dict[str, tuple[bytes, str, str]] = {
    # what: the row; what a log with it is; what the socket says to it
    "invalid utf-8": (title(b'"\xff"'), CORRUPT, "PARSE_ERROR"),
    "overlong slash": (title(b'"\xc0\xaf"'), CORRUPT, "PARSE_ERROR"),
    "raw surrogate": (title(b'"\xed\xa0\x80"'), CORRUPT, "PARSE_ERROR"),
    "byte order mark": (b"\xef\xbb\xbf" + title(b"1"), CORRUPT, ""),
    "utf-16": (title(b"1").decode().encode("utf-16"), CORRUPT, ""),
    "nan": (title(b"NaN"), CORRUPT, "PARSE_ERROR"),
    "infinity": (title(b"[-Infinity]"), CORRUPT, "PARSE_ERROR"),
    "beyond a double": (title(b"1e400"), CORRUPT, "EVENT_INVALID"),
    "nul byte": (title(b'"a\0b"'), CORRUPT, "PARSE_ERROR"),
    "bare control": (title(b'"a\x0bb"'), CORRUPT, "PARSE_ERROR"),
    "nul escaped": (title(b'"a\\u0000b"'), EXACT, EXACT),
    "separators": (
        title('"\u2028\u2029\u0085\\u000b\\f\\u001c\\u001d\\u001e"'.encode()),
        EXACT,
        EXACT,
    ),
    "lone surrogate": (title(b'"\\ud83d"'), EXACT, "EVENT_INVALID"),
    "reversed pair": (title(b'"\\udc00\\ud800"'), EXACT, "EVENT_INVALID"),
    "pair": (title(b'"\\ud83d\\ude00"'), EXACT, EXACT),
    "2^53": (title(b"9007199254740992"), EXACT, "EVENT_INVALID"),
    "a whole fraction": (title(b"9007199254740993.0"), EXACT, EXACT),
    "1e16": (title(b"1e16"), EXACT, EXACT),
    "thousand digits": (title(b"1" * 1000), EXACT, "EVENT_INVALID"),
    "five thousand digits": (title(b"1" * 5000), CORRUPT, "EVENT_INVALID"),
    "duplicate key": (title(b'{"a":1,"b":2,"a":3}'), EXACT, "EVENT_INVALID"),
    "negative zero": (title(b"-0"), EXACT, "EVENT_INVALID"),
    "depth 60": (title(b"[" * 55 + b"]" * 55), EXACT, EXACT),
    "depth 900": (title(b"[" * 900 + b"]" * 900), EXACT, "EVENT_INVALID"),
    "depth 20,000": (title(b"[" * 20_000 + b"]" * 20_000), CORRUPT, "EVENT_INVALID"),
    "a million brackets": (title(b"[" * 1_000_000), CORRUPT, ""),
    "300,000 values": (title(b"[" + b"0," * 300_000 + b"0]"), EXACT, "FRAME_TOO_LARGE"),
    "twelve million values": (title(b"[" + b"[]," * 12_000_000 + b"0]"), CORRUPT, ""),
    "members without end": (row(b'"",' * 9_000_000 + b'""', b"0," * 8_999_999 + b"0"), CORRUPT, ""),
    "more members than gaps": (row(b'"a","b","c"', b"0"), CORRUPT, "EVENT_INVALID"),
    "no members": (row(b"", b""), CORRUPT, "EVENT_INVALID"),
    "gaps that leave the range": (row(b'"a","b"', b"9007199254740991"), CORRUPT, "EVENT_INVALID"),
    "seq as a string": (
        b'{"type":"llm/retry","seq":"0","time":1,"data":1}',
        CORRUPT,
        "EVENT_INVALID",
    ),
    "seq -1": (b'{"type":"llm/retry","seq":-1,"time":1,"data":1}', CORRUPT, "SEQ_CONFLICT"),
    "seq 2^53": (
        b'{"type":"llm/retry","seq":9007199254740992,"time":1,"data":1}',
        CORRUPT,
        "EVENT_INVALID",
    ),
    "no object": (b"[1,2]", CORRUPT, "EVENT_INVALID"),
    "null": (b"null", CORRUPT, "EVENT_INVALID"),
}


def frame(content: bytes = b"", *, descriptor: int = 0x04, header: bytes = b"\x58") -> bytes:
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + header + content


def block(kind: int, size: int, payload: bytes, *, last: bool = True) -> bytes:
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + payload


def bomb(megabytes: int) -> bytes:
    """A frame of a few kilobytes that decodes to so many megabytes."""
    count = megabytes * 8
    body = b"".join(block(1, 128 * 1024, b" ", last=n == count - 1) for n in range(count))
    return frame(body, descriptor=0)


GOOD = ENCODER.encode(title(b"1") + b"\n")
FRAMES: dict[str, bytes] = {
    "bomb of a gigabyte": bomb(1024),
    "bomb of a gigabyte, with good frames behind": bomb(1024) + GOOD,
    "states 2^62 bytes": frame(
        block(0, 3, b"abc"), descriptor=0xE0, header=(1 << 62).to_bytes(8, "little")
    ),
    "window of a gigabyte": frame(block(0, 3, b"abc"), descriptor=0, header=b"\xa0"),
    "dictionary": frame(block(0, 3, b"abc"), descriptor=0x01, header=b"\x58\x07"),
    "reserved bit, and a good frame": frame(block(0, 3, b"abc"), descriptor=0x08) + GOOD,
    "reserved block, and a good frame": frame(block(3, 3, b"abc")) + GOOD,
    "block over 128 KiB, and a good frame": frame(block(0, 131_073, bytes(131_073))) + GOOD,
    "run of over 128 KiB, and a good frame": frame(block(1, 131_073, b"x")) + GOOD,
    "longer than 65 MiB": frame(
        b"".join(block(0, 131_072, bytes(131_072), last=n == 521) for n in range(522)),
        descriptor=0,
    ),
    "row of very many members": ENCODER.encode(row(b'"",' * 25_000_000 + b'""', b"0") + b"\n"),
    "skippable, and a good frame": b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + GOOD,
    "no row": ENCODER.encode(b"x" * 1000 + b"\n"),
    "a row of 70 MB over two frames": ENCODER.encode(b'"' + b"x" * 35_000_000) * 2,
}
TAILS: dict[str, bytes] = {
    "a million empty blocks": frame(block(0, 0, b"", last=False) * 1_000_000 + block(0, 0, b"")),
    "skippable": b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
    "reserved bit": frame(block(0, 3, b"abc"), descriptor=0x08),
    "block over 128 KiB": frame(block(0, 131_073, bytes(131_073))),
    "block that says 2 MiB": frame(block(2, 0x1FFFFF, b"x")),
    "zeros": bytes(4096),
}


def lay(daemon: DaemonProcess, session_id: str, name: str, content: bytes) -> Path:
    place = daemon.root / "_no-cwd" / session_id
    place.mkdir(parents=True, mode=0o700)
    header = {
        "type": "session",
        "version": 0,
        "id": session_id,
        "createdAt": 1,
        "delegationDepth": 0,
    }
    line = json.dumps(header, separators=(",", ":")).encode() + b"\n"
    path = place / name
    path.write_bytes((line if name.endswith("l") else ENCODER.encode(line)) + content)
    return path


def look(connection: Connection, session_id: str) -> tuple[dict[str, Any], set[str]]:
    """Ask everything of a session; return its view, and the kinds of the refusals."""
    refused: set[str] = set()
    calls: list[tuple[str, dict[str, Any]]] = [
        ("session.read", {}),
        ("session.messages", {}),
        ("session.messages", {"partial": True}),
        ("session.fork", {}),
        ("session.open", {"access": "read"}),
        ("session.open", {"access": "write"}),
    ]
    for method, params in calls:
        try:
            connection.call(method, id=session_id, **params)
        except CallRefusedError as error:
            refused.add(error.kind)
    began = time.perf_counter()
    view = connection.call("session.stat", id=session_id)["session"]
    assert time.perf_counter() - began < LIMIT_S
    assert connection.call("session.list")["sessions"]
    return view, refused


@pytest.mark.parametrize("what", ROWS)
@pytest.mark.parametrize("zstd", [True, False])
def test_a_row_in_a_log(
    daemon: DaemonProcess,
    connection: Connection,
    what: str,
    zstd: bool,  # noqa: FBT001  # pytest gives arguments by name
) -> None:
    line, on_disk, _ = ROWS[what]
    name, session_id = ("session.jsonl.zstd" if zstd else "session.jsonl"), f"r{zstd}-{what}"
    session_id = session_id.replace(" ", "-").replace(",", "").replace("^", "")
    content = line + b"\n" + END % 1
    if zstd and len(content) > 64 * 1024 * 1024:
        pytest.skip("no frame holds it")
    path = lay(daemon, session_id, name, ENCODER.encode(content) if zstd else content)
    before, peak_before = path.read_bytes(), peak(daemon.pid)
    view, refused = look(connection, session_id)
    # some copies of the row, for the few threads that read at once
    assert peak(daemon.pid) - peak_before < 64 * MB + 20 * len(line)
    if on_disk == CORRUPT:
        assert view["problem"]["kind"] == CORRUPT
        assert view["state"] == "damaged"
        assert refused == {CORRUPT}
        assert path.read_bytes() == before
        return
    assert (view["problem"], refused) == (None, set())
    found = connection.call("session.read", id=session_id, length=1)["events"][0]
    assert found == json.loads(line)


@pytest.mark.parametrize("what", FRAMES)
def test_a_frame_that_is_refused(daemon: DaemonProcess, connection: Connection, what: str) -> None:
    session_id = f"f-{sorted(FRAMES).index(what)}"
    path = lay(daemon, session_id, "session.jsonl.zstd", FRAMES[what])
    before, peak_before, began = path.read_bytes(), peak(daemon.pid), time.perf_counter()
    view, refused = look(connection, session_id)
    assert time.perf_counter() - began < LIMIT_S
    assert peak(daemon.pid) - peak_before < 300 * MB
    assert (view["state"], view["problem"]["kind"], refused) == ("damaged", CORRUPT, {CORRUPT})
    assert path.read_bytes() == before


@pytest.mark.parametrize("what", TAILS)
def test_a_tail_that_is_no_frame_is_set_aside(
    daemon: DaemonProcess, connection: Connection, what: str
) -> None:
    session_id = f"t-{sorted(TAILS).index(what)}"
    path = lay(daemon, session_id, "session.jsonl.zstd", GOOD + TAILS[what])
    opened = connection.call("session.open", id=session_id, access="write")
    assert opened["session"]["nextSeq"] == 2, "one event, and the mark that is due"
    (aside,) = path.parent.glob("torn-*.bin")
    assert aside.read_bytes() == TAILS[what]
    connection.call("session.close", id=session_id, writer=opened["writer"])


@pytest.mark.parametrize("name", ["session.jsonl", "session.jsonl.zstd"])
def test_a_hole_of_20_gb_moves_neither_memory_nor_time(
    daemon: DaemonProcess, connection: Connection, name: str
) -> None:
    session_id = f"hole-{len(name)}"
    path = lay(daemon, session_id, name, GOOD if name.endswith("d") else title(b"1") + b"\n")
    os.truncate(path, 20_000_000_000)
    before, began = peak(daemon.pid), time.perf_counter()
    view = connection.call("session.stat", id=session_id)["session"]
    assert (view["nextSeq"], view["sizeBytes"]) == (1, 20_000_000_000)
    assert len(connection.call("session.read", id=session_id)["events"]) == 1
    assert time.perf_counter() - began < LIMIT_S
    assert peak(daemon.pid) - before < 32 * MB


def test_a_header_without_an_end_is_bounded(daemon: DaemonProcess, connection: Connection) -> None:
    place = daemon.root / "_no-cwd" / "header"
    place.mkdir(mode=0o700)
    (place / "session.jsonl").write_bytes(b'{"type":"session","id":"' + b"x" * 50_000_000)
    before = peak(daemon.pid)
    view = connection.call("session.stat", id="header")["session"]
    assert view["problem"]["kind"] == CORRUPT
    assert peak(daemon.pid) - before < 32 * MB


@pytest.mark.parametrize("what", [what for what, (_, _, sent) in ROWS.items() if sent])
def test_the_same_from_the_socket(connection: Connection, what: str) -> None:
    line, _, due = ROWS[what]
    session_id = f"s-{list(ROWS).index(what)}"
    writer = connection.call("session.create", id=session_id)["writer"]
    head = b'{"jsonrpc":"2.0","id":99,"method":"session.append","params":{"id":"%b","writer":"%b",'
    connection.send_line(
        head % (session_id.encode(), writer.encode()) + b'"events":[' + line + b"]}}"
    )
    answer = connection.read_message()
    if due == EXACT:
        assert "result" in answer, answer
        found = connection.call("session.read", id=session_id)["events"]
        assert found == [json.loads(line)]
        return
    assert answer["error"]["data"]["kind"] == due
    assert connection.call("session.read", id=session_id)["events"] == []


def test_every_row_of_the_table_is_written_down() -> None:
    page = Path(__file__).parents[2] / "daemon" / "FORMAT.md"
    table = page.read_text("utf-8").split("## Hostile bytes")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) == 18 + 1
