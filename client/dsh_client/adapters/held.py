"""A session in an adapter's hands: settings, the write handle and what is known of its history.

It owns the handle from the first need of it to `close` or the end of the process. The one rule: it is opened once,
and what its last holder left is told and revised before anything else happens. All methods block; any thread may call.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast

from dsh_client.adapters import on_loop, repairs
from dsh_client.adapters.agent_course import AgentCourse
from dsh_client.adapters.seam import aside, jsonable
from dsh_client.blocking import DEFAULT_TIMEOUT, Client
from dsh_client.errors import ClientError
from dsh_client.handle import Handle
from dsh_client.opening import Opening
from dsh_client.ports import run
from dsh_client.session import CLOSE_WITHIN
from dsh_protocol.errors import DshdError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from dsh_client.adapters.effects import Effect, Verify
    from dsh_client.shapes import Json

T = TypeVar("T")


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


class HeldSession:
    """A session that an adapter writes to.

    Attributes:
        repairs: The calls that the last run left unfinished, as of the open; with `effect` where it is known.
    """

    def __init__(self, session_id: str | None, name: str, settings: Settings) -> None:
        """Name the session; the daemon is first asked when a hook needs it.

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
        self._quick = True
        self.repairs: list[Json] = []
        _close_at_exit(self)

    @property
    def session_id(self) -> str | None:
        """The session's id; of a new session, None before the first hook."""
        return self._handle.id if self._handle else self._wanted

    @property
    def inherited(self) -> Settings:
        """The settings of a session for an agent that works for this one, its lineage apart."""
        found = self._settings.copy()
        found.pop("parent", None)
        return found

    def effect_of(self, tool: str, declared: Effect | None) -> Effect | None:
        """Return what a tool does: as the settings say, else as it declares."""
        return self._settings.get("effects", {}).get(tool) or declared

    async def soon(self, function: Callable[..., T], *args: Any) -> T:
        """Run what only sends and waits for no answer: here, unless another thread is at the session just now."""
        if not self._lock.acquire(blocking=False):
            return await aside(function, *args)
        try:
            return function(*args)
        finally:
            self._lock.release()

    def blocking(self, serve: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run shared code to its end, under the session's lock."""
        with self._lock:
            return run(serve(*args))

    async def hurry(
        self, serve: Callable[..., Coroutine[Any, Any, T]], *args: Any, locked: bool = True
    ) -> T:
        """Run what waits for the daemon: here where its answer comes within a moment, else in a thread.

        A cancelled caller loses its wait; what was asked for goes on, or is given up where it had not begun.

        Args:
            serve: Shared code. It begins under the session's lock and leaves that alone.
            *args: Of `serve`.
            locked: Whether a thread keeps the lock while it waits.
        """
        if not self._quick or not self._lock.acquire(blocking=False):
            return await aside(self._timed, serve, *args, locked=locked)
        try:
            opened = self._handle is not None
            coroutine = serve(*args) if opened else None
            ended, value = (False, None) if coroutine is None else on_loop.begin(coroutine)
        finally:
            self._lock.release()
        if ended:
            return cast("T", value)
        if coroutine is None:
            return await aside(self._timed, serve, *args, locked=locked)
        self._quick = False
        return await self._hand_over(coroutine, locked=locked)

    async def _hand_over(self, coroutine: Coroutine[Any, Any, T], *, locked: bool) -> T:
        """Go on in a thread with what has begun here. Cancelled before there is one, it is closed here and now."""
        taken = threading.Lock()

        def go_on() -> T | None:
            return self._go_on(coroutine, locked=locked) if taken.acquire(blocking=False) else None

        try:
            return cast("T", await aside(go_on))
        finally:
            if taken.acquire(blocking=False):
                with self._lock:
                    coroutine.close()

    def _timed(self, serve: Callable[..., Coroutine[Any, Any, T]], *args: Any, locked: bool) -> T:
        """Run it in this thread, and note whether the next one may be waited for on the loop."""
        began = time.monotonic()
        try:
            return self._go_on(serve(*args), locked=locked)
        finally:
            self._quick = time.monotonic() - began < on_loop.MOMENT_S

    def _go_on(self, coroutine: Coroutine[Any, Any, T], *, locked: bool) -> T:
        with self._lock if locked else nullcontext():
            return run(coroutine)

    def flush(self) -> int:
        """Make everything recorded durable; open the latch if that succeeds. Returns how many events are durable."""
        with self._lock:
            handle, course = self._opened()
            durable = run(handle.flush())
            course.forget_ending()
            return durable

    def close(self) -> None:
        """Give the session up. An open turn is recorded as aborted; the recorder may be used again."""
        with self._lock:
            handle, client = self._handle, self._client
            try:
                if handle is not None:
                    self._cut(GeneratorExit())
                    run(handle.close(CLOSE_WITHIN))
            finally:
                if client is not None:
                    client.close()
                self._handle = self._course = self._client = None

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

    def _cut(self, failure: BaseException) -> None:
        """Record, without waiting, that what is open was given up."""
        course = self._course
        if course is None:
            return
        course.forget_ending()
        if course.turn is None:
            return
        if course.step is not None:
            run(course.end_step(failure))
        run(course.end_turn(failure))

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
        handle = Handle(on_loop.LoopPorts(client), opening)
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

    def _noted(self, prompts: Sequence[Json]) -> list[Json]:
        said = [cast("Json", jsonable(prompt)) for prompt in prompts]
        for prompt in said:
            self._note(prompt)
        return said


def _close_at_exit(held: HeldSession) -> None:
    """Close the session when the program ends in its own way, as long as anybody has it."""
    there = weakref.ref(held)

    def bye() -> None:
        alive = there()
        if alive is not None:
            with suppress(DshdError, ClientError):
                alive.close()  # with the daemon or its disk gone, the next open finds what was left

    atexit.register(bye)
