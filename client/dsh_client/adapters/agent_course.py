"""A course for agents whose loop is a framework's: what hooks need beyond turn, step, request and tool.

A framework tells what it did, call by call, and answers some calls itself. The one rule is the course's: whatever is
recorded is closed again, and a body runs only after its start is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.adapters.effects import EVENT_TYPE
from dsh_client.course import Course, OpenCall
from dsh_client.errors import MisuseError
from dsh_client.exchange import as_object
from dsh_client.ledger import Entry
from dsh_client.shapes import asked_calls, assistant_message, user_message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsh_client.shapes import Json, ToolCall


class AgentCourse(Course):
    """The course of one handle, as the recorder drives it."""

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

        In an open step it records what was said since and checks again.
        """
        self._handle.ledger.check_latch()
        before = self.step, self._last_step
        events = self._step_start() if self.step is None else []
        events += [self._surface("user/message", user_message(prompt)) for prompt in prompts]
        if header != self._header:
            reason = "change" if self._header else "resume" if self._last_header() else "initial"
            events.append(self._event("request/header", {"header": header, "reason": reason}))
        entry = Entry("checkpoint.request", events)
        try:
            await self._handle.checkpoint(entry)
        except BaseException:
            if not entry.placed:
                self.step, self._last_step = before
            raise
        finally:
            if entry.placed or not events:
                self._header = header
        self._requested = True

    def tell(self, message: Json, usage: Mapping[str, Any] | None) -> None:
        """Record the model's message without waiting: whatever follows it waits for it too."""
        where, header = self._where(), self._header or {}
        config = as_object(header.get("config")) or {}
        data: Json = {**where, "message": assistant_message(message, config)}
        if usage is not None:
            data["usage"] = dict(usage)
        cited = [entry.first for entry in self._chunks]
        self._handle.keep([self._surface("assistant/message", data, cited)])
        self._requested, self._chunks = False, []
        asked = asked_calls(data["message"])
        self._calls = {**self._calls, **{call.id: OpenCall(call) for call in asked}}

    def tell_result(self, found: OpenCall, result: Json) -> None:
        """Record a call's result without waiting; it is on its way when this returns."""
        found.answered = True
        self._handle.keep([self._result(found, result)])

    def _step_start(self) -> list[Json]:
        turn = self._open_turn()
        self._last_step += 1
        self.step = self._last_step
        self._calls, self._requested, self._chunks = {}, False, []
        return [self._event("step/start", {"turn": turn, "step": self.step}), *self._said()]

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
