"""Claims: who has a session's write handle, who had it, and whether that one still lives.

A claim is the right of one connection to append. It ends with that connection or with `session.close`, never by a
time-out. What outlives it is the holder record beside the log: a turn left open by a process that is still alive is
that process's to continue, and nobody else's to repair.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import SessionBusyError, WriterLostError
from dsh_protocol.ids import new_writer
from dshd.sessions.processes import boot_id, process_alive
from dshd.storage.store import HolderRecord

if TYPE_CHECKING:
    from dsh_protocol.errors import DshdError


@dataclass(frozen=True, slots=True)
class Taker:
    """Who asks for a write handle: a connection, the process at its other end, the name it gave.

    `connection` is compared by identity only. `pid` is 0 and `start_time` None where the kernel could not tell.
    """

    connection: object
    pid: int
    start_time: int | None
    client: str


@dataclass(frozen=True, slots=True)
class Continue:
    """What a living agent states when it goes on with its handle: the next seq it knows, the writer it held."""

    next_seq: int
    writer: str


@dataclass(frozen=True, slots=True)
class Wish:
    """How a taker asks: as one that goes on with the handle it had, or over a reservation, or neither."""

    taker: Taker
    continued: Continue | None = None
    takeover: bool = False


@dataclass(eq=False, slots=True)
class Claim:
    """The write handle of one session, as its holder has it."""

    session_id: str
    taker: Taker
    since: int
    base_seq: int
    continued_hash: str = ""
    writer: str = field(default_factory=new_writer)
    lost: bool = False
    notification_error: DshdError | None = None

    def record(self) -> HolderRecord:
        """What is kept of this claim beside the log."""
        return HolderRecord(
            writer_hash=hash_writer(self.writer),
            pid=self.taker.pid,
            start_time=self.taker.start_time or 0,
            boot_id=boot_id(),
            client=self.taker.client,
            since=self.since,
            base_seq=self.base_seq,
            continued_hash=self.continued_hash,
        )

    def holder(self) -> dict[str, Any]:
        """The holder as the wire tells it."""
        return {
            "pid": self.taker.pid,
            "client": self.taker.client,
            "since": self.since,
            "connected": not self.lost,
        }


def hash_writer(writer: str) -> str:
    """SHA-256 of a writer string: what is on disk does not give the right to write."""
    return hashlib.sha256(writer.encode("utf-8", "surrogatepass")).hexdigest()


def holder_alive(record: HolderRecord) -> bool:
    """Whether the process that held the handle may still be running.

    A record of another boot is dead. Where the kernel told no pid the answer is yes: then only `takeover` ends it.
    """
    if record.boot_id != boot_id():
        return False
    if record.pid == 0:
        return True
    return process_alive(record.pid, record.start_time)


def same_process(record: HolderRecord, taker: Taker) -> bool:
    """Whether the taker is the very process of the record, not another one with its reused pid."""
    return (
        record.pid != 0
        and record.boot_id == boot_id()
        and (record.pid, record.start_time) == (taker.pid, taker.start_time)
    )


def continues(record: HolderRecord, continued: Continue, taker: Taker) -> bool:
    """Whether the writer is the one of the record.

    The same process may also bring the one before it: the answer that carried the new one may have been lost.
    """
    stated = hash_writer(continued.writer)
    if stated == record.writer_hash:
        return True
    return stated == record.continued_hash and same_process(record, taker)


def check_reserved(
    session_id: str, open_turn: Any, record: HolderRecord | None, wish: Wish
) -> None:
    """Refuse a taker while the last holder is alive and may go on with its open turn.

    Args:
        session_id: For the text.
        open_turn: None where none is open: then nothing is reserved.
        record: Of the last holder, where there was one that did not close.
        wish: Who asks, and how.

    Raises:
        SessionBusyError: It is reserved for another process.
        WriterLostError: The taker wants to continue a handle that was closed or that somebody took since.
    """
    if wish.continued is not None:
        if record is None or not continues(record, wish.continued, wish.taker):
            raise writer_lost(session_id, "it was closed, or a later holder has opened it")
        return
    if open_turn is None or record is None or wish.takeover:
        return
    if not same_process(record, wish.taker) and holder_alive(record):
        raise busy_error(session_id, record_holder(record))


def record_holder(record: HolderRecord) -> dict[str, Any]:
    """The holder of a reserved session as the wire tells it."""
    return {
        "pid": record.pid,
        "client": record.client,
        "since": record.since,
        "connected": False,
    }


def busy_error(session_id: str, holder: dict[str, Any]) -> SessionBusyError:
    """The refusal of a second writer, with everything that is known of the first."""
    who = f"pid {holder['pid']} ({holder['client']})"
    if holder["connected"]:
        text = f"is open for writing by {who}; open it for reading, or close the other client"
    else:
        text = (
            f"has an open turn that {who} may continue, since that process is alive;"
            " wait for it to exit, or open with takeover"
        )
    return SessionBusyError(f"session '{session_id}' {text}", session=session_id, holder=holder)


def writer_lost(session_id: str, why: str) -> WriterLostError:
    """The refusal of a writer string that does not hold the handle."""
    return WriterLostError(
        f"session '{session_id}': {why}; open the session again to get its state and a new writer",
        session=session_id,
    )
