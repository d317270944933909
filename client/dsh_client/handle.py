"""The write handle of one session: how calls, reconnects and the latch work together, written once for both flavours.

Everything that waits goes through `Ports`, whose blocking form never suspends: the blocking client runs these
coroutines with `run`, the asynchronous one awaits them. The one rule: seqs are given and calls are sent inside the
guard, in one go, so that the order of seqs is the order on the socket.

Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.errors import (
    ClientError,
    ConnectionLostError,
    DaemonUnavailableError,
    MisuseError,
)
from dsh_client.exchange import as_object
from dsh_client.ledger import APPEND, FLUSH, Entry, Ledger
from dsh_client.opening import take
from dsh_protocol.errors import (
    DshdError,
    SessionNotFoundError,
    ShuttingDownError,
)
from dsh_protocol.ids import new_session_id

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from dsh_client.exchange import Ticket
    from dsh_client.opening import Opening
    from dsh_client.ports import Line, Ports

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0


class Handle:
    """The write handle of one session, across connections and daemons.

    Attributes:
        ledger: What is recorded and not yet durable.
        session: The session as the daemon described it at open.
        recovery: What the last interrupted turn left, committed; None where there is nothing.
    """

    def __init__(self, ports: Ports, opening: Opening) -> None:
        """Make a handle that is not open."""
        self._ports = ports
        self._opening = opening
        self._patience = ports.timeout
        self._line: Line | None = None
        self._asked: tuple[Line, Ticket] | None = None
        self.session: dict[str, Any] = {}
        self.recovery: dict[str, Any] | None = None
        self.ledger = Ledger(opening.id or new_session_id(), "", 0, 0, 0)

    @property
    def id(self) -> str:
        """The session's id."""
        return self.ledger.session_id

    async def open(self) -> None:
        """Take the write handle and close the turn that its last holder left open, if any.

        Raises:
            SessionBusyError: Somebody else has it; the facts say who.
            DshdError: Why the session cannot be opened for writing.
            DaemonUnavailableError: No daemon in time.
        """
        deadline = self._deadline()
        again = False

        async def attempt(line: Line) -> None:
            nonlocal again
            before, again = again, True
            settled = False
            try:
                await self._open_on(line, deadline, again=before)
                settled = True
            except (DshdError, ClientError):
                settled = True
                raise
            finally:
                if not settled:
                    line.close()  # cancelled: with the connection ends a handle that nobody would know of

        self._line = await self._persist(attempt, deadline, patient=False)

    async def record(self, events: list[dict[str, Any]]) -> Entry:
        """Append events; return their entry, whose `first` is their seq. They are admitted, not yet durable.

        While the latch is closed they are kept (and sent, where there is a connection) without waiting: what has
        happened belongs into the log even if nothing more may happen. `flush` answers for them.

        Raises:
            EventInvalidError: A rule of the log forbids them; nothing is recorded.
            DshdError: Why the daemon did not take them.
            ClientError: No answer; they are kept and sent again by `flush`.
        """
        if self.ledger.failure is not None:
            return self.keep(events)
        entry = Entry(APPEND, events)
        await self._call(entry, gated=False)
        return entry

    def keep(self, events: list[dict[str, Any]]) -> Entry:
        """Append events without waiting for an answer; return their entry. Never raises for a lost daemon.

        For what has happened when there is no time or no use to wait: the closing of a cancelled turn, a result
        after the latch closed. `flush` and later checkpoints answer for them.
        """
        deadline = self._deadline()
        with self._ports.guard():
            self._absorb(deadline)
            behind = bool(self.ledger.unsent())
            entry = Entry(APPEND, events, waited=False)
            self.ledger.add(entry)
            if not behind:
                self._send([entry], deadline)
            return entry

    async def checkpoint(self, entry: Entry) -> dict[str, Any]:
        """Record an entry's events, the checkpoint's own included, and wait until it is passed.

        Afterwards `entry.placed` tells whether its events are (or will be) in the log, passed or not.

        Raises:
            LatchedError: An earlier checkpoint failed; nothing is sent.
            DshdError: It failed. The latch is closed from here on.
            ClientError: No answer in time. Likewise.
        """
        return await self._call(entry, gated=True)

    def launch(self, *entries: Entry) -> None:
        """Send checkpoints in one go and return at once; the next one that is waited for answers for them too.

        If one fails, the latch closes, whoever waits for what at that time. Nobody's any more: `entry.abandon()`.

        Raises:
            LatchedError: An earlier checkpoint failed; nothing is sent.
            DshdError: They cannot be sent; nothing is recorded.
        """
        self._launch(*entries, gated=True)

    async def land(self, entry: Entry) -> dict[str, Any]:
        """Wait until a checkpoint that was launched is passed; as `checkpoint`."""
        return await self._land(entry, gated=True)

    async def flush(self) -> int:
        """Wait until everything recorded is durable; return how many events are. Opens the latch.

        After a lost connection it reconnects and sends again what the daemon does not have.

        Raises:
            DshdError: The flush failed, or an event recorded while the latch was closed was refused (told once).
            ClientError: No daemon or no answer in time. The latch stays closed.
        """
        deadline = self._deadline()
        try:
            with self._ports.guard():
                self._absorb(deadline)
            if self._line is not None and self.ledger.in_doubt():
                await self._mend(self._line, deadline)
            with self._ports.guard():
                self._send_all(self.ledger.unsent(), deadline)
            await self._call(Entry(FLUSH, []), gated=False)
            with self._ports.guard():
                refused, self.ledger.refused = self.ledger.refused, None
                if refused is not None:
                    raise refused
                self.ledger.failure = None
        except (DshdError, ClientError) as failure:
            self.ledger.latch(failure)
            raise
        return self.ledger.durable_seq

    async def close(self, within: float | None = None) -> None:
        """Give the handle up; what is recorded is made durable first.

        Args:
            within: Seconds that it may take, where that is less than the client's time-out.

        Raises:
            DshdError: That failed; the handle is free all the same, and the events stay with the daemon.
            ClientError: The daemon could not be asked.
        """
        if within is not None:
            self._patience = min(self._patience, within)
        if self.ledger.unsent():
            await self.flush()
        await self.ask("session.close", {"id": self.id, "writer": self.ledger.writer})

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Make a call that records nothing, on this handle's connection, reconnecting as needed."""
        until = self._deadline()
        while True:
            line = self._line
            if line is None:
                raise MisuseError(f"session {self.id!r} is not open")
            try:
                return await self._ask_on(line, method, params, until)
            except (ConnectionLostError, ShuttingDownError):
                await self._mend(line, until)
                if "writer" in params:
                    params = {**params, "writer": self.ledger.writer}

    def stamp(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of an event with the time at which it happened, however late it is sent."""
        return {"time": self._ports.wall_clock(), **event}

    # -- calls that record ------------------------------------------------------------------------------------------

    async def _call(self, entry: Entry, *, gated: bool) -> dict[str, Any]:
        await self._ports.ready(self._line, entry.events)
        self._launch(entry, gated=gated)
        return await self._land(entry, gated=gated)

    def _launch(self, *entries: Entry, gated: bool) -> None:
        """Give entries their seqs and send them; `_land` waits for one, or it is abandoned."""
        deadline = self._deadline()
        try:
            with self._ports.guard():
                self._absorb(deadline)
                if gated:
                    self.ledger.check_latch()
                for entry in entries:
                    self.ledger.add(entry)
                self._send(entries, deadline)
        except BaseException as failure:
            for entry in entries:
                entry.abandon()
            if isinstance(failure, ClientError):
                self.ledger.latch(failure)
            raise

    async def _land(self, entry: Entry, *, gated: bool) -> dict[str, Any]:
        try:
            result = await self._outcome(entry, self._deadline())
            if gated:
                self.ledger.check_latch()  # closed while this call was under way: nothing may run
        except ClientError as failure:
            self.ledger.latch(failure)
            raise
        else:
            return result
        finally:
            entry.abandon()

    async def _outcome(self, entry: Entry, deadline: float) -> dict[str, Any]:
        """Wait for an entry's answer; reconnect and let it be sent again as often as the deadline allows."""
        while True:
            with self._ports.guard():
                self._absorb(deadline)
                if entry.error is not None:
                    raise entry.error
                if entry.result is not None:
                    return entry.result
                line, ticket = self._line, entry.ticket
            if line is None:
                raise MisuseError(f"session {self.id!r} is not open")
            if ticket is None or line.lost is not None:
                await self._mend(line, deadline)
            else:
                await self._ports.wait(line, ticket, deadline - self._ports.now())

    def _absorb(self, deadline: float) -> None:
        self._send_all(self.ledger.absorb(), deadline)

    def _send_all(self, entries: list[Entry], deadline: float) -> None:
        for entry in entries:
            self._send([entry], deadline)

    def _send(self, entries: Sequence[Entry], deadline: float) -> None:
        """Send entries on the living connection, if there is one, in one go; else after the reconnect."""
        line, ledger = self._line, self.ledger
        if line is None or line.lost is not None:
            return
        calls = [(entry.method, entry.params(self.id, ledger.writer)) for entry in entries]
        for entry in entries:
            entry.error = None
        try:
            tickets = line.start_all(calls, deadline - self._ports.now())
        except ConnectionLostError:
            return
        except DshdError:
            for entry in reversed(entries):
                ledger.withdraw(entry)  # it never left: not JSON, or too long for a line
            raise
        for entry, ticket in zip(entries, tickets, strict=True):
            entry.ticket = ticket

    # -- connections ------------------------------------------------------------------------------------------------

    async def _mend(self, dead: Line, deadline: float) -> None:
        """Replace a connection, take the handle back by `continue`, and send again what is not durable."""
        async with self._ports.turnstile():
            if self._line is not dead:
                return  # somebody else was faster
            dead.close()
            with self._ports.guard():
                self.ledger.absorb()

            async def attempt(line: Line) -> None:
                await self._continue_on(line, deadline)

            await self._persist(attempt, deadline, patient=True)

    async def _persist(
        self,
        attempt: Callable[[Line], Coroutine[Any, Any, None]],
        deadline: float,
        *,
        patient: bool,
    ) -> Line:
        """Connect and try until it works or the deadline passes; a first connect that fails is final if not patient."""
        pause = _FIRST_PAUSE
        while True:
            line: Line | None = None
            try:
                line = await self._ports.connect(self._left(deadline))
                patient = True
                await attempt(line)
            except (DaemonUnavailableError, ShuttingDownError) as error:
                if line is not None and isinstance(error, ShuttingDownError):
                    line.close()
                if not patient or deadline - self._ports.now() <= pause:
                    raise DaemonUnavailableError(
                        f"the daemon of session {self.id!r} cannot be reached: {error}"
                    ) from error
            else:
                return line
            await self._ports.pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _continue_on(self, line: Line, deadline: float) -> None:
        try:
            opened = await self._take_back(line, deadline)
        except SessionNotFoundError:
            if self.ledger.durable_seq > 0 or self.ledger.base > 0:
                raise
            opened = await self._ask_on(
                line, "session.create", self._opening.create_params(self.id), deadline
            )
        session = as_object(opened.get("session")) or {}
        with self._ports.guard():
            again = self.ledger.resume(
                opened["writer"], session["nextSeq"], session.get("durableSeq", 0)
            )
            self._line = line
            self._send_all(again, deadline)

    async def _take_back(self, line: Line, deadline: float) -> dict[str, Any]:
        """Ask for the handle, or take the answer that a cancelled caller has asked for on the same connection."""
        asked = self._asked
        if asked is None or asked[0] is not line:
            own = {"nextSeq": self.ledger.known_seq, "writer": self.ledger.writer}
            params = {"id": self.id, "access": "write", "continue": own}
            asked = line, line.start("session.open", params, self._left(deadline))
            self._asked = asked
        await self._ports.wait(line, asked[1], self._left(deadline))
        self._asked = None
        result: dict[str, Any] = asked[1].take()
        return result

    async def _open_on(self, line: Line, deadline: float, *, again: bool) -> None:
        async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            return await self._ask_on(line, method, params, deadline)

        taken = await take(ask, self.id, self._opening, again=again)
        self.session, self.recovery = taken.session, taken.recovery
        self.ledger = Ledger(
            self.id, taken.writer, taken.next_seq, taken.next_seq, taken.durable_seq
        )

    async def _ask_on(
        self, line: Line, method: str, params: Mapping[str, Any], deadline: float
    ) -> dict[str, Any]:
        ticket = line.start(method, params, self._left(deadline))
        await self._ports.wait(line, ticket, self._left(deadline))
        result: dict[str, Any] = ticket.take()
        return result

    def _deadline(self) -> float:
        return self._ports.now() + self._patience

    def _left(self, deadline: float) -> float:
        return max(deadline - self._ports.now(), 0.001)
