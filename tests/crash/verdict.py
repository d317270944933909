"""Judges one disk: every session opens, with what was acknowledged and only what was sent, and can be gone on with.

The rule that holds here: a session's verdict depends on its own directory and on what was told of it, so that equal
directories are judged once; all else of a disk is judged with each of them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crash.model import key_of
from crash.reference import PROJECT, REST_NS, ROOT, header_of
from dsh_protocol.errors import DshdError, SessionNotFoundError
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import Snapshot
from support.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crash.model import Moment
    from crash.reference import Event, Told
    from dshd.storage.jsonl.store import JsonlStore
    from dshd.storage.store import SessionHandle

_BEHIND = 4
"""How many of the acknowledged events are looked at again once a log was opened for writing."""


class WrongError(Exception):
    """A state is not what was promised."""


def _require(holds: object, what: str) -> None:
    if not holds:
        raise WrongError(what)


class Judge:
    """Judges disks.

    Attributes:
        disks: How many different ones it saw.
        directories: How many different directories of a session it judged.
        missing: Of these, how many hold no session: its first batch is not there at all.
    """

    def __init__(self, sent: dict[str, list[Event]]) -> None:
        self.disks: set[bytes] = set()
        self.missing = 0
        self._sent = sent
        self._verdicts: dict[tuple[Any, ...], str] = {}

    @property
    def directories(self) -> int:
        """See the class."""
        return len(self._verdicts)

    def complaints(self, moment: Moment, told: Told) -> Iterator[str]:
        """Yield what is wrong with a disk, once for each directory."""
        self.disks.add(moment.key)
        for name in told.begun:
            key = (name, _directory_key(moment, name), told.acknowledged.get(name, 0))
            if key in self._verdicts:
                continue
            self._verdicts[key] = ""
            try:
                self._judge(MemoryDisk(moment.tree), name, told)
            except (WrongError, DshdError) as wrong:
                inside = f"{PROJECT}/{name}/"
                sizes = {
                    path.removeprefix(inside): len(stored.data)
                    for path, stored in moment.tree.items()
                    if stored is not None and path.startswith(inside)
                }
                self._verdicts[key] = f"{name}: {wrong}; {sizes}"
                yield self._verdicts[key]

    def _judge(self, disk: MemoryDisk, name: str, told: Told) -> None:
        store, sent = open_store(Path(ROOT), disk=disk), self._sent[name]
        acknowledged, begun = told.acknowledged.get(name, 0), told.begun[name]
        try:
            with closing(store.open(name, "read")) as reader:
                shown = list(reader.read())
            handle = store.open(name, "write")
        except SessionNotFoundError:
            _require(not acknowledged, "the session is gone")
            self.missing += 1
            self._go_on(disk, store, store.create(header_of(name)), name)
            return
        seq = handle.next_seq
        with closing(handle):
            _require(shown == sent[: len(shown)], "something was invented")
            _require(seq >= acknowledged, f"{seq} of {acknowledged} acknowledged events are there")
            _require(seq <= begun, "there is more than was sent")
            _require(seq >= told.first[name], "the session is there without its first batch")
            _require(seq >= len(shown), "what reading had shown is not there any more")
            _require_events(handle, min(len(shown), acknowledged), sent)
        repaired = disk.now_ns
        handle = store.open(name, "write")
        _require(disk.now_ns == repaired, "a second repair changes something")
        self._go_on(disk, store, handle, name)

    def _go_on(self, disk: MemoryDisk, store: JsonlStore, handle: SessionHandle, name: str) -> None:
        """Append two batches, and find them when it is opened again, by its derived file or without it."""
        seq, sent = handle.next_seq, self._sent[name]
        with closing(handle):
            handle.append(sent[seq : seq + 1])
            handle.append(sent[seq + 1 : seq + 2])
            _require_events(handle, seq, sent)
            if len(self._verdicts) % 4:
                disk.now_ns += REST_NS
                kept = handle.keep(Snapshot(seq + 2, b"state", b"{}"))
                _require(kept, "nothing can be kept")
        with closing(store.open(name, "write")) as again:
            _require(again.next_seq == seq + 2, "what was appended is gone when opened again")
            _require_events(again, seq, sent)


def _require_events(handle: SessionHandle, since: int, sent: list[Event]) -> None:
    since = max(0, since - _BEHIND)
    found = list(handle.read(since))
    _require(found == sent[since : handle.next_seq], "what is read is not what was sent")


def _directory_key(moment: Moment, name: str) -> bytes:
    inside = f"{PROJECT}/{name}"
    return key_of(
        (path, digest)
        for path, digest in moment.digests.items()
        if path.startswith(inside) or inside.startswith(path)
    )
