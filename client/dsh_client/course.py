"""Where a handle stands in its turn, step and calls, and which event comes next: written once for both flavours.

It owns the numbers of turn and step, the header in force and the open calls. The one rule: what has been recorded is
closed again, whatever raises: a step leaves no call unanswered, a turn leaves no step open. Closing after an exception
never waits and never hides the exception. Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.calls import OpenCall, nested_data, result_data
from dsh_client.errors import LatchedError, MisuseError, NotDispatchedError
from dsh_client.exchange import as_object
from dsh_client.history import last_turn_number
from dsh_client.ledger import Entry
from dsh_client.shapes import (
    NOT_DISPATCHED,
    Json,
    Prompt,
    ToolCall,
    asked_calls,
    assistant_message,
    blocks,
    end_reason,
    failed_result,
    user_message,
)
from dsh_protocol.errors import EventInvalidError, FrameTooLargeError, InvalidParamsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsh_client.handle import Handle

_REFUSED = (EventInvalidError, FrameTooLargeError, InvalidParamsError)
"""After these nothing of what was to be recorded is in the log."""
_CHUNKS_UNANSWERED = 32
"""How many chunks may be on their way before one is waited for, so that nobody's buffers fill up."""


class Course:
    """The course of one handle through its turns.

    Attributes:
        turn: The number of the open turn, or None.
        step: The number of the open step, or None.
        reason: What the open turn will end with, where the program said so.
    """

    def __init__(self, handle: Handle) -> None:
        """Start where the session stands after open: no turn is open."""
        self._handle = handle
        self._last_turn: int = handle.session.get("turns") or 0
        self._last_step = 0
        self._header: Json | None = None
        self._requested = False
        self._unsaid: list[Json] = []
        self._chunks: list[Entry] = []
        self._calls: dict[str, OpenCall] = {}
        self.turn: int | None = None
        self.step: int | None = None
        self.reason: Json | None = None

    # -- turn -------------------------------------------------------------------------------------------------------

    async def begin_turn(self, prompts: Sequence[Prompt]) -> None:
        """Record the start of the next turn; the prompts follow in its first step."""
        if self.turn is not None:
            raise MisuseError(f"turn {self.turn} is open; leave it before the next one begins")
        self._handle.ledger.check_latch()
        self._unsaid = [user_message(prompt) for prompt in prompts]
        self._last_step, self.reason = 0, None
        try:
            await self._start_turn(self._last_turn + 1)
        except EventInvalidError:
            # an odd stored log: its last number is not the number of its turns
            await self._start_turn(await last_turn_number(self._handle) + 1)

    async def end_turn(self, failure: BaseException | None) -> None:
        """Record the end of the open turn; without a failure, wait until it is durable."""
        if failure is not None:
            self.cut_turn(failure)
            return
        events = self._turn_end(self.reason or end_reason(None))
        ended = events[-1]
        extra = {"reason": ended["data"]["reason"], "time": ended["time"]}
        await self._pass(Entry("checkpoint.turnEnd", events, extra))

    def cut_turn(self, failure: BaseException) -> None:
        """Record, without waiting, that an exception ended the turn."""
        self._handle.keep(self._turn_end(end_reason(failure)))

    # -- step -------------------------------------------------------------------------------------------------------

    async def begin_step(self, prompts: Sequence[Prompt]) -> None:
        """Record the start of the next step and the messages that go into it."""
        turn = self._open_turn()
        if self.step is not None:
            raise MisuseError(f"step {self.step} is open; leave it before the next one begins")
        self._handle.ledger.check_latch()
        self._last_step += 1
        self.step = self._last_step
        self._calls, self._requested, self._chunks = {}, False, []
        events = [self._event("step/start", {"turn": turn, "step": self.step})]
        events += self._said()
        events += [self._surface("user/message", user_message(prompt)) for prompt in prompts]
        try:
            await self._opening(events, self.cut_step)
        except _REFUSED:
            self._last_step -= 1
            raise

    async def end_step(self, failure: BaseException | None) -> None:
        """Answer what is unanswered, record the step's end; without a failure, wait until all is durable."""
        if failure is not None:
            self.cut_step(failure)
        else:
            await self._pass(Entry("checkpoint.postStep", self._step_end()))

    def cut_step(self, _failure: BaseException) -> None:
        """Record, without waiting, that an exception ended the step."""
        self._handle.keep(self._step_end())

    async def say(self, content: Prompt) -> None:
        """Record a user's message in the open step."""
        self._where()
        await self._handle.record([self._surface("user/message", user_message(content))])

    # -- request ----------------------------------------------------------------------------------------------------

    async def request(self, header: Mapping[str, Any]) -> None:
        """Record the request's header where it is new, and wait until all that the model will see is durable."""
        self._where()
        self._handle.ledger.check_latch()
        events: list[Json] = []
        wanted = dict(header)
        if wanted != self._header:
            reason = "change" if self._header else "resume" if self._last_header() else "initial"
            events.append(self._event("request/header", {"header": wanted, "reason": reason}))
        entry = Entry("checkpoint.request", events)
        try:
            await self._handle.checkpoint(entry)
        finally:
            if entry.placed or not events:
                self._header = wanted
        self._requested = True

    async def chunk(self, chunk: Mapping[str, Any]) -> None:
        """Record a piece of the model's stream; it waits only now and then."""
        event = self._event("assistant/chunk", {**self._where(), "chunk": dict(chunk)})
        if len(self._chunks) % _CHUNKS_UNANSWERED == _CHUNKS_UNANSWERED - 1:
            entry = await self._handle.record([event])
        else:
            entry = self._handle.keep([event])
        self._chunks.append(entry)

    async def answer(
        self, content: Prompt, usage: Mapping[str, Any] | None, *, interrupted: bool
    ) -> list[ToolCall]:
        """Record the model's message; return the calls that it asks for."""
        where = self._where()
        if not self._requested or self._header is None:
            raise MisuseError(
                "an answer without a request: enter step.request(header) before the model is called"
            )
        self._requested = False
        message = assistant_message(content, as_object(self._header.get("config")) or {})
        data: Json = {**where, "message": message}
        if usage is not None:
            data["usage"] = dict(usage)
        if interrupted:
            data["interrupted"] = True
        event = self._surface("assistant/message", data, [entry.first for entry in self._chunks])
        self._chunks = []
        calls = asked_calls(message)
        before = self._calls
        self._calls = {**before, **{call.id: OpenCall(call) for call in calls}}
        try:
            await self._handle.record([event])
        except EventInvalidError:
            self._calls = before
            raise
        return calls

    # -- tools ------------------------------------------------------------------------------------------------------

    async def begin_tool(self, call: ToolCall) -> OpenCall:
        """Record that a call starts and wait until that is durable; its body may run when this returns."""
        where = self._where()
        found = self._calls.get(call.id)
        if found is None or found.call != call:
            raise MisuseError(f"the model did not ask for call {call.id!r} in this step")
        if found.entry is not None or found.answered:
            raise MisuseError(f"call {call.id!r} was started before; its body runs once")
        what = {"callId": call.id, "name": call.name, "arguments": call.arguments}
        event = self._event("tool/call", {**where, **what})
        found.entry = Entry("checkpoint.tool", [event], {**what, "time": event["time"]})
        await self._dispatch(found, found.entry)
        return found

    async def answer_tool(self, found: OpenCall, result: Json) -> None:
        """Record the result of a dispatched call."""
        if found.answered:
            raise MisuseError(f"call {found.call.id!r} is answered already")
        event = self._result(found, result)
        try:
            await self._handle.record([event])
        except _REFUSED:
            raise  # nothing of it is kept: the caller may give another, a shorter one
        except BaseException:
            found.answered = True  # kept: it is sent again by the next flush
            raise
        found.answered = True

    async def end_tool(self, found: OpenCall, failure: BaseException | None) -> None:
        """Record, without waiting, that a body raised; or an empty result where it gave none."""
        if found.answered:
            return
        if failure is None:
            await self.answer_tool(found, {"content": []})
        else:
            found.answered = True
            self._handle.keep([self._result(found, failed_result(failure))])

    async def begin_nested(self, outer: OpenCall, root: str, name: str, arguments: str) -> OpenCall:
        """Record that a running tool dispatches another one; nothing waits for the disk."""
        self._where()
        if not outer.dispatched or outer.answered:
            raise MisuseError(f"call {outer.call.id!r} is not running; it cannot dispatch others")
        outer.nested += 1
        call = ToolCall(f"{outer.call.id}:code:{outer.nested}", name, arguments)
        event = self._event("tool/code-dispatch-start", nested_data(call, outer, root))
        what = {"callId": call.id, "name": name, "arguments": arguments, "time": event["time"]}
        entry = Entry("checkpoint.tool", [event], {**what, "parentCallId": outer.call.id})
        found = OpenCall(call, entry)
        await self._dispatch(found, entry)
        return found

    def answer_nested(self, found: OpenCall, outer: OpenCall, root: str, result: Json) -> None:
        """Record how a nested dispatch ended; it is durable with the outer call's result."""
        if found.answered:
            raise MisuseError(f"call {found.call.id!r} is answered already")
        found.answered = True
        content, is_error = blocks(result["content"]), bool(result.get("isError"))
        data = {**nested_data(found.call, outer, root), "isError": is_error, "content": content}
        self._handle.keep([self._event("tool/code-dispatch", data)])

    def settle_nested(
        self, found: OpenCall, outer: OpenCall, root: str, failure: BaseException | None
    ) -> None:
        """Record what the body of a nested dispatch raised, or that it gave nothing."""
        if not found.answered:
            empty: Json = {"content": []}
            result = empty if failure is None else failed_result(failure)
            self.answer_nested(found, outer, root, result)

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _start_turn(self, number: int) -> None:
        self.turn = number
        try:
            await self._opening([self._event("turn/start", {"turn": number})], self.cut_turn)
        except _REFUSED:
            self.turn = None
            raise
        self._last_turn = number

    async def _opening(self, events: list[Json], cut: Callable[[BaseException], None]) -> None:
        """Record what opens a turn or step; if that is cut short, it may reach the log all the same: close it there."""
        try:
            await self._handle.record(events)
        except _REFUSED:
            self.step = None
            raise
        except BaseException as failure:
            self._last_turn = max(self._last_turn, self.turn or 0)
            cut(failure)
            raise

    async def _dispatch(self, found: OpenCall, entry: Entry) -> None:
        try:
            passed = await self._handle.checkpoint(entry)
        except BaseException as failure:
            facts: Any = getattr(failure, "facts", {})
            found.owed = as_object(facts.get("result"))
            if not entry.placed:
                found.entry = None  # never sent: it may be started once the latch is open
            raise
        if passed.get("decision") != "DISPATCH":
            found.owed = as_object(passed.get("result"))
            raise NotDispatchedError(
                f"call {found.call.id!r} of {found.call.name!r} was not dispatched: {passed.get('decision')}"
            )
        found.dispatched = True
        found.idempotency_key = passed.get("idempotencyKey")

    def _turn_end(self, reason: Json) -> list[Json]:
        turn = self._open_turn()
        self.turn = None
        return [*self._said(), self._event("turn/end", {"turn": turn, "reason": reason})]

    def _step_end(self) -> list[Json]:
        for open_call in self._calls.values():
            if not open_call.answered:
                self._close_call(open_call)
        where = self._where()
        self.step = None
        return [self._event("step/end", where)]

    async def _pass(self, entry: Entry) -> None:
        """Pass the checkpoint of what has happened: it belongs into the log also when the latch is closed."""
        try:
            await self._handle.checkpoint(entry)
        except LatchedError:
            if not entry.placed:
                self._handle.keep(entry.events)
            raise

    def _close_call(self, found: OpenCall) -> None:
        """Answer a call whose body did not run to an end; one that never started is recorded as called first."""
        if not found.in_log:
            what = {
                "callId": found.call.id,
                "name": found.call.name,
                "arguments": found.call.arguments,
            }
            found.entry = self._handle.keep([self._event("tool/call", {**self._where(), **what})])
        found.answered = True
        self._handle.keep([self._result(found, found.owed or NOT_DISPATCHED)])

    def _result(self, found: OpenCall, result: Json) -> Json:
        data = {**self._where(), **result_data(found, result)}
        cited = [] if found.entry is None else [found.entry.end - 1]  # the last: `tool/call`
        return self._surface("tool/result", data, cited)

    def _said(self) -> list[Json]:
        said, self._unsaid = self._unsaid, []
        return [self._surface("user/message", message) for message in said]

    def _surface(self, kind: str, data: Json, cited: Sequence[int] = ()) -> Json:
        event = {**self._event(kind, data), "surfaceOp": "append"}
        if cited:
            event["sourceEventSeqs"] = list(cited)
        return event

    def _event(self, kind: str, data: Json) -> Json:
        return self._handle.stamp({"type": kind, "data": data})

    def _where(self) -> Json:
        if self.turn is None or self.step is None:
            raise MisuseError("no step is open; enter turn.step() first")
        return {"turn": self.turn, "step": self.step}

    def _open_turn(self) -> int:
        if self.turn is None:
            raise MisuseError("no turn is open; enter session.turn() first")
        return self.turn

    def _last_header(self) -> bool:
        return bool(self._handle.session.get("nextSeq"))
