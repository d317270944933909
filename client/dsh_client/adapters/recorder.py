"""One agent's session behind a framework's hooks: every adapter maps what its framework tells onto this.

It owns the write handle, from the first hook to `close` or the end of the process, over many runs. The one rule: when
`request` or `start_tool` raises, no model is called and no body runs; after the first failure both raise until `flush`.

Its methods block and may be called from any thread. Asynchronous adapters call them through `seam.aside`; what every
step waits for stands beside them as shared code, for `hurry`. Messages are the log's own (see FORMAT.md): the adapters
translate.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from dsh_client.adapters import repairs
from dsh_client.adapters.held import HeldSession
from dsh_client.adapters.seam import aside, jsonable
from dsh_client.errors import MisuseError
from dsh_client.ports import run
from dsh_client.shapes import asked_calls, failed_result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsh_client.adapters.agent_course import AgentCourse
    from dsh_client.adapters.effects import Effect
    from dsh_client.shapes import Json

    Results = Callable[[], Mapping[str, Json]]
    """Makes a framework's own answers to calls, by call id: mostly nobody needs them, and a history has many."""


class Recorder(HeldSession):
    """What one agent did, going into its session while it does it."""

    @property
    def awaits_answer(self) -> bool:
        """Whether a request has passed its checkpoint and has no answer yet."""
        with self._lock:
            return self._course is not None and self._course.awaits_answer

    # -- runs ---------------------------------------------------------------------------------------------------------

    def begin_run(self, *, new: bool = True) -> list[Json]:
        """Open the session where that is not done, close what a failed run left open, and return the history.

        Args:
            new: Whether this is known to be the beginning of a run; else an open turn stays open while its calls are
                answered.

        Raises:
            LatchedError: A checkpoint failed before; `flush` first.
            DshdError: The session cannot be opened or read.
            ClientError: No daemon.
        """
        with self._lock:
            handle, course = self._opened()
            handle.ledger.check_latch()
            if course.turn is not None and (new or not course.is_answered):
                self.fail_run(RuntimeError("the run ended without telling how"))
            return self._read_history(handle)

    def end_run(
        self,
        results: Mapping[str, Json] = {},
        reason: Mapping[str, Any] | None = None,
    ) -> None:
        """Record the end of the turn and wait until all of it is durable.

        Args:
            results: The framework's own answers to calls of which no body ran, by call id.
            reason: As in `turn/end`; completed where it is not said.
        """
        with self._lock:
            course = self._course
            if course is None or course.turn is None:
                return
            for call_id, result in results.items():
                self._settle(course, call_id, result)
            if course.step is not None:
                run(course.end_step(None))
            course.reason = dict(reason) if reason else None
            run(course.end_turn(None))

    def fail_run(self, failure: BaseException) -> None:
        """Record, without waiting, that the run failed or was called off."""
        with self._lock:
            self._cut(failure)

    # -- the model ----------------------------------------------------------------------------------------------------

    def request(
        self, header: Json, prompts: Sequence[Json] = (), results: Mapping[str, Json] = {}
    ) -> None:
        """Wait until everything that the model is about to see is durable; call the model after that.

        Called again before an answer (a retry, a fallback) it stays in the same step and checks again.

        Args:
            header: `{"config": {"provider", "model"}, "system"?, "tools"?}`.
            prompts: User messages that the log does not have.
            results: The framework's own answers to calls of which no body ran, by call id.

        Raises:
            LatchedError: An earlier checkpoint failed.
            DshdError: This one failed; the model must not be called.
            ClientError: No answer; likewise.
        """
        self.blocking(self.asking, header, prompts, lambda: results)

    async def asking(
        self, header: Json, prompts: Sequence[Json] = (), results: Results = dict
    ) -> None:
        """Do what `request` does, as shared code for `hurry`."""
        course = await self._between(results)
        said = self._noted(prompts)
        if self._header is None or header != self._header:  # what is JSON stays equal
            self._header = cast("Json", jsonable(header))
        await course.ask(said, self._header)

    def answer(
        self,
        message: Json,
        usage: Mapping[str, Any] | None = None,
        results: Mapping[str, Json] = {},
    ) -> None:
        """Record what the model answered, without waiting; a step without open calls ends here."""
        with self._lock:
            course = self._opened()[1]
            if course.step is None or not course.awaits_answer:
                return  # an answer to a request that is none of ours
            message = jsonable(message)
            self._note(message)
            if course.is_answered and not asked_calls(message):
                course.tell_last(message, usage)
                return
            course.tell(message, usage)
            for call_id, result in results.items():
                self._settle(course, call_id, result)
            self._end_step_if_answered(course)

    def chunk(self, chunk: Json) -> None:
        """Record a piece of the model's stream; hardly ever waits.

        Args:
            chunk: A delta of FORMAT.md's kinds.
        """
        with self._lock:
            course = self._course
            if course is not None and course.awaits_answer:
                run(course.chunk(jsonable(chunk)))

    async def achunk(self, chunk: Json) -> None:
        """Record a piece without blocking the event loop."""
        course = self._course
        if course is not None and course.chunk_waits:
            await aside(self.chunk, chunk)
        else:
            await self.soon(self.chunk, chunk)

    def adopt(
        self, message: Json, prompts: Sequence[Json] = (), results: Mapping[str, Json] = {}
    ) -> None:
        """Record an answer of some model that the program brings along, or calls that are issued again.

        Its calls are open until they are started or answered.
        """
        self.blocking(self.adopting, message, prompts, lambda: results)

    async def adopting(
        self, message: Json, prompts: Sequence[Json] = (), results: Results = dict
    ) -> None:
        """Do what `adopt` does, as shared code for `hurry`."""
        course = await self._between(dict)
        said = self._noted(prompts)
        if course.step is None:
            await course.begin_step(said)
        else:
            for prompt in said:
                await course.say(prompt)
        message = jsonable(message)
        self._note(message)
        unknown = {"provider": self._name, "model": "unknown"}
        await course.adopt(message, (self._header or {}).get("config") or unknown)
        for call_id, result in results().items():
            self._settle(course, call_id, result)

    def reissue(self, prompts: Sequence[Json] = ()) -> Json | None:
        """Record that the calls which may be repeated are issued again, and return the message that issues them.

        Once after the open, if the settings want it; None where there is nothing to issue.
        """
        if self._settings.get("unstarted") != "reissue":
            return None
        with self._lock:
            again = [repair for repair in self.repairs if repairs.may_repeat(repair)]
            self.repairs = [repair for repair in self.repairs if repair not in again]
            if not again:
                return None
            message = repairs.issued_again(again)
            self.adopt(message, prompts)
            return message

    # -- tools --------------------------------------------------------------------------------------------------------

    def recall(self, call_id: str) -> Json | None:
        """Return the result that the log has for a call which is not open now; None where it is open or unknown."""
        with self._lock:
            course = self._opened()[1]
            if course.open_call(call_id) is not None:
                return None
            return self._results.get(call_id)

    def claim(self, name: str, arguments: Any) -> str:
        """Return the id of a call of the open step, not begun and not claimed, that asks for this tool with this.

        Raises:
            MisuseError: There is none: the body must not run.
        """
        with self._lock:
            course = self._opened()[1]
            for call_id, call in course.waiting():
                if (
                    call.name == name
                    and call_id not in self._claimed
                    and json.loads(call.arguments) == arguments
                ):
                    self._claimed.add(call_id)
                    return call_id
        raise MisuseError(
            f"the model asked for no call of {name!r} with these arguments; its body must not run"
        )

    def key_for(self, name: str, arguments: Any) -> str | None:
        """Return the key of a call that was started, is not claimed, and asks for this tool with this."""
        with self._lock:
            course = self._opened()[1]
            for call_id, found in course.running():
                call = found.call
                if (
                    call.name == name
                    and call_id not in self._claimed
                    and json.loads(call.arguments) == arguments
                ):
                    self._claimed.add(call_id)
                    return found.idempotency_key
        return None

    def check(self, call_id: str | None) -> None:
        """Raise if nothing may run: the latch is closed, or this call of the open step was not started.

        For a hook that sees a tool begin and knows no more of it.

        Raises:
            LatchedError: An earlier checkpoint failed.
            MisuseError: The call is one of the model's and has passed no checkpoint.
        """
        with self._lock:
            handle, course = self._opened()
            handle.ledger.check_latch()
            found = course.open_call(call_id) if call_id is not None else None
            if found is not None and not found.dispatched:
                raise MisuseError(
                    f"call {call_id!r} runs outside of a ToolNode, where nothing gates it"
                )

    def start_tool(self, call_id: str, effect: Effect | None = None) -> str | None:
        """Wait until the start of a call is durable; its body may run when this returns its idempotency key.

        Calls of one answer may start side by side; they share the daemon's flushes.

        Raises:
            LatchedError: An earlier checkpoint failed.
            MisuseError: The model did not ask for this call, or it was started before.
            DshdError: The checkpoint failed; the body must not run.
            ClientError: No answer; likewise.
        """
        return run(self.starting(call_id, effect))

    async def starting(self, call_id: str, effect: Effect | None = None) -> str | None:
        """Do what `start_tool` does, as shared code for `hurry`; no lock is kept while it waits."""
        with self._lock:
            handle, course = self._opened()
            handle.ledger.check_latch()
            found = course.open_call(call_id)
            if found is not None and call_id in self._paused and not found.answered:
                self._paused.discard(call_id)
                return found.idempotency_key  # it goes on
        return (await course.start(call_id, effect)).idempotency_key

    def finish_tool(self, call_id: str, result: Json, *, goes_on: bool = True) -> None:
        """Record a call's result, without waiting; the last one ends the step, and the next request waits for that.

        Args:
            call_id: The call.
            result: `{"content": blocks or text, "isError"?: bool}`.
            goes_on: Whether the model is asked next where this is the step's last result, as far as is known: the
                checkpoint of that request is taken at once, while the framework is on its way there.
        """
        with self._lock:
            course = self._opened()[1]
            found = course.open_call(call_id)
            if found is None or found.answered:
                return
            result = jsonable(result)
            if found.dispatched:
                course.tell_result(found, result, goes_on=goes_on)
                self._results[call_id] = result
            else:
                self._settle(course, call_id, result)
                self._end_step_if_answered(course)

    def pause_tool(self, call_id: str) -> None:
        """Note that a body stopped half-way and will be entered again in this process (to ask a person, say)."""
        with self._lock:
            self._paused.add(call_id)

    def fail_tool(self, call_id: str, failure: BaseException) -> None:
        """Record, without waiting, that a body raised or was cancelled."""
        with self._lock:
            course = self._course
            found = course.open_call(call_id) if course is not None else None
            if course is None or found is None or found.answered:
                return
            if found.in_log:
                run(course.end_tool(found, failure))
            self._results[call_id] = failed_result(failure)

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _between(self, results: Results) -> AgentCourse:
        """Return the course with its turn open, and the step ended if the model has answered in it."""
        handle, course = self._opened()
        handle.ledger.check_latch()
        if course.turn is None:
            await course.begin_turn([])
            self._interrupted = False
        if course.step is not None and not course.awaits_answer:
            for call_id, result in results().items():
                self._settle(course, call_id, result)
            await course.end_step(None)
        return course

    def _settle(self, course: AgentCourse, call_id: str, result: Json) -> None:
        result = jsonable(result)
        course.settle(call_id, result)
        self._results[call_id] = result

    def _end_step_if_answered(self, course: AgentCourse) -> None:
        if course.step is not None and not course.awaits_answer and course.is_answered:
            course.launch_end()
