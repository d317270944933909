"""The registry: the only map of live sessions, and the only place where one comes to life or ends.

What happens to one id happens under that id's lock, so a session is never opened while it is being closed. Handles
end here: with their connection, with `session.close`, or at shutdown, and always flush first.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
import trio

from dsh_protocol.errors import (
    DshdError,
    OverloadedError,
    SessionExistsError,
    ShuttingDownError,
)
from dsh_protocol.ids import new_session_id
from dshd.sessions.claims import Claim, Wish, check_reserved, continues, hash_writer, writer_lost
from dshd.sessions.ending import flush_left, give_up
from dshd.sessions.fold import Fold
from dshd.sessions.incidents import new_incident
from dshd.sessions.keeping import keep
from dshd.sessions.loading import load
from dshd.sessions.observer import SessionObserver
from dshd.sessions.session import Runtime, Session, now_ms
from dshd.sessions.threads import in_thread
from dshd.sessions.watchers import Watchers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from dsh_protocol.events import Event, Header
    from dsh_protocol.limits import Limits
    from dshd.metrics import Metrics
    from dshd.sessions.claims import Continue, Taker
    from dshd.storage.store import SessionHandle, SessionStore

log = structlog.get_logger()
T = TypeVar("T")

_READ_THREADS = 4
_OPEN_THREADS = 8
_KEEP_THREADS = 2


class Registry:
    """All live sessions of one daemon.

    Args:
        store: Where sessions lie.
        limits: Of size and flow.
        window: The batch window in seconds.
        metrics: Counts what happens.
        nursery: Of the sessions: it ends last, after every connection.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        limits: Limits,
        window: float,
        metrics: Metrics,
        nursery: trio.Nursery,
    ) -> None:
        self.store = store
        self.limits = limits
        self.metrics = metrics
        self.live: dict[str, Session] = {}
        self.watchers = Watchers()
        self.read_limiter = trio.CapacityLimiter(_READ_THREADS)
        self.closing = False
        self._open_limiter = trio.CapacityLimiter(_OPEN_THREADS)
        self._keep_limiter = trio.CapacityLimiter(_KEEP_THREADS)
        self._runtime = Runtime(limits, window, self.read_limiter)
        self._nursery = nursery
        self._locks: dict[str, trio.Lock] = {}

    # ------------------------------------------------------------------ threads and locks

    async def in_reader(self, call: Callable[..., T], *args: Any) -> T:
        """Run a blocking read in a thread of the bounded pool for reads and lists."""
        return await in_thread(call, *args, limiter=self.read_limiter)

    async def in_opener(self, call: Callable[..., T], *args: Any) -> T:
        """Run a blocking change of a session in a thread of the bounded pool for opens."""
        return await in_thread(call, *args, limiter=self._open_limiter)

    @asynccontextmanager
    async def exclusive(self, session_id: str) -> AsyncGenerator[None, None]:
        """Hold the lock of one id."""
        lock = self._locks.setdefault(session_id, trio.Lock())
        async with lock:
            try:
                yield
            finally:
                if not lock.statistics().tasks_waiting:
                    self._locks.pop(session_id, None)

    def refuse_if_closing(self) -> None:
        """Raise ShuttingDownError once the daemon is stopping."""
        if self.closing:
            raise ShuttingDownError("the daemon is stopping; connect again when it is back")

    def _refuse_if_full(self) -> None:
        most = self.limits.max_open_sessions
        if len(self.live) >= most:
            raise OverloadedError(
                f"{most} sessions are open for writing, which is maxOpenSessions; close one, or try again",
                limit="maxOpenSessions",
                maximum=most,
            )

    # ------------------------------------------------------------------ coming to life

    def get(self, session_id: str) -> Session | None:
        """The live session of that id."""
        return self.live.get(session_id)

    def writable(self, session_id: str) -> Session:
        """The live session of that id, for a call that brings a writer.

        Raises:
            WriterLostError: No such session is live, so no writer holds it.
        """
        session = self.live.get(session_id)
        if session is None:
            raise writer_lost(session_id, "nobody has it open for writing")
        return session

    def claim_of(self, session_id: Any, writer: Any) -> Claim | None:
        """The claim that a writer proves, or None."""
        session = self.live.get(session_id) if isinstance(session_id, str) else None
        claim = None if session is None else session.claim
        return claim if claim is not None and claim.writer == writer and not claim.lost else None

    async def create(
        self, header_of: Callable[[str], Header], session_id: str | None, taker: Taker
    ) -> Session:
        """Create a session and give its write handle to `taker`; nothing is on disk yet.

        Args:
            header_of: Makes the header for the id.
            session_id: None for a fresh one.
            taker: The connection that gets the handle.

        Raises:
            SessionExistsError: The id is taken.
        """
        name = new_session_id() if session_id is None else session_id
        async with self.exclusive(name):
            self.refuse_if_closing()
            if name in self.live:
                raise SessionExistsError(
                    f"session '{name}' exists already; open it, or choose another id", session=name
                )
            self._refuse_if_full()
            handle = await self.in_opener(self.store.create, header_of(name))
            session = self._start(handle, Fold())
            session.take(Claim(name, taker, now_ms(), 0), resumed=False)
        return session

    async def open_write(
        self, session_id: str, taker: Taker, continued: Continue | None, *, takeover: bool
    ) -> Session:
        """Give the write handle of a session to `taker`.

        Args:
            session_id: Which session.
            taker: The connection that gets the handle.
            continued: Set by a living agent that goes on with the handle it had.
            takeover: Take a reserved session from a holder that lives but has lost its connection.

        Raises:
            SessionBusyError: The handle is taken, or reserved for a living process.
            WriterLostError: `continued` does not name the last holder.
            SessionNotFoundError, LogCorruptError, FormatUnsupportedError, UnsafePathError: It cannot be opened.
            DshdError: Events of an earlier handle are not on disk and cannot be written now.
        """
        async with self.exclusive(session_id):
            self.refuse_if_closing()
            session = self.live.get(session_id)
            if session is None:
                session = await self._load(session_id, taker, continued, takeover=takeover)
            else:
                await self._regain(session, taker, continued, takeover=takeover)
            session.take(_claim(session, taker, continued), resumed=continued is not None)
            with trio.CancelScope(shield=True):  # whoever was given the handle is told its writer
                await self._record_holder(session)
        return session

    async def _load(
        self, session_id: str, taker: Taker, continued: Continue | None, *, takeover: bool
    ) -> Session:
        self._refuse_if_full()
        loaded = await load(self, session_id, Wish(taker, continued, takeover))
        session = self._start(loaded.handle, loaded.fold)
        session.reservation, session.labels = loaded.reservation, loaded.labels
        return session

    async def _regain(
        self, session: Session, taker: Taker, continued: Continue | None, *, takeover: bool
    ) -> None:
        claim = session.claim
        if claim is not None and not claim.lost:
            if continued is None:
                raise session.busy()
            if not continues(claim.record(), continued, taker):
                raise writer_lost(session.id, "a later holder has it open")
            if (claim.taker.pid, claim.taker.start_time) != (taker.pid, taker.start_time):
                raise session.busy()
            self._lose(session, claim, "another connection of its process continued it")
        else:
            wish = Wish(taker, continued, takeover)
            check_reserved(session.id, session.fold.open_turn, session.reservation, wish)
        await session.drain.wait_durable(session.admitted_seq, losable=False)

    async def _record_holder(self, session: Session) -> None:
        try:
            await session.record_holder()
        except DshdError as error:
            # It is written with the first batch then; a full disk must not keep a session from being opened.
            log.warning("session.holder_record_failed", session=session.id, kind=error.kind)

    def _start(self, handle: SessionHandle, fold: Fold) -> Session:
        session = Session(handle, fold, self._runtime, SessionObserver(self, handle.header.id))
        self.live[session.id] = session
        self._nursery.start_soon(self._run_session, session)
        return session

    async def _run_session(self, session: Session) -> None:
        """Run a session's tasks until it is retired; a failure stays in the session.

        What is pending is the session's and not a task's: where they are cancelled and it is not retired, they begin
        again.
        """
        try:
            while not session.retired.is_set():
                await self._run_tasks(session)
            await keep(session, self._open_limiter)
        except Exception as error:  # noqa: BLE001  # one session's defect must not end the others
            incident = new_incident("session.fault", error, session=session.id)
            session.drain.lose_waiters(incident, every=True)
            if session.claim is not None:
                session.claim.lost = True
        finally:
            with trio.CancelScope(shield=True):
                await self._close_handle(session)
            if self.live.get(session.id) is session:
                del self.live[session.id]
            session.gone.set()

    async def _run_tasks(self, session: Session) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.drain.run)
            nursery.start_soon(session.keeper.run, session, self._keep_limiter)
            await session.retired.wait()
            nursery.cancel_scope.cancel()

    async def close_handle(self, handle: SessionHandle) -> None:
        """Close a handle for writing: on the event loop where there is no thread for it, for open it keeps its id."""
        try:
            await self.in_opener(handle.close)
        except OverloadedError:
            handle.close()  # nothing where it was the closing that was refused something

    async def _close_handle(self, session: Session) -> None:
        try:
            await self.close_handle(session.handle)
        except (DshdError, OSError) as error:
            log.warning("session.close_failed", session=session.id, exc_info=error)
        if not session.handle.materialised:
            self.watchers.end(session.id, "the session was never written")

    # ------------------------------------------------------------------ ending

    def _lose(self, session: Session, claim: Claim, why: str, *, closed: bool = False) -> None:
        """End a claim at once; from here on its process has the session reserved, unless it has closed it."""
        claim.lost = True
        session.reservation = None if closed else claim.record()
        session.drain.lose_waiters(writer_lost(session.id, why))

    def lose_connection(self, connection: object) -> None:
        """End every handle of a connection that is gone; what it had admitted is flushed by the registry."""
        for session in list(self.live.values()):
            claim = session.claim
            if claim is not None and claim.taker.connection is connection and not claim.lost:
                self._lose(session, claim, "the connection that held it has ended")
                self._nursery.start_soon(self._end_claim, session, claim)

    async def close(self, session_id: str, writer: str) -> dict[str, Any]:
        """End a write handle: flush, free it, and forget the session when everything is on disk.

        Not cancellable once the writer is accepted.

        Raises:
            WriterLostError: The writer holds nothing.
            DshdError: The flush failed. The handle is free all the same; the events stay with the session.
        """
        session = self.writable(session_id)
        claim = session.require_writer(writer)
        self._lose(session, claim, "session.close ended it", closed=True)
        error: DshdError | None = None
        with trio.CancelScope(shield=True):
            error = await self._end_claim(session, claim, closed=True)
        if error is not None:
            raise error.with_facts()
        result = {"nextSeq": session.admitted_seq, "durableSeq": session.durable_seq}
        return session.with_notification_error(claim, result)

    async def _end_claim(
        self, session: Session, claim: Claim, *, closed: bool = False
    ) -> DshdError | None:
        async with self.exclusive(session.id):
            if session.claim is not claim:
                return None
            error = await flush_left(session)
            session.claim = None
            if closed and session.handle.materialised:
                await self._clear_holder(session)
            if session.drain.clean and error is None:
                await self._retire(session)
        return error

    async def _clear_holder(self, session: Session) -> None:
        try:
            await self.in_opener(session.handle.clear_holder)
        except (DshdError, OSError) as error:
            log.warning("session.holder_record_failed", session=session.id, exc_info=error)

    async def _retire(self, session: Session) -> None:
        session.retired.set()
        await session.gone.wait()

    async def flush_all(self, limit_s: float) -> list[Session]:
        """Try once, for `limit_s` at most, to make every session's admitted events durable.

        Returns:
            The sessions that still have something to write.
        """
        with trio.move_on_after(limit_s):
            async with trio.open_nursery() as nursery:
                for session in list(self.live.values()):
                    nursery.start_soon(flush_left, session)
        return [session for session in self.live.values() if not session.drain.clean]

    async def wait_ended(self, limit_s: float) -> None:
        """Wait until every retired session has released its log, for `limit_s` at most."""
        with trio.move_on_after(limit_s):
            for session in list(self.live.values()):
                await session.gone.wait()

    def summary(self) -> str:
        """One line about the live sessions, for people."""
        failing = [one.drain.failure for one in self.live.values() if one.drain.failure]
        text = f"{len(self.live)} live sessions"
        if failing:
            text += f", {len(failing)} cannot write ({failing[0].kind})"
        return text

    async def shut_down(self, limit_s: float) -> bool:
        """Flush and end every session; what cannot be written within `limit_s` is logged by id and seqs.

        Returns:
            Whether everything admitted is durable.
        """
        self.closing = True
        await self.flush_all(limit_s)
        return give_up(list(self.live.values()))

    # ------------------------------------------------------------------ what handlers ask

    def batch_durable(self, session_id: str, events: Sequence[Event], size: int) -> None:
        """Tell those who follow the session, and its keeper."""
        session = self.live.get(session_id)
        if session is not None:
            session.keeper.touch()
        self.watchers.publish(session_id, events, size)

    async def require_stored(self, session_id: str) -> None:
        """Raise SessionNotFoundError unless the session is live or on disk."""
        if session_id not in self.live:
            await self.in_reader(self.store.stat, session_id)


def _claim(session: Session, taker: Taker, continued: Continue | None) -> Claim:
    """The claim of a new holder, or of one that goes on with what it had."""
    before = session.reservation
    if continued is None or before is None:
        return Claim(session.id, taker, now_ms(), session.fold.next_seq)
    stated = hash_writer(continued.writer)
    return Claim(session.id, taker, now_ms(), before.base_seq, continued_hash=stated)
