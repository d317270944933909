"""The life of one session, from a seed: batches, crashes, cuts, forks, reopenings; after each the list is the judge.

The rule that holds here: what is read equals the list, and the list is kept without the store: an event is in it from
the moment it was acknowledged, and one that was not may be there only whole, behind all others.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import LogCorruptError, SessionNotFoundError
from dsh_protocol.events import Header
from dshd.storage.jsonl.derived import DERIVED
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import HolderRecord, Snapshot
from properties.mortal_disk import KilledError, MortalDisk
from properties.repairing import FOLDER, MOMENTS, ROOT, LifeError, check_repair, require
from properties.streams import Stream
from support.logs import events_in, same

if TYPE_CHECKING:
    from collections.abc import Callable

    from dshd.storage.jsonl.layout import Compression
    from dshd.storage.jsonl.store import JsonlStore
    from dshd.storage.store import SessionHandle

Event = dict[str, Any]

_HEADER = Header(id="s1", created_at=1, cwd="/w")
_HOLDER = HolderRecord("ab" * 32, 12, 34, "boot", "tests", 56, 0)


class Life:
    """One session and its list.

    Attributes:
        events: The list.
        did: How often what was done.
    """

    def __init__(self, seed: int) -> None:
        self._chosen = random.Random(seed)  # noqa: S311  # to be replayed, not to be secret
        self._compression: Compression = self._chosen.choice(("zstd", "none"))
        self._disk = MortalDisk()
        self._store = self._opened()
        self._stream = Stream(self._chosen)
        self._handle: SessionHandle | None = None
        self._last_append = 0
        self._bound = 0
        self._forks = 0
        self.events: list[Event] = []
        self.did: Counter[str] = Counter()

    def live(self) -> Counter[str]:
        """Do some things in any order; then repair what is there, from every side. Raises LifeError."""
        chosen = self._chosen
        deeds: tuple[Callable[[], None], ...] = (
            *(self._append, self._append, self._append, self._killed_append),
            *(self._keep, self._reopen, self._reopen_otherwise, self._read_a_part),
            *(self._cut, self._fork),
        )
        for _ in range(chosen.randrange(3, 12)):
            deed = chosen.choice(deeds)
            if deed != self._append and self._handle is None:
                deed = self._append
            deed()
            self.did[deed.__name__.strip("_")] += 1
            self._compare()
        self._die_at_the_end()
        left = self._disk.tree()
        if self._path in left:
            check_repair(left, self._path, self._chosen)
            self.did["repaired"] += 1
        return self.did

    # ------------------------------------------------------------------ parts of a life

    def _opened(self) -> JsonlStore:
        packs = self._chosen.random() < 0.8
        return open_store(ROOT, compression=self._compression, pack_chunks=packs, disk=self._disk)

    @property
    def _path(self) -> str:
        return f"{FOLDER}/{_log_name(self._compression)}"

    @property
    def _content(self) -> bytes:
        return self._disk.tree()[self._path] or b""

    def _held(self) -> SessionHandle:
        if self._handle is None:
            self._handle = self._store.create(_HEADER)
        return self._handle

    def _append(self) -> None:
        handle = self._held()
        self._last_append = handle.size_bytes
        batch = self._stream.batch()
        handle.append(batch, self._chosen.choice((None, None, _HOLDER)))
        self.events += batch

    def _killed_append(self) -> None:
        """The process ends at any call of an append: all before is there, and of the batch what is whole."""
        handle = self._held()
        before = handle.size_bytes
        batch = self._stream.batch()
        self._kill_at(self._chosen.randrange(1, 10))
        try:
            handle.append(batch, self._chosen.choice((None, _HOLDER)))
        except KilledError:
            self.did["killed"] += 1
        else:
            self.events += batch
        self._begin_anew()
        if self._handle is None:
            return
        self._last_append = min(before, self._handle.size_bytes)
        found = events_in(self._content)[len(self.events) :]
        require(same(found, batch[: len(found)]), "what is behind the list was never sent")
        require(
            self._compression == "none" or len(found) in {0, len(batch)}, "a batch came in part"
        )
        self.events += batch[: len(found)]
        self._stream.go_on(self.events)

    def _kill_at(self, call: int) -> None:
        self._disk.calls = 0
        self._disk.die_at, self._disk.moment = call, self._chosen.choice(MOMENTS)

    def _begin_anew(self) -> None:
        """Another process opens the session, and may be killed at that, too."""
        if self._chosen.random() < 0.5:
            self._disk.end_process()
            self._kill_at(self._chosen.randrange(1, 6))
            with suppress(KilledError, SessionNotFoundError):
                self._opened().open("s1", "write").close()
        self._disk.end_process()
        self._store = self._opened()
        try:
            self._handle = self._store.open("s1", "write")
        except SessionNotFoundError:
            require(not self.events, "the session is gone")
            self._handle = None
            self._stream.take_back(0)

    def _keep(self) -> None:
        self._disk.rest()
        kept = Snapshot(len(self.events), bytes(len(self.events)), b"{}")
        handle = self._held()
        require(handle.keep(kept), "nothing was kept")
        require(handle.snapshot() == kept, "something else was kept")
        self._bound = handle.size_bytes

    def _reopen(self) -> None:
        if self._chosen.random() < 0.5:
            self._keep()
        self._held().close()
        self._disk.rest()
        require(self._disk.open_count == 0, "a descriptor stays open")
        self._store = self._opened()
        self._handle = self._store.open("s1", "write")

    def _reopen_otherwise(self) -> None:
        """What is derived is lost, damaged, or of an earlier day."""
        self._held().close()
        path = f"{FOLDER}/{DERIVED}"
        tree = self._disk.tree()
        kept = tree.get(path)
        wrong = self._chosen.choice((None, b"", b"dshd", None if kept is None else kept[:-1]))
        if wrong is not None or kept is not None:
            self._disk.put(path, wrong)
        self._bound = 0
        self._handle = self._store.open("s1", "write")

    def _read_a_part(self) -> None:
        offset = self._chosen.randrange(len(self.events) + 2)
        length = self._chosen.choice((None, 0, 1, 5))
        end = None if length is None else offset + length
        for handle in (self._held(), self._store.open("s1", "read")):
            found = list(handle.read(offset, length))
            require(same(found, self.events[offset:end]), "a part is another")
        handle.close()

    def _cut(self) -> None:
        """The file ends at any byte of the last append: that is gone, and only that."""
        self._held().close()
        whole = self._content
        if self._last_append >= len(whole) or not self._last_append:
            self._handle = self._store.open("s1", "write")
            return
        at = self._chosen.randrange(self._last_append, len(whole))
        if at < self._bound:
            self._require_refused(whole, at)
            return
        self._disk.put(self._path, whole[:at])
        left = events_in(whole[:at])
        with closing(self._store.open("s1", "read")) as reading:
            require(same(list(reading.read()), left), "a cut log is read otherwise")
        self._handle = self._store.open("s1", "write")
        require(same(left, self.events[: len(left)]), "a cut has changed what is before")
        kept = self._content
        aside = [part or b"" for path, part in self._disk.tree().items() if "/torn-" in path]
        require(whole[:at] == kept or whole[len(kept) : at] in aside, "torn bytes are lost")
        self.events = self.events[: len(left)]
        self._stream.take_back(len(left))

    def _require_refused(self, whole: bytes, at: int) -> None:
        """What was acknowledged by the derived file is missing: nothing is written."""
        self._disk.put(self._path, whole[:at])
        before = self._disk.tree()
        try:
            self._store.open("s1", "write")
        except LogCorruptError:
            self.did["refused"] += 1
        else:
            raise LifeError("acknowledged bytes are missing, and nothing was said")
        require(self._disk.tree() == before, "a refusal has changed something")
        self._disk.put(self._path, whole)
        self._handle = self._store.open("s1", "write")

    def _fork(self) -> None:
        """A child at any closed turn has the list up to there."""
        end = self._chosen.choice([seq for seq in self._stream.closed if seq <= len(self.events)])
        self._forks += 1
        child = f"child-{self._forks}"
        mark: Event = {"type": "session/end-seed", "seq": end, "time": 7, "data": {}}
        header = Header(id=child, created_at=2, cwd="/w", parent_session="s1", seed_length=end)
        source = self._held() if self._chosen.random() < 0.5 else self._store.open("s1", "read")
        self._store.fork(source, end, header, [mark]).close()
        if source is not self._handle:
            source.close()
        expected = [*self.events[:end], mark]
        with closing(self._store.open(child, "write")) as handle:
            require(same(list(handle.read()), expected), "a child has another history")
        name = _log_name(self._compression)
        content = self._disk.tree()[f"--w--/{child}/{name}"] or b""
        require(same(events_in(content), expected), "a child's bytes have another history")

    def _die_at_the_end(self) -> None:
        """Leave the session as a process does that is killed in an append."""
        handle = self._held()
        self._kill_at(self._chosen.randrange(1, 6))
        with suppress(KilledError):
            handle.append(self._stream.batch())
        self._disk.end_process()

    def _compare(self) -> None:
        """The list, the handle for writing, one for reading, and the bytes say the same."""
        if self._handle is None:
            return
        require(same(list(self._handle.read()), self.events), "the writer reads something else")
        require(self._handle.next_seq == len(self.events), "the writer counts otherwise")
        with closing(self._store.open("s1", "read")) as reading:
            require(same(list(reading.read()), self.events), "a reader reads something else")
            require(reading.next_seq == len(self.events), "a reader counts otherwise")
        require(same(events_in(self._content), self.events), "the bytes say something else")


def _log_name(compression: Compression) -> str:
    return "session.jsonl.zstd" if compression == "zstd" else "session.jsonl"


def live_many(seeds: range) -> tuple[Counter[str], list[str]]:
    """Live many lives. Returns what was done in them, and the seeds of those that went wrong, with why."""
    did: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in seeds:
        life = Life(seed)
        try:
            life.live()
        except Exception as error:  # noqa: BLE001  # whatever is raised, its seed is what is wanted
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
        did += life.did
        did["logs"] += 1
        did["events"] += len(life.events)
    return did, wrong
