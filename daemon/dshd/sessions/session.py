"""One live session: its fold, its drain, its claim, and the order in which they change.

The rule that holds here: between the checks of an admission and the admission itself there is no await, so a seq is
given once and what was checked is what is queued.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from dsh_protocol import jsontext
from dsh_protocol.errors import (
    DshdError,
    LogChangedError,
    SeqConflictError,
    SessionSealedError,
    WriterLostError,
)
from dshd.sessions import rules
from dshd.sessions.asked import Admission, Asked
from dshd.sessions.at_once import need_task
from dshd.sessions.claims import busy_error, writer_lost
from dshd.sessions.drain import Drain
from dshd.sessions.keeping import Keeper
from dshd.sessions.recovering import end_seed, recovery_required
from dshd.sessions.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_protocol.events import Event, Header
    from dsh_protocol.limits import Limits
    from dshd.sessions.claims import Claim
    from dshd.sessions.drain import DrainObserver
    from dshd.sessions.fold import Fold
    from dshd.storage.store import HolderRecord, Labels, SessionHandle


@dataclass(frozen=True, slots=True)
class Runtime:
    """What every session of a daemon shares: the limits, the batch window in seconds, the bounded pool for reads."""

    limits: Limits
    window: float
    read_limiter: trio.CapacityLimiter


class Session:
    """A session that is open for writing, or whose last events are not on disk yet.

    Owned by the registry; its drain runs in the session's own nursery (`run_session`). All methods belong to the
    event loop; what blocks goes through `read_limiter` or the drain.
    """

    def __init__(
        self, handle: SessionHandle, fold: Fold, runtime: Runtime, observer: DrainObserver
    ) -> None:
        self.id = handle.header.id
        self.handle = handle
        self.fold = fold
        self.claim: Claim | None = None
        self.holder_record: HolderRecord | None = None
        self.reservation: HolderRecord | None = None
        self.labels: Labels | None = None
        self.recovery_due = False
        self.recovery_untold = False
        self.end_seed_due = False
        self.aborted_calls: set[int] = set()
        self.undecided: dict[int, trio.Event] = {}
        self.updated_at = now_ms()
        self.keeper = Keeper()
        self.retired = trio.Event()
        self.gone = trio.Event()
        self._limits = runtime.limits
        self._read_limiter = runtime.read_limiter
        self.drain = Drain(handle, window=runtime.window, observer=observer, holder=self)

    @property
    def header(self) -> Header:
        """The immutable header."""
        return self.handle.header

    @property
    def next_seq(self) -> int:
        """The seq of the caller's next event: a reserved end-seed counts."""
        return self.fold.next_seq + (self.end_seed_due and not self.recovery_due)

    @property
    def durable_seq(self) -> int:
        """How many events a power cut cannot take away."""
        return self.drain.durable_seq

    # ------------------------------------------------------------------ the write handle

    def take(self, claim: Claim, *, resumed: bool) -> None:
        """Give the write handle to `claim`.

        Args:
            claim: Of the new holder. The session has no other.
            resumed: The holder continues its own open turn: nothing is repaired over its head and no end-seed is
                due, unless nothing was written since it had opened the session.
        """
        untouched = self.fold.next_seq == claim.base_seq
        self.claim = claim
        self.recovery_untold = self.recovery_untold and resumed
        self.holder_record = None
        self.recovery_due = self.fold.open_turn is not None and (untouched or not resumed)
        self.end_seed_due = (
            self.fold.next_seq > 0
            and (untouched or not resumed)
            and (self.recovery_due or not self.fold.ends_with_end_seed)
        )

    async def record_holder(self) -> None:
        """Write the holder record now where the log exists; where that fails it goes with the first batch."""
        if self.claim is None or not self.handle.materialised:
            return
        record = self.claim.record()
        await in_thread(self.handle.write_holder, record, limiter=self._read_limiter)
        self.holder_record = record

    def due_holder(self) -> HolderRecord | None:
        """The record that the next batch must make durable first; see `HolderDue`."""
        if self.claim is None or self.holder_record is not None:
            return None
        return self.claim.record()

    def note_holder(self, record: HolderRecord) -> None:
        """Note that the record is durable; see `HolderDue`."""
        self.holder_record = record

    def require_writer(self, writer: str) -> Claim:
        """Return the claim that `writer` proves.

        Raises:
            WriterLostError: It proves none.
        """
        claim = self.claim
        if claim is None or claim.lost or claim.writer != writer:
            raise writer_lost(self.id, "this writer does not hold the write handle any more")
        return claim

    def check_writer(self, writer: str) -> Claim:
        """Return the claim that `writer` proves, if it may append now.

        Raises:
            WriterLostError: The writer proves no claim.
            DshdError: The failure of an earlier notification; told once.
            RecoveryRequiredError: The last turn was interrupted and is not closed yet.
            SessionSealedError, LogChangedError: Nothing can be appended any more.
        """
        claim = self.require_writer(writer)
        failed = claim.notification_error
        if failed is not None:
            claim.notification_error = None
            raise failed.with_facts(notification=True, nextSeq=self.next_seq)
        if self.recovery_due or self.recovery_untold:
            raise recovery_required(self)
        if isinstance(self.drain.failure, SessionSealedError | LogChangedError):
            raise self.drain.failure.with_facts()
        return claim

    def busy(self) -> DshdError:
        """The refusal of a second writer while this session's claim lives."""
        assert self.claim is not None  # noqa: S101  # the registry asks only then
        return busy_error(self.id, self.claim.holder())

    # ------------------------------------------------------------------ admission

    async def admit(self, writer: str, asked: Asked) -> Admission:
        """Admit a call's events, all or none, or find that they were admitted before.

        Raises:
            WriterLostError, RecoveryRequiredError, SeqConflictError, EventInvalidError, FrameTooLargeError: Nothing
                was admitted.
            DshdError: The disk fails and the queue is full.
        """
        sized = False
        while True:
            self.check_writer(writer)
            if asked.expected_seq is not None and asked.expected_seq != self.next_seq:
                need_task()
                found = await self.find(asked)
                if found is None:
                    raise self.seq_conflict(asked.expected_seq)
                return found
            if not sized:
                sized = True
                if await asked.check_sizes(self._limits):
                    continue  # others had a turn meanwhile
            room = self._limits.max_pending_bytes - self.drain.pending_bytes
            if asked.held_bytes <= room or self.drain.clean:
                return self._admit_nowait(asked)
            need_task()
            await self.drain.wait_room(asked.held_bytes, self._limits.max_pending_bytes)

    def _admit_nowait(self, asked: Asked) -> Admission:
        first, now = self.next_seq, now_ms()
        lead = [end_seed(self.fold.next_seq, now)] if self.end_seed_due and asked.count else []
        self.fold.begin()
        try:
            for event in lead:
                self.fold.apply(event)
            events = rules.admit(self.fold, asked.events, now)
            if asked.then is not None:
                events += rules.admit(self.fold, asked.then(self.fold), now, len(events))
        except BaseException:
            self.fold.rollback()
            raise
        self.fold.commit()
        if lead:
            self.end_seed_due = False
        self._queue([*lead, *events], asked.held_bytes)
        return Admission(first, first + len(events))

    def admit_closers(self, events: list[Event]) -> Admission:
        """Queue what closes an interrupted turn, which the fold has taken already; may be empty."""
        first = self.admitted_seq
        if events:
            self.recovery_due = self.end_seed_due = False
            self.recovery_untold = True
            self._queue(events, len(jsontext.encode_decoded(events)))
        return Admission(first, self.admitted_seq)

    def _queue(self, events: list[Event], size: int) -> None:
        self.drain.admit_nowait(events, size)
        if events:
            self.updated_at = now_ms()
        if self.aborted_calls and self.fold.open_step is None:
            self.aborted_calls.clear()

    async def find(self, asked: Asked) -> Admission | None:
        """Find a call's events, with the one that a checkpoint adds, among those admitted before.

        Returns:
            What the call was given then; None where other events, or not all of them, stand there.
        """
        first = asked.expected_seq
        if first is None or first + asked.count > self.next_seq:
            return None
        stored = await self.read(first, asked.count)
        if len(stored) == asked.count and _same(stored, asked):
            return Admission(first, first + asked.count, duplicate=True)
        return None

    def seq_conflict(self, got: int) -> SeqConflictError:
        """The refusal of an append at another seq than the next."""
        expected = self.next_seq
        return SeqConflictError(
            f"session '{self.id}': the next event has seq {expected}, and what is stored from {got} is not what was"
            f" sent; read on from there and send what is missing",
            expected=expected,
            got=got,
            session=self.id,
        )

    # ------------------------------------------------------------------ durability

    @property
    def admitted_seq(self) -> int:
        """The seq after the last admitted event; a reserved end-seed does not count."""
        return self.drain.next_seq

    async def wait_durable(
        self,
        claim: Claim,
        admission: Admission | None = None,
        *,
        begun: Callable[[], None] | None = None,
    ) -> None:
        """Wait until what was admitted up to now, or up to the end of `admission`, is durable.

        Args:
            claim: Of the caller.
            admission: What it was given.
            begun: Called when it is being written: a cancel comes too late from here on.

        Raises:
            WriterLostError: The handle ended while waiting.
            DshdError: The flush failed; with the fact `admitted` where there was an admission with events.
        """
        target = self.admitted_seq
        if admission is not None:
            target = min(target, admission.next_seq)
        try:
            await self.drain.wait_durable(target, materialise=admission is None, begun=begun)
        except WriterLostError:
            raise
        except DshdError as error:
            if admission is None or admission.first_seq == admission.next_seq:
                raise
            raise error.with_facts(admitted=admission.facts()) from None
        if self.claim is not claim or claim.lost:
            raise writer_lost(self.id, "the write handle ended while this call waited")

    async def flush(
        self, writer: str, admitted: Callable[[], None], begun: Callable[[], None]
    ) -> tuple[int, int]:
        """Make everything admitted durable, the bare log of an empty session too. Return next and durable seq."""
        claim = self._require_unfailed(writer)
        next_seq = self.next_seq
        admitted()
        await self.wait_durable(claim, begun=begun)
        return next_seq, self.durable_seq

    def _require_unfailed(self, writer: str) -> Claim:
        claim = self.require_writer(writer)
        failed = claim.notification_error
        if failed is not None:
            claim.notification_error = None
            raise failed.with_facts(notification=True, nextSeq=self.next_seq)
        return claim

    def with_notification_error(self, claim: Claim, result: dict[str, Any]) -> dict[str, Any]:
        """Add the failure of an earlier notification, where one waits to be told."""
        failed, claim.notification_error = claim.notification_error, None
        if failed is not None:
            result["notificationError"] = failed.with_facts(nextSeq=self.next_seq).to_wire()
        return result

    # ------------------------------------------------------------------ reading

    async def read(self, offset: int, length: int | None = None) -> list[Event]:
        """Return admitted events from seq `offset`, durable ones from disk, the others from the queue."""
        durable, pending = self.drain.durable_seq, list(self.drain.pending)
        end = durable + len(pending)
        stop = end if length is None else min(end, offset + length)
        found: list[Event] = []
        if offset < min(stop, durable):
            found = await in_thread(
                lambda: list(self.handle.read(offset, min(stop, durable) - offset)),
                limiter=self._read_limiter,
            )
        if stop > durable:
            found.extend(pending[max(offset - durable, 0) : stop - durable])
        return found


def now_ms() -> int:
    """Epoch milliseconds: the time of events, never of a time-out."""
    return time.time_ns() // 1_000_000


def _same(stored: list[Event], asked: Asked) -> bool:
    if asked.added is not None and not asked.added(stored[-1]):
        return False
    return all(map(rules.same, stored, asked.events))
