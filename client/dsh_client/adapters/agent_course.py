"""A course for agents whose loop is a framework's: what hooks need beyond turn, step, request and tool.

A framework tells what it did, call by call, and answers some calls itself. The one rule is the course's: whatever is
recorded is closed again, and a body runs only after its start is durable.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsh_client.adapters.effects import EVENT_TYPE
from dsh_client.calls import OpenCall
from dsh_client.course import Course
from dsh_client.errors import ClientError, LatchedError, MisuseError
from dsh_client.exchange import as_object
from dsh_client.ledger import Entry
from dsh_client.shapes import asked_calls, assistant_message, user_message
from dsh_protocol.errors import DshdError, FrameTooLargeError, InvalidParamsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from dsh_client.handle import Handle
    from dsh_client.shapes import Json, Prompt, ToolCall

_PIECES_TOGETHER = 32
_PIECES_WITHIN = 0.1
"""A stream's pieces go together, so many or for so many seconds: an append each would be slower than some models."""
_BATCHES_UNANSWERED = 32
_AHEAD_S = 0.02
"""For how long a checkpoint that was taken ahead stands for the request that it was taken for."""


class AgentCourse(Course):
    """The course of one handle, as the recorder drives it."""

    def __init__(self, handle: Handle) -> None:
        """Start where the session stands after open."""
        super().__init__(handle)
        self._ending: Entry | None = None
        self._ahead: Entry | None = None
        self._ahead_until = 0.0
        self._pieces: list[Json] = []
        self._pieces_sent = 0.0

    @property
    def awaits_answer(self) -> bool:
        """Whether a request of the open step has passed its checkpoint and has no answer."""
        return self.step is not None and self._requested

    @property
    def is_answered(self) -> bool:
        """Whether every call of the open step has its result."""
        return all(found.answered for found in self._calls.values())

    def open_call(self, call_id: str) -> OpenCall | None:
        """Return a call that the open step's answer asks for."""
        return self._calls.get(call_id) if self.step is not None else None

    def waiting(self) -> list[tuple[str, ToolCall]]:
        """Return the calls of the open step that are not begun, in the model's order."""
        return [
            (found.call.id, found.call) for found in self._calls.values() if found.entry is None
        ]

    def running(self) -> list[tuple[str, OpenCall]]:
        """Return the calls of the open step whose bodies may be running."""
        calls = self._calls.values()
        return [
            (found.call.id, found) for found in calls if found.dispatched and not found.answered
        ]

    async def ask(self, prompts: Sequence[Json], header: Json) -> None:
        """Open a step where none is, and pass the request's checkpoint: one call, one flush.

        In an open step it records what was said since and checks again. What was taken ahead with the end of the step
        before is waited for where it says it all, and a moment ago.
        """
        self._handle.ledger.check_latch()
        before = self.step, self._last_step
        self._send_pieces()  # of an attempt that failed
        self._chunks, self._pieces_sent = [], 0.0
        ahead, self._ahead = self._ahead, None
        events = self._step_start(ahead) if self.step is None else []
        events += [self._surface("user/message", user_message(prompt)) for prompt in prompts]
        if header != self._header:
            reason = "change" if self._header else "resume" if self._last_header() else "initial"
            events.append(self._event("request/header", {"header": header, "reason": reason}))
        taken = ahead is not None and not events and time.monotonic() < self._ahead_until
        entry = ahead if ahead is not None and taken else Entry("checkpoint.request", events)
        try:
            passed = self._handle.land(entry) if taken else self._handle.checkpoint(entry)
            await self._after_ending(passed)
        except BaseException:
            if not entry.placed:
                self.step, self._last_step = before
                if entry is not ahead:
                    # it has begun the step, if it was not refused, which may not be known yet
                    self._ahead, self._ahead_until = ahead, 0.0
            raise
        finally:
            if entry.placed or not events:
                self._header = header
            if ahead is not None and self._ahead is not ahead:
                ahead.abandon()
        self._requested = True

    @property
    def chunk_waits(self) -> bool:
        """Whether the next piece of a stream waits for the daemon, which must not have too many to answer."""
        return len(self._chunks) % _BATCHES_UNANSWERED == _BATCHES_UNANSWERED - 1

    async def chunk(self, chunk: Mapping[str, Any]) -> None:
        """Record a piece of the model's stream: the first at once, the others a few at a time."""
        self._pieces.append(self._event("assistant/chunk", {**self._where(), "chunk": {**chunk}}))
        late = time.monotonic() - self._pieces_sent > _PIECES_WITHIN
        if not late and len(self._pieces) < _PIECES_TOGETHER:
            return
        if self.chunk_waits:
            pieces, self._pieces = self._pieces, []
            self._chunks.append(await self._handle.record(pieces))
        self._send_pieces()

    def _send_pieces(self) -> None:
        self._pieces_sent = time.monotonic()
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._chunks.append(self._handle.keep(pieces))

    def _step_end(self) -> list[Json]:
        self._send_pieces()
        return super()._step_end()

    def tell(self, message: Json, usage: Mapping[str, Any] | None) -> None:
        """Record the model's message without waiting: whatever follows it waits for it too."""
        event = self._told(message, usage)
        before = self._calls, self._requested, self._chunks
        asked = asked_calls(event["data"]["message"])
        self._calls = {**self._calls, **{call.id: OpenCall(call) for call in asked}}
        self._requested, self._chunks = False, []
        try:
            self._handle.keep([event])
        except (FrameTooLargeError, InvalidParamsError):  # after others it is recorded all the same
            self._calls, self._requested, self._chunks = before
            raise

    def tell_result(self, found: OpenCall, result: Json, *, goes_on: bool = False) -> None:
        """Record a call's result without waiting; with a step's last one goes the step's end, and its checkpoint.

        Args:
            found: The call.
            result: Its result.
            goes_on: Whether the model is most likely asked next: the checkpoint of that request goes along, too.

        Raises:
            DshdError: It is no event, or too long; nothing is recorded, and the caller may give another.
        """
        event = self._result(found, result)
        found.answered = True
        try:
            if self.is_answered and not self._requested:
                self._launch_end([event], goes_on=goes_on)
            else:
                self._handle.keep([event])
        except (FrameTooLargeError, InvalidParamsError):
            found.answered = False
            raise

    def tell_last(self, message: Json, usage: Mapping[str, Any] | None) -> None:
        """Record a message that asks for no calls, and the step's end with its checkpoint, without waiting."""
        self._launch_end([self._told(message, usage)])
        self._requested, self._chunks = False, []

    def launch_end(self) -> None:
        """Send the end of the open step, with its checkpoint, without waiting."""
        self._launch_end([])

    def forget_ending(self) -> None:
        """Wait no more for a step's checkpoint: a flush has answered for it, or the run has failed."""
        self._ahead_until = 0.0
        if self._ending is not None:
            self._ending.abandon()
            self._ending = None

    async def _pass(self, entry: Entry) -> None:
        await self._after_ending(super()._pass(entry))

    async def _after_ending(self, passed: Awaitable[object]) -> None:
        """Wait for a checkpoint; if that of the step before, which is answered first, failed, its error is told."""
        ending, self._ending = self._ending, None
        try:
            await passed
        except LatchedError:
            if ending is not None and ending.error is not None:
                raise ending.error from None
            raise
        finally:
            if ending is not None:
                ending.abandon()

    def _launch_end(self, events: list[Json], *, goes_on: bool = False) -> None:
        """Send what ends the open step as one checkpoint, for which the next request or the turn's end waits.

        Where a request is to be expected its checkpoint is sent with it: the daemon writes once for both, while the
        framework is on its way to the model.
        """
        where = self.step
        entry = Entry("checkpoint.postStep", [*events, *self._step_end()])
        ahead: list[Entry] = []
        if goes_on:
            begun = {"turn": self.turn, "step": self._last_step + 1}
            ahead.append(Entry("checkpoint.request", [self._event("step/start", begun)]))
        self._ending, self._ahead_until = entry, 0.0
        self._ahead = ahead[0] if ahead else None
        try:
            self._launch(entry, *ahead)
        except (FrameTooLargeError, InvalidParamsError):
            self.step = where  # it never left
            self._ending = self._ahead = None
            raise
        self._ahead_until = time.monotonic() + _AHEAD_S

    def _launch(self, entry: Entry, *ahead: Entry) -> None:
        """Send them, or keep what has happened where the latch is closed."""
        try:
            self._handle.launch(entry, *ahead)
        except LatchedError:
            self._ending = self._ahead = None
            self._handle.keep(entry.events)
            raise

    def _told(self, message: Json, usage: Mapping[str, Any] | None) -> Json:
        where, header = self._where(), self._header or {}
        config = as_object(header.get("config")) or {}
        data: Json = {**where, "message": assistant_message(message, config)}
        if usage is not None:
            data["usage"] = dict(usage)
        self._send_pieces()
        cited = [seq for entry in self._chunks for seq in range(entry.first, entry.end)]
        return self._surface("assistant/message", data, cited)

    def _step_start(self, ahead: Entry | None) -> list[Json]:
        """Begin the next step; return its events that are not in the log."""
        turn = self._open_turn()
        self._last_step += 1
        self.step = self._last_step
        self._calls, self._requested, self._chunks = {}, False, []
        if ahead is not None and ahead.placed:
            return self._said()
        return [self._event("step/start", {"turn": turn, "step": self.step}), *self._said()]

    async def begin_step(self, prompts: Sequence[Prompt]) -> None:
        """Record the start of the next step, where that was not done ahead, and the messages that go into it."""
        await self._settle_ahead()
        ahead, self._ahead = self._ahead, None
        if ahead is None or not ahead.placed:
            await super().begin_step(prompts)
            return
        ahead.abandon()
        said = self._step_start(ahead)
        if said:
            await self._handle.record(said)
        for prompt in prompts:
            await self.say(prompt)

    async def _settle_ahead(self) -> None:
        """Learn what became of what was taken ahead: refused, the step that it began is none."""
        if self._ahead is not None and self._ahead.waited:
            with suppress(DshdError, ClientError):  # the latch is closed, and says why
                await self._handle.land(self._ahead)

    async def end_turn(self, failure: BaseException | None) -> None:
        """End a step that was begun ahead, then the turn; see `Course`."""
        if failure is None:
            await self._settle_ahead()
        await super().end_turn(failure)

    def cut_turn(self, failure: BaseException) -> None:
        """Likewise, without waiting: were that step refused yet, the turn's end would stand by itself."""
        ended = self._ahead_end()
        if ended:
            self._handle.keep(ended)
        super().cut_turn(failure)

    def _turn_end(self, reason: Json) -> list[Json]:
        return [*self._ahead_end(), *super()._turn_end(reason)]

    def _ahead_end(self) -> list[Json]:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return []
        ahead.abandon()
        if not ahead.placed:
            return []
        self._step_start(ahead)
        return self._step_end()

    async def adopt(self, message: Mapping[str, Any], config: Mapping[str, Any]) -> list[ToolCall]:
        """Record an assistant message that no request of this step brought; return the calls that it asks for.

        For a history that the program brings along, and for calls that are issued again after a crash.
        """
        data: Json = {**self._where(), "message": assistant_message(message, config)}
        calls = asked_calls(data["message"])
        await self._handle.record([self._surface("assistant/message", data)])
        self._calls = {**self._calls, **{call.id: OpenCall(call) for call in calls}}
        self._requested = False
        return calls

    async def start(self, call_id: str, effect: str | None) -> OpenCall:
        """Record that a call starts, with what its tool says of itself, and wait until that is durable."""
        found = self.open_call(call_id)
        if found is None:
            raise MisuseError(
                f"the model did not ask for call {call_id!r} in this step; its body must not run"
            )
        if found.entry is not None or found.answered:
            raise MisuseError(f"call {call_id!r} was started before; its body runs once")
        call = found.call
        what = {"callId": call.id, "name": call.name, "arguments": call.arguments}
        begun = self._event("tool/call", {**self._where(), **what})
        events = [begun]
        if effect is not None:
            said = {"callId": call.id, "name": call.name, "effect": effect}
            events = [{**self._event(EVENT_TYPE, said), "ignorable": True}, begun]
        found.entry = Entry("checkpoint.tool", events, {**what, "time": begun["time"]})
        await self._dispatch(found, found.entry)
        return found

    def settle(self, call_id: str, result: Json) -> None:
        """Record, without waiting, the answer that a framework gave to a call of which no body ran."""
        found = self.open_call(call_id)
        if found is not None and not found.answered:
            found.owed = result
            self._close_call(found)
