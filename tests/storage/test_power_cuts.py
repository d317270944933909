"""The power is cut at any moment: every state that the disk may be in opens, with what was acknowledged and no more."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from dsh_protocol.errors import LogCorruptError, SessionNotFoundError
from dshd.storage.files import APPEND, DIRECTORY
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from storage.failing import HastyDisk
from storage.power import RecordingDisk, key_of, lay_out, trees
from storage.samples import HEADER, HOLDER, event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.store import SessionHandle
    from storage.power import Tree

Event = dict[str, Any]


class CutDisk(RecordingDisk):
    """Collects every state that is possible, with what was acknowledged and begun at that moment."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.acknowledged = 0
        self.begun = 0
        self.states: dict[Any, tuple[Tree, int, int]] = {}

    def before_sync(self) -> None:
        for tree in trees(self.top):
            key = key_of(tree)
            known = self.states.get(key)
            if known is None or known[1] < self.acknowledged:
                self.states[key] = (tree, self.acknowledged, self.begun)


def text(seq: int, size: int) -> str:
    """Return text that does not compress well."""
    found = hashlib.sha256(str(seq).encode()).hexdigest()
    return "".join(hashlib.sha256(f"{found}{k}".encode()).hexdigest() for k in range(size))


def batches(count: int, size: int) -> list[list[Event]]:
    """Return batches as an agent's checkpoints make them; every fourth ends a turn, alone."""
    found: list[list[Event]] = []
    seq = 0
    for number in range(count):
        if number % 4 == 3:
            reason = {"turn": number, "reason": {"kind": "completed"}}
            one = [{"type": "turn/end", "seq": seq, "time": 1000 + seq, "data": reason}]
        else:
            one = [event(at, text=text(at, size)) for at in range(seq, seq + 1 + number % 3)]
        found.append(one)
        seq += len(one)
    return found


def kept(handle: SessionHandle) -> None:
    assert handle.keep(Snapshot(handle.next_seq, b"state", b"{}"))


class LyingDisk(CutDisk):
    """Says that an append is durable, and it is not."""

    def fdatasync(self, fd: int) -> None:
        pass


class ForgetfulDisk(CutDisk):
    """Syncs files, and no names."""

    def fsync(self, fd: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            super().fsync(fd)


def work(
    disk: CutDisk, compression: Compression, work_of: list[list[Event]], *, keep_every: int
) -> CutDisk:
    """Write the batches over two lives of a handle, and bring the derived file level now and then."""
    root = disk.root
    root.mkdir(mode=0o700)
    store = open_store(root, compression=compression, disk=disk)
    handle: SessionHandle = store.create(HEADER)
    for number, one in enumerate(work_of):
        disk.begun += len(one)
        handle.append(one, HOLDER if number == 0 else None)
        disk.acknowledged = disk.begun
        if keep_every and number % keep_every == keep_every - 1:
            kept(handle)
        if number == len(work_of) // 2:
            kept(handle)
            handle.close()
            handle = store.open("s1", "write")
            assert handle.snapshot() is not None
    kept(handle)
    handle.close()
    disk.before_sync()
    return disk


def content_of(root: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in root.rglob("session.jsonl*") if p.suffix != ".tmp"}


class WrongError(Exception):
    """A state is not what was promised."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise WrongError(what)


def judge(root: Path, sent: list[Event], acknowledged: int, begun: int) -> None:
    """Open a state as a daemon would and go on with it. Raises WrongError."""
    store = open_store(root, disk=HastyDisk())
    try:
        shown = list(store.open("s1", "read").read())
        handle = store.open("s1", "write")
    except SessionNotFoundError:
        require(not acknowledged, "the session is gone")
        return
    with closing(handle):
        found = list(handle.read())
        require(found == sent[: len(found)] and len(found) <= begun, "something was invented")
        require(len(found) >= acknowledged, f"{len(found)} of {acknowledged} acknowledged events")
        require(found[: len(shown)] == shown, "what reading had shown is not there any more")
        repaired = content_of(root)
    with closing(store.open("s1", "write")) as handle:
        require(content_of(root) == repaired, "a second repair changes the log")
        more = [event(len(found)), event(len(found) + 1)]
        handle.append(more[:1])
        kept(handle)
        handle.append(more[1:])
        require(list(handle.read()) == found + more, "what was appended is not there")
    with closing(store.open("s1", "write")) as handle:
        require(list(handle.read()) == found + more, "what was appended is gone when opened again")


def complaints(disk: CutDisk, folder: Path, sent: list[Event]) -> Iterator[str]:
    for number, (tree, acknowledged, begun) in enumerate(disk.states.values()):
        root = folder / str(number)
        lay_out(tree, root)
        try:
            judge(root, sent, acknowledged, begun)
        except (WrongError, LogCorruptError) as wrong:
            sizes = {path: len(content) for path, content in tree.items() if content is not None}
            yield f"{number}: {wrong}; {sizes}"
        shutil.rmtree(root)


class Run(NamedTuple):
    """How many batches of how much text, how often the derived file is written, and how many states that makes."""

    batches: int
    size: int
    keep_every: int
    least: int


SHORT = Run(batches=2, size=60, keep_every=0, least=300)
LONG = Run(batches=20, size=60, keep_every=3, least=1300)


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize(
    "run",
    [SHORT, pytest.param(LONG, marks=pytest.mark.slow)],
    ids=["two-batches", "twenty-batches"],
)
def test_every_state_after_a_power_cut_opens_with_all_that_was_acknowledged(
    tmp_path: Path, compression: Compression, run: Run
) -> None:
    work_of = batches(run.batches, run.size)
    sent = [one for batch in work_of for one in batch]
    disk = work(CutDisk(tmp_path / "run"), compression, work_of, keep_every=run.keep_every)
    assert len(disk.states) >= run.least, "too few states to prove anything"
    found = list(complaints(disk, tmp_path, sent))
    assert not found, f"{len(found)} of {len(disk.states)} states: {found[:3]}"
    print(f"{compression}, {run.batches} batches: {len(disk.states)} states open")  # noqa: T201  # the figure


@pytest.mark.parametrize("kind", [LyingDisk, ForgetfulDisk])
def test_a_disk_that_lies_is_caught(tmp_path: Path, kind: type[CutDisk]) -> None:
    work_of = batches(2, 4)
    disk = work(kind(tmp_path / "run"), "zstd", work_of, keep_every=0)
    disk.before_sync()
    assert list(complaints(disk, tmp_path, [one for batch in work_of for one in batch]))


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("level", [True, False], ids=["with a bound", "without"])
def test_a_repair_that_is_cut_off_anywhere_loses_no_byte_and_shows_no_less(
    tmp_path: Path, compression: Compression, *, level: bool
) -> None:
    work_of = batches(3, 20)
    sent = [one for batch in work_of for one in batch]
    disk = CutDisk(tmp_path / "run")
    disk.root.mkdir(mode=0o700)
    store = open_store(disk.root, compression=compression, disk=disk)
    with closing(store.create(HEADER)) as handle:
        for one in work_of:
            handle.append(one)
        if level:
            kept(handle)
        name = "session.jsonl.zstd" if compression == "zstd" else "session.jsonl"
    tail = b"\x28\xb5\x2f\xfd\x04X" + b"half of a frame" * 100
    tear(disk, name, tail)
    disk.states.clear()
    disk.acknowledged = disk.begun = len(sent)
    store.open("s1", "write").close()
    disk.before_sync()
    assert len(disk.states) >= 5
    assert not list(complaints(disk, tmp_path, sent))
    for tree, *_ in disk.states.values():
        whole = [content for content in tree.values() if content is not None]
        assert any(content.endswith(tail) for content in whole), sorted(tree)


def tear(disk: CutDisk, name: str, tail: bytes) -> None:
    """Append bytes that are no batch, durable."""
    top = disk.open_root(str(disk.root))
    project = disk.open("--work--", DIRECTORY, at=top)
    folder = disk.open("s1", DIRECTORY, at=project)
    log = disk.open(name, APPEND, at=folder)
    disk.write(log, tail)
    disk.fsync(log)
    for fd in (log, folder, project, top):
        disk.close(fd)
