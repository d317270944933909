"""What one write handle has recorded and cannot yet call durable: the state machine under both flavours.

It owns the seqs of a handle, the calls whose events a power cut could still take, and the latch. No I/O, no clock.
The one rule: an event stays here until the daemon has said that it is durable or that it refuses it, so that after a
lost connection everything that matters can be sent again under the same seq.

Entries stand in the order in which they were sent, which is the order in which the daemon admits and answers them. Not
thread-safe: `dsh_client.handle` brings the guard. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsh_client.errors import ClientError, LatchedError
from dsh_client.exchange import as_object
from dsh_protocol.errors import (
    CallCancelledError,
    DshdError,
    EventInvalidError,
    FrameTooLargeError,
    InternalFaultError,
    InvalidParamsError,
    OverloadedError,
    SeqConflictError,
    ShuttingDownError,
)

if TYPE_CHECKING:
    from dsh_client.exchange import Ticket

APPEND = "session.append"
FLUSH = "session.flush"

_BUILT_BY_DAEMON = frozenset({"checkpoint.tool", "checkpoint.turnEnd"})
"""Checkpoints whose last event is not in `events`: the daemon makes it of the other parameters."""

_NO_TRACE = (
    CallCancelledError,
    EventInvalidError,
    FrameTooLargeError,
    InvalidParamsError,
    OverloadedError,
)
"""Errors that, without `admitted`, say that the call left nothing. After others its events stay with the handle."""

_OUT_OF_STEP = (SeqConflictError, InternalFaultError)
"""Errors after which only the daemon knows where the log ends."""


@dataclass(eq=False, slots=True)
class Entry:
    """One call of a write handle, until its events are durable.

    Attributes:
        method: The method to send.
        events: Every event that it records, in order, those that the daemon builds included.
        extra: Parameters besides `id`, `writer`, `events` and `expectedSeq`.
        first: The seq of its first event.
        waited: Whether somebody waits for the outcome.
        placed: Whether its events have their place in the log, admitted or still to be sent.
        ticket: The call on its way or answered; None when it has to be sent (again).
        admitted: Whether the daemon holds the events.
        result: The daemon's answer, when it is final.
        error: Why there is none, when that is final.
    """

    method: str
    events: list[dict[str, Any]]
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    first: int = -1
    waited: bool = True
    placed: bool = False
    ticket: Ticket | None = None
    admitted: bool = False
    result: dict[str, Any] | None = None
    error: DshdError | ClientError | None = None

    @property
    def end(self) -> int:
        """The seq after its last event."""
        return self.first + len(self.events)

    @property
    def is_checkpoint(self) -> bool:
        """Whether a failure of it must stop the agent."""
        return self.method != APPEND

    def params(self, session_id: str, writer: str) -> dict[str, Any]:
        """Return the parameters under which it is sent, for the first time or again."""
        params: dict[str, Any] = {"id": session_id, "writer": writer, **self.extra}
        sent = self.events[:-1] if self.method in _BUILT_BY_DAEMON else self.events
        if sent:
            params["events"] = sent
        if self.events:
            params["expectedSeq"] = self.first
        return params

    def abandon(self) -> None:
        """Note that nobody waits any more; what it records still has to reach the log."""
        self.waited = False

    def move(self, distance: int, pivot: int) -> None:
        """Shift its seqs, and what its events cite at or after `pivot`, by `distance`."""
        self.first += distance
        for event in self.events:
            cited = event.get("sourceEventSeqs")
            if cited:
                event["sourceEventSeqs"] = [s + distance if s >= pivot else s for s in cited]


@dataclass(eq=False, slots=True)
class Ledger:
    """The seqs, the open entries and the latch of one write handle.

    Attributes:
        session_id: The session.
        writer: The right to append, as the daemon last gave it.
        base: The seq of this handle's first event.
        next_seq: The seq of the next event to be recorded.
        durable_seq: How many events the daemon has called durable.
        entries: What is not durable yet, in order.
        failure: What closed the latch, or None while it is open.
        refused: An entry nobody waited for that the daemon refused; `flush` reports it.
    """

    session_id: str
    writer: str
    base: int
    next_seq: int
    durable_seq: int
    entries: list[Entry] = field(default_factory=list[Entry])
    failure: BaseException | None = None
    refused: DshdError | None = None

    @property
    def known_seq(self) -> int:
        """The next seq to state in `continue`: nothing of ours at or after it can be taken for somebody else's."""
        return max(self.base, self.durable_seq)

    def check_latch(self) -> None:
        """Raise `LatchedError` if an earlier checkpoint failed."""
        if self.failure is not None:
            raise LatchedError(
                f"session {self.session_id!r} is latched since a checkpoint failed ({self.failure}); nothing was sent "
                "and nothing may run; call flush() once the cause is gone",
                self.failure,
            ) from self.failure

    def latch(self, failure: BaseException) -> None:
        """Close the latch; the first failure is the one that is told."""
        if self.failure is None:
            self.failure = failure

    def add(self, entry: Entry) -> None:
        """Give seqs to a new call's events."""
        entry.first = self.next_seq
        entry.placed = True
        self.entries.append(entry)
        self.next_seq = entry.end

    def withdraw(self, entry: Entry) -> list[Entry]:
        """Take out a call that left no trace in the log; return the later ones, which must be sent under new seqs."""
        at = self.entries.index(entry)
        later = self.entries[at + 1 :]
        del self.entries[at]
        entry.placed = False
        gap = len(entry.events)
        self.next_seq -= gap
        if gap == 0:
            return []
        moved = [other for other in later if other.events]
        for other in moved:
            other.move(-gap, entry.end)
            other.ticket = None
        return moved

    def absorb(self) -> list[Entry]:
        """Take in every answer that has come; return the entries that must be sent (again), in order.

        Whoever holds the guard does this for all entries, his own or not: the answer to an earlier call decides what
        the answer to a later one means.
        """
        again: list[Entry] = []
        # Answers come in order, and meanwhile: looked at from behind, none is seen without those before it.
        answered = [e for e in reversed(self.entries) if e.ticket is not None and e.ticket.answered]
        for entry in reversed(answered):
            ticket = entry.ticket
            if ticket is None or entry not in self.entries:
                continue  # an answer before it has moved it, or taken it out
            if isinstance(ticket.error, ClientError | ShuttingDownError):
                entry.ticket = None  # nobody knows: it is sent again after the reconnect
            elif ticket.error is None:
                self._settle(entry, as_object(ticket.result) or {})
            else:
                again = self._refuse(entry, ticket.error) or again
        self._drop_durable()
        return again

    def unsent(self) -> list[Entry]:
        """Return the entries that are not on their way and whose events the daemon is not known to hold."""
        return [entry for entry in self.entries if entry.ticket is None and not entry.admitted]

    def in_doubt(self) -> bool:
        """Whether the daemon answered something after which only `continue` tells where the log ends."""
        return any(isinstance(e.error, _OUT_OF_STEP) and not e.admitted for e in self.entries)

    def resume(self, writer: str, next_seq: int, durable_seq: int) -> list[Entry]:
        """Take the daemon's word on where the log ends; return what must be sent again, in order.

        Raises:
            SeqConflictError: Acknowledged events are gone, or somebody else's are there.
        """
        if not self.durable_seq <= next_seq <= self.next_seq:
            raise SeqConflictError(
                f"session {self.session_id!r} ends at seq {next_seq}, but {self.durable_seq} events were acknowledged "
                f"to this client and it has recorded up to {self.next_seq}; another program changed it",
                expected=next_seq,
                got=self.next_seq,
            )
        self.writer = writer
        self.durable_seq = max(self.durable_seq, durable_seq)
        self._drop_durable()
        again: list[Entry] = []
        for entry in self.entries:
            entry.ticket, entry.error = None, None
            if not entry.waited and entry.is_checkpoint:
                entry.method, entry.extra = APPEND, {}  # a record is left of it, no decision
            if entry.events and entry.end <= next_seq:
                self._held(entry)
            else:
                entry.admitted = False
                _cut(entry, next_seq)
            if not entry.admitted or (entry.waited and entry.is_checkpoint):
                again.append(entry)
        self._close_gap(next_seq)
        return again

    def _held(self, entry: Entry) -> None:
        entry.admitted = True
        if entry.waited and not entry.is_checkpoint:
            entry.result = {
                "firstSeq": entry.first,
                "nextSeq": entry.end,
                "durableSeq": self.durable_seq,
                "duplicate": True,
            }

    def _close_gap(self, next_seq: int) -> None:
        """Renumber what is sent again, where the log ends before it: an end-seed that was reserved, never written."""
        lost = [entry for entry in self.entries if not entry.admitted]
        if lost and lost[0].first > next_seq:
            pivot = lost[0].first
            for entry in lost:
                entry.move(next_seq - pivot, pivot)
        self.next_seq = lost[-1].end if lost else next_seq
        self.base = min(self.base, next_seq)

    def _settle(self, entry: Entry, result: dict[str, Any]) -> None:
        entry.admitted = True
        entry.result = result
        durable = result.get("durableSeq")
        if isinstance(durable, int):
            self.durable_seq = max(self.durable_seq, durable)
        if not entry.events:
            self.entries.remove(entry)
        entry.ticket = None

    def _refuse(self, entry: Entry, error: DshdError) -> list[Entry]:
        entry.ticket = None
        entry.error = error
        entry.admitted = _was_admitted(entry, error)
        no_trace = not entry.events or (isinstance(error, _NO_TRACE) and not entry.admitted)
        cancelled = isinstance(error, CallCancelledError)
        if not cancelled and (entry.is_checkpoint or not no_trace or not entry.waited):
            self.latch(error)
        if not cancelled and not entry.waited:
            self.refused = self.refused or error
        if not no_trace:
            return []
        later = self.withdraw(entry)
        return later if self.failure is None else self._turn_away(later)

    def _turn_away(self, later: list[Entry]) -> list[Entry]:
        """Fail the checkpoints among calls that would have to be sent again: the latch has closed meanwhile."""
        for entry in later:
            if entry.waited and entry.is_checkpoint:
                try:
                    self.check_latch()
                except LatchedError as error:
                    entry.error = error
                self.withdraw(entry)
        return [entry for entry in later if entry in self.entries]

    def _drop_durable(self) -> None:
        self.entries = [
            e for e in self.entries if e.waited or (e.events and e.end > self.durable_seq)
        ]


def _was_admitted(entry: Entry, error: DshdError) -> bool:
    """Whether the error says that the daemon holds the entry's events all the same."""
    span = as_object(error.facts.get("admitted"))
    if span is None or not entry.events:
        return False
    first, after = span.get("firstSeq"), span.get("nextSeq")
    return isinstance(first, int) and isinstance(after, int) and first <= entry.first < after


def _cut(entry: Entry, next_seq: int) -> None:
    """Leave out what the log already holds of a batch that a torn write cut."""
    held = next_seq - entry.first
    if entry.events and held > 0:
        entry.events = entry.events[held:]
        entry.first = next_seq
