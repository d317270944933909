from __future__ import annotations

from typing import Any

import pytest

from dsh_client.errors import ConnectionLostError, LatchedError
from dsh_client.exchange import Ticket
from dsh_client.ledger import APPEND, Entry, Ledger
from dsh_protocol.errors import (
    CallCancelledError,
    DshdError,
    EventInvalidError,
    NoSpaceError,
    SeqConflictError,
)


def event(kind: str = "x", *cited: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": kind, "data": None}
    if cited:
        made["sourceEventSeqs"] = list(cited)
    return made


def ledger(next_seq: int = 10, durable: int = 10) -> Ledger:
    return Ledger("s", "writer", next_seq, next_seq, durable)


def sent(book: Ledger, method: str, *events: dict[str, Any], waited: bool = True) -> Entry:
    entry = Entry(method, list(events), waited=waited)
    book.add(entry)
    entry.ticket = Ticket(entry.first, method)
    return entry


def answer(entry: Entry, durable: int | None = None, error: DshdError | None = None) -> None:
    assert entry.ticket is not None
    entry.ticket.settle({"durableSeq": durable}, error)


def test_seqs_are_given_in_the_order_of_recording() -> None:
    book = ledger()
    first = sent(book, APPEND, event(), event())
    second = sent(book, "checkpoint.tool", event("tool/call"))
    assert (first.first, second.first, book.next_seq) == (10, 12, 13)
    assert first.params("s", "w")["expectedSeq"] == 10


def test_the_event_that_a_checkpoint_builds_is_counted_and_not_sent() -> None:
    book = ledger()
    entry = sent(book, "checkpoint.turnEnd", event(), event("turn/end"))
    params = entry.params("s", "w")
    assert (params["events"], params["expectedSeq"], book.next_seq) == ([event()], 10, 12)


def test_an_entry_stays_until_it_is_durable() -> None:
    book = ledger()
    entry = sent(book, APPEND, event())
    answer(entry, durable=10)
    book.absorb()
    entry.abandon()
    assert book.entries == [entry]
    answer(sent(book, "session.flush", waited=False), durable=11)
    book.absorb()
    assert book.entries == []


def test_a_refused_call_closes_its_gap_and_what_follows_is_sent_again_with_what_it_cites() -> None:
    book = ledger()
    refused = sent(book, APPEND, event(), event())
    call = sent(book, APPEND, event("tool/call"))
    result = sent(book, APPEND, event("tool/result", 3, call.first))
    answer(refused, error=EventInvalidError("no", index=0, rule="r"))
    answer(call, error=SeqConflictError("no", expected=10, got=12))
    assert book.absorb() == [call, result]
    assert (call.first, result.first, book.next_seq) == (10, 11, 12)
    assert result.events[0]["sourceEventSeqs"] == [3, 10]
    assert (refused.placed, call.error, book.failure) == (False, None, None)


def test_a_refused_checkpoint_takes_the_checkpoints_after_it_along() -> None:
    book = ledger()
    first = sent(book, "checkpoint.tool", event("tool/call"))
    second = sent(book, "checkpoint.tool", event("tool/call"))
    record = sent(book, APPEND, event())
    answer(first, error=EventInvalidError("no", index=0, rule="r"))
    assert book.absorb() == [record]
    assert isinstance(second.error, LatchedError)
    assert (second.placed, record.first) == (False, 10)


def test_a_failed_batch_that_is_admitted_keeps_its_place() -> None:
    book = ledger()
    entry = sent(book, "checkpoint.request", event())
    admitted = {"firstSeq": 8, "nextSeq": 11}
    answer(entry, error=NoSpaceError("full", admitted=admitted))
    assert book.absorb() == []
    assert (entry.admitted, book.next_seq, book.unsent()) == (True, 11, [])
    with pytest.raises(LatchedError, match="full"):
        book.check_latch()


def test_an_append_over_the_daemons_bound_is_kept_for_the_flush() -> None:
    book = ledger()
    entry = sent(book, APPEND, event())
    answer(entry, error=NoSpaceError("full", admitted={"firstSeq": 8, "nextSeq": 10}))
    book.absorb()
    assert book.unsent() == [entry]
    assert book.failure is not None


def test_a_cancelled_call_that_left_nothing_is_taken_out_and_does_not_latch() -> None:
    book = ledger()
    entry = sent(book, "checkpoint.tool", event("tool/call"), waited=False)
    answer(entry, error=CallCancelledError("cancelled"))
    book.absorb()
    assert (book.entries, book.next_seq, book.failure) == ([], 10, None)


def test_after_a_lost_connection_a_waiting_checkpoint_is_repeated_and_an_append_answered() -> None:
    book = ledger()
    record = sent(book, APPEND, event())
    waiting = sent(book, "checkpoint.tool", event("tool/call"))
    lost = sent(book, APPEND, event())
    for entry in (record, waiting, lost):
        assert entry.ticket is not None
        entry.ticket.settle(None, ConnectionLostError("gone"))
    assert book.absorb() == []
    assert book.resume("new", 12, 10) == [waiting, lost]
    assert record.result == {"firstSeq": 10, "nextSeq": 11, "durableSeq": 10, "duplicate": True}
    assert waiting.method == "checkpoint.tool"
    assert (waiting.first, lost.first, book.writer) == (11, 12, "new")


def test_after_a_lost_connection_an_abandoned_checkpoint_is_sent_as_a_mere_record() -> None:
    book = ledger()
    entry = sent(book, "checkpoint.tool", event("tool/call"), waited=False)
    entry.extra = {"callId": "c"}
    assert book.resume("new", 10, 10) == [entry]
    assert entry.params("s", "new") == {
        "id": "s",
        "writer": "new",
        "events": [event("tool/call")],
        "expectedSeq": 10,
    }


def test_of_a_batch_that_a_torn_write_cut_only_the_rest_is_sent_again() -> None:
    book = ledger()
    entry = sent(book, APPEND, event("a"), event("b"), event("c"))
    assert book.resume("new", 11, 11) == [entry]
    assert (entry.first, [e["type"] for e in entry.events]) == (11, ["b", "c"])


def test_an_end_seed_that_was_never_written_leaves_no_gap() -> None:
    book = ledger(next_seq=11, durable=10)
    entry = sent(book, APPEND, event("a"), event("b", 11))
    assert book.known_seq == 11
    assert book.resume("new", 10, 10) == [entry]
    assert (entry.first, entry.events[1]["sourceEventSeqs"], book.next_seq) == (10, [10], 12)


@pytest.mark.parametrize("next_seq", [9, 12])
def test_a_log_that_lost_or_gained_events_is_not_written_on(next_seq: int) -> None:
    book = ledger()
    sent(book, APPEND, event())
    with pytest.raises(SeqConflictError, match="another program"):
        book.resume("new", next_seq, 9)
