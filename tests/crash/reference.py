"""The reference workload as the store sees it, on a disk in memory: what is sent, and what was acknowledged.

Three sessions side by side, one of them packed, one raw, one with pages of text and a torn tail that is repaired; a
fork of the first; each materialised, closed, opened again, its derived file kept now and then.

The rule that holds here: event number i of a session is a function of both, so that an event which was never sent is
told from one that was never acknowledged; and what was acknowledged never goes down.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import (
    DshdError,
    SessionExistsError,
    SessionNotFoundError,
    SessionSealedError,
)
from dsh_protocol.events import Header
from dshd.storage.files import APPEND
from dshd.storage.jsonl.store import open_store
from dshd.storage.store import HolderRecord, Snapshot
from support.memory_disk import MemoryDisk

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from dshd.storage.files import Disk
    from dshd.storage.jsonl.store import JsonlStore
    from dshd.storage.store import SessionHandle

ROOT = "/state/dshd/sessions"
"""Two of its three directories are made by the store."""
PROJECT = f"{ROOT[1:]}/--work--"
HOLDER = HolderRecord("ab" * 32, 12, 34, "boot", "tests", 56, 0)
HALF_A_FRAME = b"\x28\xb5\x2f\xfd\x04X" + b"half of a frame" * 40
REST_NS = 2_000_000_000
_TRIES = 4

Event = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What one session does.

    Args:
        name: Its id.
        batches: How many it appends.
        size: Characters of text in an event, at most.
        raw: Its log is not compressed.
        torn: Before which batch a tail is torn; 0 for never.
        forked: After which batch it is forked; 0 for never.
        keep_every: After how many batches its derived file is brought level.
    """

    name: str
    batches: int
    size: int
    raw: bool = False
    torn: int = 0
    forked: int = 0
    keep_every: int = 4


WHOLE = (
    Plan("alpha", 20, 160, forked=12),
    Plan("beta", 20, 90, raw=True),
    Plan("gamma", 18, 6000, torn=9, keep_every=5),
)
SHORT = (
    Plan("alpha", 6, 40, forked=4, keep_every=3),
    Plan("beta", 4, 30, raw=True, keep_every=2),
    Plan("gamma", 4, 1400, torn=3, keep_every=3),
)
CHILD = "child"
CHILD_BATCHES = 5


def header_of(name: str) -> Header:
    """Return a session's header."""
    return Header(id=name, created_at=1000, cwd="/work")


def _text(name: str, seq: int, size: int) -> str:
    """Return text that hardly compresses, of a length of its own."""
    seed = hashlib.sha256(f"{name}/{seq}".encode()).digest()
    length = size // 8 + int.from_bytes(seed[:2], "big") * size // 75_000
    return hashlib.shake_128(seed).hexdigest(length // 2 + 1)


def event_of(plan: Plan, seq: int) -> Event:
    """Return event number `seq`: mostly chunks in runs, so that they are packed; now and then a turn ends."""
    name = plan.name
    text = _text(name, seq, plan.size)
    if seq % 11 == 10:
        data: dict[str, Any] = {"turn": seq, "reason": {"kind": "completed"}}
        return {"type": "turn/end", "seq": seq, "time": 1000 + seq, "data": data}
    if seq % 11 < 3:
        return {"type": "llm/retry", "seq": seq, "time": 1000 + seq, "data": {"n": text}}
    chunk = {"type": "text-delta", "index": 0, "text": text}
    data = {"turn": 1, "step": 1, "chunk": chunk}
    return {"type": "assistant/chunk", "seq": seq, "time": 1000 + seq, "data": data}


def _sizes(plan: Plan) -> list[int]:
    """Return how many events each batch has."""
    return [1 + (number * 3 + len(plan.name)) % 4 for number in range(plan.batches)]


@dataclass
class Told:
    """What was begun and what was acknowledged of each session, and what its first batch was."""

    acknowledged: dict[str, int] = field(default_factory=dict[str, int])
    begun: dict[str, int] = field(default_factory=dict[str, int])
    first: dict[str, int] = field(default_factory=dict[str, int])


def sent(plans: Sequence[Plan]) -> dict[str, list[Event]]:
    """Return every event of every session, and some that come behind them."""
    found = {p.name: [event_of(p, seq) for seq in range(sum(_sizes(p)) + 2)] for p in plans}
    for plan in plans:
        if plan.forked:
            found[CHILD] = [event_of(plan, seq) for seq in range(_child_size(plan) + 2)]
    return found


def _child_size(plan: Plan) -> int:
    return sum(_sizes(plan)[: plan.forked]) - 1 + 2 * CHILD_BATCHES


class Workload:
    """Runs plans on a disk. An append that failed is tried again, as the daemon does; a sealed log is opened anew."""

    def __init__(self, disk: Disk, told: Told) -> None:
        self.disk = disk
        self.told = told
        disk_root = Path(ROOT)
        self._stores: dict[bool, JsonlStore] = {
            False: open_store(disk_root, disk=disk),
            True: open_store(disk_root, disk=disk, compression="none"),
        }

    def run(self, plan: Plan) -> None:
        """Do all that a plan says."""
        store = self._stores[plan.raw]
        handle: SessionHandle = store.create(header_of(plan.name))
        seq = 0
        for number, size in enumerate(_sizes(plan), 1):
            if number == plan.torn:
                handle.close()
                self._tear(plan)
                handle = self._opened(store, plan.name)
            if number == plan.batches // 2:
                handle.close()
                handle = self._opened(store, plan.name)
            events = [event_of(plan, at) for at in range(seq, seq + size)]
            handle = self._append(store, handle, plan.name, events)
            seq += size
            if number % plan.keep_every == 0:
                self._keep(handle)
            if number == plan.forked:
                self._fork(store, handle, plan)
        self._keep(handle)
        with suppress(DshdError):
            handle.clear_holder()
        handle.close()

    def _append(
        self, store: JsonlStore, handle: SessionHandle, name: str, events: list[Event]
    ) -> SessionHandle:
        told, end = self.told, events[-1]["seq"] + 1
        told.begun[name] = end
        told.first.setdefault(name, end)
        failure: DshdError | None = None
        for _ in range(_TRIES):
            try:
                if handle.next_seq < end:
                    handle.append(events, HOLDER if events[0]["seq"] % 7 == 0 else None)
            except SessionSealedError:
                handle.close()
                handle = self._opened(store, name)
            except DshdError as error:
                failure = error
            else:
                told.acknowledged[name] = end
                return handle
        raise AssertionError(f"{name}: seq {end} could not be made durable") from failure

    def _opened(self, store: JsonlStore, name: str) -> SessionHandle:
        """Open a session, again where that failed; create it where its creation failed for good."""
        for _ in range(_TRIES - 1):
            try:
                return store.open(name, "write")
            except SessionNotFoundError:
                return store.create(header_of(name))
            except DshdError:
                continue
        return store.open(name, "write")

    def _keep(self, handle: SessionHandle) -> None:
        if isinstance(self.disk, MemoryDisk):
            self.disk.now_ns += REST_NS
        with suppress(DshdError):
            handle.keep(Snapshot(handle.next_seq, b"state", b"{}"))

    def _fork(self, store: JsonlStore, source: SessionHandle, plan: Plan) -> None:
        """Fork within the last batch, so that a frame is written anew."""
        cut = source.next_seq - 1
        closing = [event_of(plan, cut)]
        self.told.begun[CHILD] = self.told.first[CHILD] = cut + 1
        for _ in range(_TRIES):
            try:
                handle = store.fork(source, cut, header_of(CHILD), closing)
                break
            except SessionExistsError:
                handle = self._opened(store, CHILD)
                break
            except DshdError:
                continue
        else:
            raise AssertionError("the fork could not be made")
        self.told.acknowledged[CHILD] = cut + 1
        for number in range(CHILD_BATCHES):
            seq = handle.next_seq
            events = [event_of(plan, seq), event_of(plan, seq + 1)]
            handle = self._append(store, handle, CHILD, events[: 1 + number % 2])
        self._keep(handle)
        handle.close()

    def _tear(self, plan: Plan) -> None:
        """Leave what a killed append leaves: half of a frame, not synced."""
        disk, name = self.disk, "session.jsonl" if plan.raw else "session.jsonl.zstd"
        folder = disk.open_root(f"/{PROJECT}/{plan.name}")
        log = disk.open(name, APPEND, at=folder)
        disk.write(log, HALF_A_FRAME)
        disk.close(log)
        disk.close(folder)


class Turns:
    """Lets threads run one at a time; who goes on is drawn at each call of the disk."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._flags: list[Flag] = []
        self._alive: list[int] = []
        self._now = 0
        self._failures: list[BaseException] = []

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Run them all, in turns. Raises the first failure."""
        self._flags = [Flag() for _ in works]
        self._alive = list(range(len(works)))
        threads = [Thread(target=self._one, args=(at, work)) for at, work in enumerate(works)]
        for thread in threads:
            thread.start()
        self._flags[0].set()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _one(self, at: int, work: Callable[[], None]) -> None:
        self._flags[at].wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # raised by `run`, in the thread that asked
            self._failures.append(error)
        self._alive.remove(at)
        if self._alive:
            self._now = self._rng.choice(self._alive)
            self._flags[self._now].set()

    def next(self) -> None:
        """Let somebody else go on, perhaps."""
        if len(self._alive) < 2:
            return
        mine, self._now = self._now, self._rng.choice(self._alive)
        if mine != self._now:
            self._flags[mine].clear()
            self._flags[self._now].set()
            self._flags[mine].wait()
