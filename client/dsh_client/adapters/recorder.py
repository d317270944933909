"""One agent's session behind a framework's hooks: every adapter maps what its framework tells onto this.

It owns the write handle, from the first hook to `close` or the end of the process, over many runs. The one rule: when
`request` or `start_tool` raises, no model is called and no body runs; after the first failure both raise until `flush`.

All methods block and may be called from any thread; asynchronous adapters call them through `seam.aside`. Messages are
the log's own (see FORMAT.md): the adapters translate.
"""

from __future__ import annotations

import atexit
import json
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from dsh_client.adapters import repairs
from dsh_client.adapters.agent_course import AgentCourse
from dsh_client.adapters.seam import jsonable
from dsh_client.blocking import DEFAULT_TIMEOUT, Client
from dsh_client.errors import ClientError, MisuseError
from dsh_client.handle import Handle
from dsh_client.opening import Opening
from dsh_client.ports import run
from dsh_client.session import (
    CLOSE_WITHIN,
    _BlockingPorts,  # pyright: ignore[reportPrivateUsage]  one flavour's ports, same package
)
from dsh_client.shapes import failed_result
from dsh_protocol.errors import DshdError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsh_client.adapters.effects import Effect, Verify
    from dsh_client.shapes import Json


class Settings(TypedDict, total=False):
    """What every adapter takes besides the session's id.

    Attributes:
        socket: Where the daemon listens, if not at the usual place.
        timeout: Seconds after which a checkpoint has failed.
        cwd: The project that a new session belongs to.
        parent: The session of the agent that this one works for; it is recorded as the new session's lineage.
        takeover: Take the session from a living agent that lost its connection.
        verify: Asked about each call that began and whose outcome is unknown, before anything else.
        unstarted: What becomes of calls that never began, and of unknown ones that may be repeated: `"report"` them
            to the model, or `"reissue"` them where the framework can run them before the next request.
        effects: What tools do, by name, where they do not say it themselves.
    """

    socket: str
    timeout: float
    cwd: str
    parent: str
    takeover: bool
    verify: Verify
    unstarted: Literal["report", "reissue"]
    effects: Mapping[str, Effect]


class Recorder:
    """What one agent did, going into its session while it does it.

    Attributes:
        repairs: The calls that the last run left unfinished, as of the open; with `effect` where it is known.
    """

    def __init__(self, session_id: str | None, name: str, settings: Settings) -> None:
        """Make a recorder; the daemon is first asked when a hook needs it.

        Args:
            session_id: The session, made where it does not exist; None makes a new one.
            name: The framework, as others read it when they find the session busy.
            settings: As above.
        """
        self._wanted = session_id
        self._name = name
        self._settings = settings
        self._lock = threading.RLock()
        self._client: Client | None = None
        self._handle: Handle | None = None
        self._course: AgentCourse | None = None
        self._header: Json | None = None
        self._seen: set[str] = set()
        self._results: dict[str, Json] = {}
        self._paused: set[str] = set()
        self._claimed: set[str] = set()
        self._tail: list[Json] = []
        self._interrupted = False
        self.repairs: list[Json] = []
        _close_at_exit(self)

    @property
    def session_id(self) -> str | None:
        """The session's id; of a new session, None before the first hook."""
        return self._handle.id if self._handle else self._wanted

    @property
    def awaits_answer(self) -> bool:
        """Whether a request has passed its checkpoint and has no answer yet."""
        with self._lock:
            return self._course is not None and self._course.awaits_answer

    def effect_of(self, tool: str, declared: Effect | None) -> Effect | None:
        """Return what a tool does: as the settings say, else as it declares."""
        return self._settings.get("effects", {}).get(tool) or declared

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
            course = self._course
            if course is None or course.turn is None:
                return
            if course.step is not None:
                run(course.end_step(failure))
            run(course.end_turn(failure))

    def flush(self) -> int:
        """Make everything recorded durable; open the latch if that succeeds. Returns how many events are durable."""
        with self._lock:
            return run(self._opened()[0].flush())

    def close(self) -> None:
        """Give the session up. An open turn is recorded as aborted; the recorder may be used again."""
        with self._lock:
            handle, client = self._handle, self._client
            try:
                if handle is not None:
                    self.fail_run(GeneratorExit())
                    run(handle.close(CLOSE_WITHIN))
            finally:
                if client is not None:
                    client.close()
                self._handle = self._course = self._client = None

    # -- the model ----------------------------------------------------------------------------------------------------

    def has(self, message_id: str | None) -> bool:
        """Whether the log has a message of that id."""
        return message_id in self._seen

    def unsaid(self, prompts: Sequence[Json]) -> list[Json]:
        """Return the prompts without those that the turn that was cut off had begun with: running again means go on.

        Only for the first run after the open, and only where the history waits for the model.
        """
        fresh = [prompt for prompt in prompts if prompt.get("id") not in self._seen]
        if fresh and self._interrupted and repairs.ends_with_prompts(self._tail, fresh):
            return []
        return fresh

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
        with self._lock:
            course = self._step(prompts, results)
            self._header = cast("Json", jsonable(header))
            run(course.request(self._header))

    def answer(
        self,
        message: Json,
        usage: Mapping[str, Any] | None = None,
        results: Mapping[str, Json] = {},
    ) -> None:
        """Record what the model answered; a step without open calls ends here, durably."""
        with self._lock:
            course = self._opened()[1]
            if course.step is None or not course.awaits_answer:
                return  # an answer to a request that is none of ours
            message = jsonable(message)
            self._note(message)
            run(course.answer(message, usage, interrupted=False))
            for call_id, result in results.items():
                self._settle(course, call_id, result)
            self._end_step_if_answered(course)

    def chunk(self, chunk: Json) -> None:
        """Record a piece of the model's stream; hardly ever waits."""
        with self._lock:
            course = self._course
            if course is not None and course.awaits_answer:
                run(course.chunk(jsonable(chunk)))

    def adopt(
        self, message: Json, prompts: Sequence[Json] = (), results: Mapping[str, Json] = {}
    ) -> None:
        """Record an answer of some model that the program brings along, or calls that are issued again.

        Its calls are open until they are started or answered.
        """
        with self._lock:
            course = self._step(prompts, {})
            message = jsonable(message)
            self._note(message)
            config = (self._header or {}).get("config") or {
                "provider": self._name,
                "model": "unknown",
            }
            run(course.adopt(message, config))
            for call_id, result in results.items():
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
        with self._lock:
            handle, course = self._opened()
            handle.ledger.check_latch()
            found = course.open_call(call_id)
            if found is not None and call_id in self._paused and not found.answered:
                self._paused.discard(call_id)
                return found.idempotency_key  # it goes on
        return run(course.start(call_id, effect)).idempotency_key

    def finish_tool(self, call_id: str, result: Json) -> None:
        """Record a call's result; the last one of the step ends it, durably.

        Args:
            call_id: The call.
            result: `{"content": blocks or text, "isError"?: bool}`.
        """
        with self._lock:
            course = self._opened()[1]
            found = course.open_call(call_id)
            if found is None or found.answered:
                return
            result = jsonable(result)
            if found.dispatched:
                run(course.answer_tool(found, result))
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

    def _step(self, prompts: Sequence[Json], results: Mapping[str, Json]) -> AgentCourse:
        """Return the course with a step open for the next message of the model."""
        handle, course = self._opened()
        handle.ledger.check_latch()
        if course.turn is None:
            run(course.begin_turn([]))
            self._interrupted = False
        if course.step is not None and not course.awaits_answer:
            for call_id, result in results.items():
                self._settle(course, call_id, result)
            run(course.end_step(None))
        said = [cast("Json", jsonable(prompt)) for prompt in prompts]
        if course.step is None:
            run(course.begin_step(said))
        else:
            for prompt in said:
                run(course.say(prompt))
        for prompt in said:
            self._note(prompt)
        return course

    def _settle(self, course: AgentCourse, call_id: str, result: Json) -> None:
        result = jsonable(result)
        course.settle(call_id, result)
        self._results[call_id] = result

    def _end_step_if_answered(self, course: AgentCourse) -> None:
        if course.step is not None and not course.awaits_answer and course.is_answered:
            run(course.end_step(None))

    def _opened(self) -> tuple[Handle, AgentCourse]:
        if self._handle is not None and self._course is not None:
            return self._handle, self._course
        settings = self._settings
        client = Client(
            settings.get("socket"),
            name=self._name,
            timeout=settings.get("timeout", DEFAULT_TIMEOUT),
        )
        header = repairs.new_header(client, settings.get("cwd"), settings.get("parent"))
        opening = Opening(
            self._wanted, create=True, takeover=settings.get("takeover", False), header=header
        )
        handle = Handle(_BlockingPorts(client), opening)
        try:
            run(handle.open())
            self.repairs = repairs.known(handle)
            repairs.revise(handle, self.repairs, settings.get("verify"))
            self._interrupted = handle.recovery is not None
            self._read_history(handle)
        except BaseException:
            client.close()
            raise
        self._client, self._handle, self._course = client, handle, AgentCourse(handle)
        self._wanted = handle.id
        return handle, self._course

    def _read_history(self, handle: Handle) -> list[Json]:
        messages, header = repairs.history(handle)
        self._header = header or self._header
        self._tail = messages[-repairs.TAIL :]
        for message in messages:
            self._note(message)
        return messages

    def _note(self, message: Json) -> None:
        """Remember that the log has a message."""
        if isinstance(message.get("id"), str):
            self._seen.add(message["id"])
        result = repairs.result_of(message)
        if result is not None:
            self._results[result[0]] = result[1]


def _close_at_exit(recorder: Recorder) -> None:
    """Close the session when the program ends in its own way, as long as anybody has the recorder."""
    held = weakref.ref(recorder)

    def bye() -> None:
        alive = held()
        if alive is not None:
            with suppress(DshdError, ClientError):
                alive.close()  # with the daemon or its disk gone, the next open finds what was left

    atexit.register(bye)
