"""Promise 9: mending a torn log is all or nothing: what a read once showed never disappears, and no byte is lost.

Every kind of tail, in both encodings, with and without what is kept beside the log; the process that opens for writing
is killed at every call that changes the disk, and the one that opens after it, too.
"""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crash import children
from crash.bench import Tally
from crash.children import KILLED
from crash.door import NO_FAULT, Door, Fault, Moment
from crash.kills import points
from crash.proof import Result, Size
from dsh_protocol.errors import DshdError
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from storage.failing import HastyDisk
from storage.samples import HEADER, batch, log_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dshd.storage.jsonl.layout import Compression

_EVENTS = 6
TAILS = {
    "half of a frame": b"\x28\xb5\x2f\xfd\x04Xhalf of a frame",
    "zeros": bytes(5000),
    "garbage": bytes(range(1, 200)) * 3,
    "one byte": b"{",
    "half of a row": b'{"type":"llm/retry","seq":6,"time":1006,"data":{"n',
}


@dataclass(frozen=True)
class Torn:
    """A log with a tail that is no batch."""

    compression: Compression
    tail: bytes
    kept: bool

    def make(self, folder: Path) -> None:
        """Lay it out under a folder."""
        store = open_store(folder, compression=self.compression, disk=HastyDisk())
        with closing(store.create(HEADER)) as handle:
            handle.append(batch(0, 4))
            if self.kept:
                handle.keep(Snapshot(4, b"state", b"{}"))
            handle.append(batch(4, _EVENTS - 4))
        with self.log(folder).open("ab") as log:
            log.write(self.tail)

    def log(self, folder: Path) -> Path:
        """Return its path."""
        return log_of(folder, "session.jsonl" + (".zstd" if self.compression == "zstd" else ""))


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Kill every mending at every point; the second one, too, where there is time."""
    tally = Tally()
    _warm(scratch / "warm")
    for tail_name, tail in TAILS.items():
        for compression in ("zstd", "none"):
            for kept in (False, True):
                torn = Torn(compression, tail, kept)
                if size is not Size.QUICK or kept:
                    name = f"{tail_name}, {compression}"
                    kill_mending(scratch, torn, name, tally, twice=size is not Size.QUICK)
    yield Result(
        9,
        "mending killed at every operation",
        f"{tally.tried} kills, {tally.bad} with something missing",
        "0 events shown once and missing later",
        held=tally.good and not tally.missed,
        why=tally.wrong,
    )


def _warm(folder: Path) -> None:
    """Mend once in this process: what is warm, every child finds warm."""
    _begin(folder, Torn("zstd", b"{", kept=True))
    open_store(folder, disk=Door()).open("s1", "write").close()
    shutil.rmtree(folder)
    children.warm()


def kill_mending(scratch: Path, torn: Torn, name: str, tally: Tally, *, twice: bool) -> None:
    """Kill the mending of one log at every point."""
    folder, dead = scratch / "torn", scratch / "dead"
    for at, moment in _points(folder, torn):
        case = f"{name}: {moment} operation {at}"
        _begin(folder, torn)
        if _open(folder, Fault(at, kill=moment)).code != KILLED:
            tally.missed += 1
        shutil.copytree(folder, dead)
        tally.add(case, missing(folder, torn))
        for again in range(1, 8) if twice else ():
            shutil.rmtree(folder)
            shutil.copytree(dead, folder)
            if _open(folder, Fault(again, kill="after")).code != KILLED:
                break
            tally.add(f"{case}, then operation {again}", missing(folder, torn))
        shutil.rmtree(dead)
    shutil.rmtree(folder, ignore_errors=True)


def _begin(folder: Path, torn: Torn) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    torn.make(folder)


def _points(folder: Path, torn: Torn) -> list[tuple[int, Moment]]:
    _begin(folder, torn)
    end = _open(folder, NO_FAULT)
    return points(json.loads(end.said))


def _open(folder: Path, fault: Fault) -> children.End:
    def work() -> str:
        door = Door(fault)
        open_store(folder, disk=door).open("s1", "write").close()
        return json.dumps([call.name for call in door.calls if call.name in fault.counted])

    return children.run(work)


def missing(folder: Path, torn: Torn) -> list[str]:
    """Return what is wrong with a log that is mended now."""
    try:
        return list(_missing(folder, torn))
    except DshdError as error:
        return [f"it cannot be gone on with: {error}"]


def _missing(folder: Path, torn: Torn) -> Iterator[str]:
    """Yield what a read shows no more, and whether the tail is anywhere."""
    store = open_store(folder, disk=HastyDisk())
    shown = batch(0, _EVENTS)
    with closing(store.open("s1", "read")) as reading:
        if list(reading.read()) != shown:
            yield "a reader is shown something else"
    if not _somewhere(folder, torn):
        yield "the tail's bytes are nowhere"
    with closing(store.open("s1", "write")) as writing:
        if list(writing.read()) != shown:
            yield "a writer is shown something else"
        writing.append(batch(_EVENTS, 1))
    if not _somewhere(folder, torn):
        yield "the tail's bytes are nowhere once it is mended"
    with closing(store.open("s1", "read")) as reading:
        if list(reading.read()) != batch(0, _EVENTS + 1):
            yield "what was appended is not shown"


def _somewhere(folder: Path, torn: Torn) -> bool:
    return any(path.read_bytes().endswith(torn.tail) for path in torn.log(folder).parent.iterdir())
