"""One bad session after the other beside a good one: every way in says the same of it, gives what can be read, and
disturbs nobody.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsh_protocol import jsontext
from dsh_protocol.events import Header
from dshd.offline import new_judge
from dshd.storage.jsonl.frames import FrameEncoder
from dshd.storage.jsonl.layout import Compression, encode_segment
from dshd.storage.jsonl.store import open_store
from dshd.storage.jsonl.verify import Looker, verify
from support import events
from support.events import stored
from support.verdicts import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.daemon import DaemonProcess
    from support.rpc import Connection

CORRUPT, UNSUPPORTED, UNSAFE = "LOG_CORRUPT", "FORMAT_UNSUPPORTED", "UNSAFE_PATH"
LOOKER = Looker(new_judge)
ENCODER = FrameEncoder()
TURN = 4
TURNS = 6
ALL = TURN * TURNS


def turn(number: int) -> list[dict[str, Any]]:
    return [
        events.turn_start(number),
        events.step_start(1, number),
        events.step_end(1, number),
        events.turn_end(number),
    ]


class Log:
    """A log taken apart: its header, and its batches of rows, one for a turn."""

    def __init__(self, path: Path, session_id: str) -> None:
        self.path = path
        self.zstd = path.name.endswith(".zstd")
        self.header: Any = {
            "type": "session",
            "version": 0,
            "id": session_id,
            "createdAt": 1,
            "delegationDepth": 0,
        }
        log = stored([one for number in range(1, TURNS + 1) for one in turn(number)])
        self.batches = [
            b"".join(jsontext.encode(one) + b"\n" for one in log[at : at + TURN])
            for at in range(0, ALL, TURN)
        ]

    def put(self) -> None:
        """Write it."""
        line = self.header if isinstance(self.header, bytes) else jsontext.encode(self.header)
        parts = [line + b"\n", *self.batches] if line else self.batches
        self.path.parent.mkdir(parents=True, mode=0o700)
        self.path.write_bytes(b"".join(map(ENCODER.encode, parts) if self.zstd else parts))

    def change(self, number: int, old: bytes, new: bytes) -> None:
        """Change what a batch holds."""
        assert old in self.batches[number]
        self.batches[number] = self.batches[number].replace(old, new)

    def bytes_at(self, part: int, offset: int, new: bytes) -> None:
        """Overwrite bytes of the file as it was put; part 0 is the header."""
        content = self.path.read_bytes()
        starts = [0]
        if self.zstd:
            magic = b"\x28\xb5\x2f\xfd"
            starts = [at for at in range(len(content)) if content.startswith(magic, at)]
        else:
            starts += [content.index(batch) for batch in self.batches]
        at = starts[part] + offset
        self.path.write_bytes(content[:at] + new + content[at + len(new) :])


def keep(log: Log) -> None:
    log.put()


def without_header(log: Log) -> None:
    log.header = b""
    log.put()


def with_header(**fields: Any) -> Callable[[Log], None]:
    def damage(log: Log) -> None:
        log.header = {k: v for k, v in {**log.header, **fields}.items() if v is not None}
        log.put()

    return damage


def with_line(line: bytes) -> Callable[[Log], None]:
    def damage(log: Log) -> None:
        log.header = line
        log.put()

    return damage


def with_bytes(part: int, offset: int, new: bytes) -> Callable[[Log], None]:
    def damage(log: Log) -> None:
        log.put()
        log.bytes_at(part, offset, new)

    return damage


def with_change(number: int, old: bytes, new: bytes) -> Callable[[Log], None]:
    def damage(log: Log) -> None:
        log.change(number, old, new)
        log.put()

    return damage


def twice(log: Log) -> None:
    log.batches.insert(3, log.batches[2])
    log.put()


def missing(log: Log) -> None:
    del log.batches[2]
    log.put()


def empty(log: Log) -> None:
    log.put()
    log.path.write_bytes(b"")


def instead(make: Callable[[Path], None]) -> Callable[[Log], None]:
    def damage(log: Log) -> None:
        log.path.parent.mkdir(parents=True, mode=0o700)
        make(log.path)

    return damage


def closed(log: Log) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads what nobody may")
    log.put()
    log.path.chmod(0)


DAMAGES: dict[str, tuple[Callable[[Log], None], str, int | None]] = {
    # what was done; what it is; how many events can be read all the same, None where the encoding says
    "no header": (without_header, CORRUPT, ALL),
    "a header that is no JSON": (with_line(b'{"type":"session",'), CORRUPT, ALL),
    "a header behind a byte order mark": (with_line(b"\xef\xbb\xbf{}"), CORRUPT, ALL),
    "a header with a bit flipped": (with_bytes(0, 9, b"\xff"), CORRUPT, ALL),
    "a header of nothing": (with_line(b"{}"), CORRUPT, ALL),
    "the header of another session": (with_header(id="other"), CORRUPT, ALL),
    "the header of another project": (with_header(cwd="/elsewhere"), CORRUPT, ALL),
    "a header without an id": (with_header(id=None), CORRUPT, ALL),
    "a header of a later version": (with_header(version=1), UNSUPPORTED, ALL),
    "a header of no version": (with_header(version=-1), UNSUPPORTED, ALL),
    "an empty file": (empty, CORRUPT, 0),
    "zeros in the middle": (with_bytes(3, 12, bytes(60)), CORRUPT, 2 * TURN),
    "a bit flipped in the middle": (with_bytes(3, 20, b"\xff"), CORRUPT, 2 * TURN),
    "a row cut, and many behind": (
        with_change(2, b'"data":{"turn":3}}\n', b'"data":{"tu\n'),
        CORRUPT,
        2 * TURN,
    ),
    "a row without its seq": (with_change(2, b'"seq":8,', b""), CORRUPT, 2 * TURN),
    "a seq as text": (with_change(2, b'"seq":8,', b'"seq":"8",'), CORRUPT, 2 * TURN),
    "a seq beyond every count": (
        with_change(2, b'"seq":8,', b'"seq":9007199254740992,'),
        CORRUPT,
        2 * TURN,
    ),
    "a batch twice": (twice, CORRUPT, 3 * TURN),
    "a batch missing": (missing, CORRUPT, 2 * TURN),
    "a type of a later program": (
        with_change(2, b'"turn/start"', b'"turn/commence"'),
        UNSUPPORTED,
        ALL,
    ),
    "a link": (instead(lambda path: path.symlink_to("/etc/passwd")), UNSAFE, 0),
    "a fifo": (instead(os.mkfifo), UNSAFE, 0),
    "a directory": (instead(Path.mkdir), UNSAFE, 0),
    "a file that nobody may read": (closed, UNSAFE, 0),
}
READ_AS_STORED = {"a type of a later program"}
"""What only keeps a log from being continued is named by stat and list, and no trouble to a reader of events."""


def log_path(daemon: DaemonProcess, session_id: str, compression: Compression) -> Path:
    name = "session.jsonl.zstd" if compression == "zstd" else "session.jsonl"
    return daemon.root / "_no-cwd" / encode_segment(session_id) / name


def refusals(connection: Connection, session_id: str) -> dict[str, tuple[str, Any]]:
    """What each call says that must not take a bad session for a good one."""
    return {
        method: (refused.kind, refused.facts.get("offset"))
        for method, params in (
            ("session.messages", {}),
            ("session.open", {"access": "write"}),
            ("session.fork", {}),
        )
        for refused in [connection.refusal(method, id=session_id, **params)]
    }


@pytest.fixture(scope="module")
def bystander(shared_daemon: DaemonProcess) -> str:
    with closing(open_store(shared_daemon.root).create(Header(id="good", created_at=1))) as handle:
        handle.append(stored(turn(1)))
    return "good"


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_bad_session_is_the_same_to_every_call_and_read_as_far_as_it_can_be(
    shared_daemon: DaemonProcess,
    connection: Connection,
    bystander: str,
    compression: Compression,
    what: str,
) -> None:
    damage, kind, readable = DAMAGES[what]
    session_id = f"{compression} {what}"
    path = log_path(shared_daemon, session_id, compression)
    log = Log(path, session_id)
    damage(log)
    regular = path.is_file() and not path.is_symlink()
    before = path.read_bytes() if regular else None

    view = connection.call("session.stat", id=session_id)["session"]
    assert view["state"] == ("unsupported" if kind == UNSUPPORTED else "damaged")
    problem = view["problem"]
    assert (problem["kind"], problem["path"] in {None, str(path)}) == (kind, True)
    if kind == CORRUPT and problem["offset"] is not None:
        assert f"byte {problem['offset']}" in problem["message"]
        assert "dshd salvage" in problem["message"]
    views = {one["id"]: one for one in connection.call("session.list", limit=1000)["sessions"]}
    assert views[session_id] == view
    assert views[bystander]["problem"] is None
    assert len(read_all(connection, bystander)) == TURN

    page = connection.call("session.read", id=session_id)
    if what not in READ_AS_STORED:
        assert page["problem"]["kind"] == kind
    assert page["end"]
    found = page["events"]
    assert len(found) == page["durableSeq"] == readable
    whole = stored([one for number in range(1, TURNS + 1) for one in turn(number)])
    assert [one["seq"] for one in found] == [one["seq"] for one in whole[: len(found)]]
    assert [one["data"] for one in found] == [one["data"] for one in whole[: len(found)]]
    late = connection.call("session.read", id=session_id, offset=2, length=3)
    assert late["events"] == found[2:5]
    assert connection.call("session.open", id=session_id, access="read")["recovery"] is None

    assert {said for said, _ in refusals(connection, session_id).values()} == {kind}
    if kind != UNSAFE:
        partial = connection.call("session.messages", id=session_id, partial=True)
        assert partial["problem"]["kind"] == kind
    if regular:
        report = verify(str(path), shared_daemon.root, LOOKER)
        told = {finding.kind for finding in report.findings}
        in_place = what not in {"the header of another session", "the header of another project"}
        assert told == ({kind} if in_place else set())
        assert path.read_bytes() == before
    assert [name.name for name in path.parent.glob("torn-*")] == []
    if path.is_dir():
        path.rmdir()
