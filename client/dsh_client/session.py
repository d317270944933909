"""A session as a blocking agent uses it: turn, step, request and tool as context managers.

It owns the write handle from `open_session` to the end of its block. The one rule: the model is called only inside
`step.request(…)` and a tool's body runs only inside `step.tool(…)`; both are entered when what must be durable is
durable, and raise otherwise. `dsh_client.async_session` is the same for asyncio and trio. Standard library only.
"""

from __future__ import annotations

import threading
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from dsh_client import history
from dsh_client.blocking import Client
from dsh_client.course import Course
from dsh_client.errors import ClientError, MisuseError
from dsh_client.handle import Handle
from dsh_client.opening import Header, Opening
from dsh_client.ports import run
from dsh_protocol.errors import DshdError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping, Sequence

    from dsh_client.blocking import Link
    from dsh_client.calls import OpenCall
    from dsh_client.exchange import Ticket
    from dsh_client.ports import Line
    from dsh_client.shapes import Json, Prompt, ToolCall

CLOSE_WITHIN = 5.0
"""Seconds for closing a session that an exception leaves: the exception waits that long and no longer."""


@contextmanager
def open_session(
    session_id: str | None = None,
    *,
    client: Client | None = None,
    create: bool = True,
    takeover: bool = False,
    **header: Unpack[Header],
) -> Generator[Session, None, None]:
    """Take the write handle of a session, give it up at the end of the block.

    What the last holder left open is closed here and told in `Session.repairs`. At the end everything recorded is made
    durable; after an exception that is tried for a few seconds and the exception goes on.

    Args:
        session_id: Which session; None makes a new one.
        client: The connection to use; None makes one for this session.
        create: Make the session where it does not exist.
        takeover: Take a handle that is kept for a living agent without a connection.
        **header: For a session that is made: `cwd` and the others, as on the wire.

    Raises:
        SessionBusyError: Somebody else has the write handle; the facts say who.
        DaemonUnavailableError: No daemon answers.
    """
    own = Client() if client is None else None
    ports = _BlockingPorts(client or cast("Client", own))
    handle = Handle(ports, Opening(session_id, create, takeover, header))
    try:
        run(handle.open())
        try:
            yield Session(handle)
        except BaseException as failure:
            try:
                run(handle.close(CLOSE_WITHIN))
            except (DshdError, ClientError) as second:
                failure.add_note(f"closing session {handle.id!r} failed too: {second}")
            raise
        run(handle.close())
    finally:
        if own is not None:
            own.close()


class Session:
    """A session whose write handle this process has. Threads may share it."""

    def __init__(self, handle: Handle) -> None:
        """Wrap an open handle; `open_session` does that."""
        self._handle = handle
        self._course = Course(handle)

    @property
    def id(self) -> str:
        """The session's id."""
        return self._handle.id

    @property
    def recovery(self) -> Json | None:
        """What was closed of a turn that the last holder left open; committed and durable."""
        return self._handle.recovery

    @property
    def repairs(self) -> list[Json]:
        """The calls that were unanswered, in transcript order, each with its code and idempotency key."""
        return list((self._handle.recovery or {}).get("repairs") or [])

    def messages(self) -> list[Json]:
        """Return the history as a provider takes it, what is recorded but not yet durable included."""
        return run(history.messages(self._handle))

    def turn(self, *prompts: Prompt) -> Turn:
        """Return the next turn, to be entered; the prompts are recorded with its first step."""
        return Turn(self._course, prompts)

    def append(self, events: Sequence[Mapping[str, Any]]) -> int:
        """Record events of the program's own; return the seq of the first. Not yet durable.

        Raises:
            EventInvalidError: A rule of the log forbids them; nothing is recorded.
        """
        return run(self._handle.record([self._handle.stamp(event) for event in events])).first

    def flush(self) -> int:
        """Wait until everything recorded is durable; return how many events are. Opens the latch.

        Raises:
            DshdError: It failed, and the latch is closed.
            ClientError: No daemon, or no answer in time; likewise.
        """
        return run(self._handle.flush())


class Turn:
    """One turn: entering records its start, leaving its end and waits until that is durable.

    An exception ends it as failed or aborted, without waiting, and goes on.
    """

    def __init__(self, course: Course, prompts: Sequence[Prompt]) -> None:
        """Make a turn that is not begun; `Session.turn` does that."""
        self._course = course
        self._prompts = prompts

    def __enter__(self) -> Self:
        """Record the start."""
        run(self._course.begin_turn(self._prompts))
        return self

    def __exit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        """Record the end; wait for it if nothing failed."""
        run(self._course.end_turn(failure))

    def step(self, *prompts: Prompt) -> Step:
        """Return the next step, to be entered; the prompts are messages that come between two steps."""
        return Step(self._course, prompts)

    def end(self, reason: Mapping[str, Any]) -> None:
        """Say with which reason the turn ends (`{"kind": "max-tokens"}`), where that is not `completed`."""
        self._course.reason = dict(reason)


class Step:
    """One step: a request, the model's answer, its calls. Leaving waits until all of it is durable."""

    def __init__(self, course: Course, prompts: Sequence[Prompt]) -> None:
        """Make a step that is not begun; `Turn.step` does that."""
        self._course = course
        self._prompts = prompts

    def __enter__(self) -> Self:
        """Record the start, and the messages that go into the request."""
        run(self._course.begin_step(self._prompts))
        return self

    def __exit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        """Answer the calls that did not run, record the end; wait for it if nothing failed."""
        run(self._course.end_step(failure))

    def request(self, header: Mapping[str, Any]) -> Request:
        """Wait until everything that the model is about to see is durable; call the model after that.

        The wait is in this call; `with` only shows what it covers.

        Args:
            header: `{"config": {"provider", "model", …}, "system"?, "tools"?}`; recorded where it is new.

        Raises:
            LatchedError: An earlier checkpoint failed; nothing is sent.
            DshdError: The checkpoint failed: do not call the model. The latch is closed.
            ClientError: No answer: likewise.
        """
        run(self._course.request(header))
        return Request(self._course)

    def answer(
        self, content: Prompt, *, usage: Mapping[str, Any] | None = None, interrupted: bool = False
    ) -> list[ToolCall]:
        """Record what the model answered (text, blocks or a message); return the calls that it asks for.

        Raises:
            MisuseError: No request was made in this step since the last answer.
        """
        return run(self._course.answer(content, usage, interrupted=interrupted))

    def tool(self, call: ToolCall) -> Tool:
        """Return a call of the model, to be entered: its body runs only if the daemon says DISPATCH."""
        return Tool(self._course, call)


class Request:
    """A model request whose checkpoint is passed."""

    def __init__(self, course: Course) -> None:
        """Make it; `Step.request` does that."""
        self._course = course

    def __enter__(self) -> Self:
        """Show where the model is called."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Nothing is recorded here: `Step.answer` does that."""

    def chunk(self, chunk: Mapping[str, Any]) -> None:
        """Record a piece of the model's stream; the next answer cites all of them."""
        run(self._course.chunk(chunk))


class Tool:
    """One call: entering waits until its start is durable, so that a crash in the body can be told from none.

    An exception of the body is recorded as the call's result and goes on.
    """

    def __init__(self, course: Course, call: ToolCall) -> None:
        """Make a call that is not started; `Step.tool` does that."""
        self._course = course
        self._open: OpenCall | None = None
        self.call = call

    def __enter__(self) -> Self:
        """Record that the call starts.

        Raises:
            LatchedError: An earlier checkpoint failed; nothing is sent.
            NotDispatchedError: The daemon did not let it run.
            DshdError: The checkpoint failed; the body must not run. The latch is closed.
            ClientError: No answer: likewise.
            MisuseError: The model did not ask for it, or it was started before.
        """
        self._open = run(self._course.begin_tool(self.call))
        return self

    def __exit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        """Record what the body raised, or an empty result where it gave none."""
        run(self._course.end_tool(self._started(), failure))

    @property
    def idempotency_key(self) -> str | None:
        """The key to hand to what the tool changes: the same call has the same key after a crash."""
        return self._started().idempotency_key

    def result(
        self, content: Prompt, *, is_error: bool = False, meta: Mapping[str, Any] | None = None
    ) -> None:
        """Record the call's result at once; call it once, as soon as the effect has happened."""
        found = self._started()
        run(
            self._course.answer_tool(found, {"content": content, "isError": is_error, "meta": meta})
        )

    def dispatch(self, name: str, arguments: str) -> Nested:
        """Return a call that this tool makes of another one, to be entered."""
        return Nested(self._course, self._started(), self.call.id, (name, arguments))

    def _started(self) -> OpenCall:
        if self._open is None:
            raise MisuseError(f"call {self.call.id!r} is not started; enter step.tool(call) first")
        return self._open


class Nested:
    """A call made by a running tool: recorded, but it shares the outer call's checkpoint."""

    def __init__(self, course: Course, outer: OpenCall, root: str, what: tuple[str, str]) -> None:
        """Make a nested call that is not started; `Tool.dispatch` does that."""
        self._course = course
        self._outer = outer
        self._root = root
        self._what = what
        self._open: OpenCall | None = None

    def __enter__(self) -> Self:
        """Record that it starts.

        Raises:
            LatchedError: A checkpoint failed; the body must not run.
            DshdError: Likewise.
        """
        self._open = run(self._course.begin_nested(self._outer, self._root, *self._what))
        return self

    def __exit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        """Record what the body raised, or an empty result where it gave none."""
        self._course.settle_nested(self._started(), self._outer, self._root, failure)

    def result(self, content: Prompt, *, is_error: bool = False) -> None:
        """Record how it ended."""
        result = {"content": content, "isError": is_error}
        self._course.answer_nested(self._started(), self._outer, self._root, result)

    def _started(self) -> OpenCall:
        if self._open is None:
            raise MisuseError("a nested call is not started; enter tool.dispatch(…) first")
        return self._open


class _BlockingPorts:
    """Locks, clock and waiting of a blocking client; its coroutines never suspend."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.RLock()
        self._mending = threading.Lock()
        self.timeout = client.timeout

    def guard(self) -> threading.RLock:
        return self._lock

    @asynccontextmanager
    async def turnstile(self) -> AsyncGenerator[None, None]:
        with self._mending:
            yield

    async def connect(self, within: float) -> Line:
        return self._client.link(within)

    async def ready(self, line: Line | None, events: list[Json]) -> None:
        pass  # it may block anywhere

    async def wait(self, line: Line, ticket: Ticket, within: float) -> None:
        cast("Link", line).wait_answered(ticket, max(within, 0.001))

    async def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def now(self) -> float:
        return time.monotonic()

    def wall_clock(self) -> int:
        return time.time_ns() // 1_000_000
