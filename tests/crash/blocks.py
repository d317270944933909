"""Promise 4 once more: every write and flush of a device is recorded, and what a power cut leaves of it is laid out.

A real daemon plays the reference workload on a file system whose device tells what it is given. For each of many
moments a device is built: all that was flushed is there, and of the writes since then any subset, some torn. That is
mounted, which replays the journal, and judged like any root: everything acknowledged by then, nothing that nobody sent.

The one rule: an acknowledgement is a mark among the records, left when the answer had come, so that what is in front of
it is all that the answer can have rested on.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import trio

from crash import judging, workload
from crash.blockfile import FLUSH, MARK, WRITE, BlockFile, Record, open_block_file, read_records
from crash.playing import Account, Player, tearer
from crash.processes import end_on_signal
from crash.proof import Result, Size, not_run
from crash.served import Wish
from crash.volumes import (
    EXT4,
    MIB,
    XFS,
    CannotTryError,
    Kind,
    open_image,
    open_volume,
    require_private_mounts,
    run,
)
from crash.wire import Served, Wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from crash.judging import Reference

_PROMISE = 4
_STATES = {EXT4: (6, 200, 2000), XFS: (2, 40, 400)}
_CONTROL = 3
_CASE = "case"
_BEGUN, _ENDED = "begun", "ended"
_SECTOR = 512
_COPY = MIB


def prove(size: Size, scratch: Path) -> Iterator[Result]:
    """Lay out states of ext4 and XFS; see the module."""
    end_on_signal()
    place = list(Size).index(size)
    try:
        require_private_mounts("mkfs.ext4", "mkfs.xfs", "setpriv")
        for kind, counts in _STATES.items():
            found = _tried(kind, scratch, counts[place])
            reached = (
                f"{found.states} states of {found.writes} writes and {found.flushes} flushes, "
                f"{found.acknowledged} acknowledgements, {len(found.bad)} bad"
            )
            held = not found.bad and found.states == counts[place] and found.acknowledged > 0
            what = f"block-log replay, {kind.name}"
            promised = f"{counts[place]} states, 0 bad"
            yield Result(_PROMISE, what, reached, promised, held, tuple(found.bad))
        found = _tried(EXT4, scratch, _CONTROL, bug="no-sync")
    except CannotTryError as error:
        yield not_run(_PROMISE, "block-log replay", "0 lost", str(error))
        return
    reached = f"{len(found.bad)} losses seen in {found.states} states"
    what = "a daemon that does not sync, block-log replay"
    yield Result(17, what, reached, "seen", held=bool(found.bad))


@dataclass
class _Tried:
    """What was laid out, and what was wrong with it."""

    writes: int
    flushes: int
    acknowledged: int = 0
    states: int = 0
    bad: list[str] = field(default_factory=list[str])


class _Marked(Account):
    """Marks every acknowledgement among the records."""

    def __init__(self, folder: Path, disk: BlockFile) -> None:
        super().__init__(folder)
        self._disk = disk

    def acknowledged(self, session: str, next_seq: int) -> None:
        self._disk.mark(f"{session} {next_seq}\n")


def _tried(kind: Kind, scratch: Path, states: int, bug: str = "") -> _Tried:
    """Record the workload once, and lay out so many states of it."""
    own = scratch / f"{kind.fs}{bug}"
    own.mkdir()
    reference = _record(kind, own, bug)
    records = read_records(own / "records")
    kinds = [one.kind for one in records]
    tried = _Tried(kinds.count(WRITE), kinds.count(FLUSH), kinds.count(MARK) - 2)
    chance = random.Random(f"{kind.fs} {states}")  # noqa: S311  # the same states every time
    device = Device(own / "durable", kind.mib, records)
    where, image = own / "state", own / "state.image"
    where.mkdir()
    for moment in _moments(records, states, chance):
        device.lay_out(moment, image, chance)
        promised = "".join(one.data.decode() for one in records[:moment] if one.kind == MARK)
        promised = promised.removeprefix(_BEGUN).removesuffix(_ENDED)
        try:
            with open_image(kind, image, where):
                (where / _CASE / "acks").write_text(promised, "utf-8")
                found = judging.complaints(where / _CASE, reference)
        except OSError as error:
            found = [f"cannot be mounted: {error}"]
        tried.states += 1
        if found:
            tried.bad.append(f"cut at block event {moment} of {len(records)}: {found[0]}")
    return tried


def _record(kind: Kind, own: Path, bug: str) -> Reference:
    """Play the workload to a daemon on a device that is recorded; return what it came to."""
    (own / "daemon").mkdir()
    with (
        open_block_file(own, kind.mib, own / "records") as disk,
        open_volume(kind, own, backing=disk.path) as volume,
    ):
        root = volume.path / _CASE / "root"
        root.parent.mkdir()
        run(["sync", "-f", str(volume.path)])
        served = Served(own / "daemon", Wish(bug=bug))
        served.daemon.command[served.daemon.command.index("--root") + 1] = str(root)
        account = _Marked(own, disk)
        disk.mark(_BEGUN)
        try:
            with served.life():
                served.wait_answers()
                wire = Wire(served.daemon)
                player = Player(wire, account, tearer(root))
                trio.run(partial(player.play, workload.whole()))
                wire.close_all()
        finally:
            served.remove()
        disk.mark(_ENDED)
        if refusals := account.refusals():
            raise RuntimeError(f"the undisturbed daemon refused {refusals[0]}")
        return judging.reference_of(root)


def _moments(records: Sequence[Record], wanted: int, chance: random.Random) -> list[int]:
    """Choose where the power is cut: at the end, half the others where a flush is about to end, the rest anywhere."""
    marks = [at for at, one in enumerate(records) if one.kind == MARK]
    first, last = marks[0] + 1, marks[-1] + 1
    flushes = [at for at in range(first, last) if records[at].kind == FLUSH]
    chosen = [*chance.choices(flushes, k=wanted // 2), last]
    return sorted(chosen + chance.choices(range(first, last), k=wanted - len(chosen)))


class Device:
    """What is durable of a device at ever later moments.

    Args:
        durable: Where that is kept.
        mib: How large the device is.
        records: All that happened to it since it was all zeros.
    """

    def __init__(self, durable: Path, mib: int, records: Sequence[Record]) -> None:
        self._durable = durable
        self._size = mib * MIB
        self._records = records
        self._flushed = 0
        durable.touch()
        os.truncate(durable, self._size)

    def lay_out(self, moment: int, image: Path, chance: random.Random) -> None:
        """Write what a power cut just before a record may leave to a file."""
        flushed = self._flushed
        for at in range(moment - 1, self._flushed - 1, -1):
            if self._records[at].kind == FLUSH:
                flushed = at + 1
                break
        with self._durable.open("r+b") as device:
            for one in self._records[self._flushed : flushed]:
                if one.kind == WRITE:
                    os.pwrite(device.fileno(), one.data, one.offset)
        self._flushed = flushed
        self._copy(image)
        share = chance.choice((0.0, 0.3, 0.5, 0.8, 1.0))
        with image.open("r+b") as device:
            for one in self._records[flushed:moment]:
                if one.kind != WRITE or chance.random() >= share:
                    continue
                whole = len(one.data)
                kept = whole if chance.random() < 0.7 else chance.randrange(0, whole + 1, _SECTOR)
                os.pwrite(device.fileno(), one.data[:kept], one.offset)

    def _copy(self, image: Path) -> None:
        """Copy what is stored, and leave out what is a hole."""
        image.write_bytes(b"")
        os.truncate(image, self._size)
        with self._durable.open("rb") as source, image.open("r+b") as target:
            end = 0
            while True:
                try:
                    start = os.lseek(source.fileno(), end, os.SEEK_DATA)
                except OSError:  # only a hole is left
                    return
                end = os.lseek(source.fileno(), start, os.SEEK_HOLE)
                for at in range(start, end, _COPY):
                    os.pwrite(
                        target.fileno(), os.pread(source.fileno(), min(_COPY, end - at), at), at
                    )
