"""A session as an agent under asyncio or trio uses it: the same shape as `dsh_client.session`, awaited.

It owns the write handle from `open_session` to the end of its block. The one rule: the model is called only inside
`step.request(…)` and a tool's body runs only inside `step.tool(…)`; both are entered when what must be durable is
durable, and raise otherwise.

Calls of one step may run in tasks side by side: their checkpoints share the daemon's flushes. A cancelled task records
what it must without waiting, so that cancelling is quick and leaves a log that can be read.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import anyio

from dsh_client import history
from dsh_client.connection import AsyncClient, AsyncLink
from dsh_client.course import Course
from dsh_client.errors import ClientError, MisuseError
from dsh_client.handle import Handle
from dsh_client.ledger import FLUSH
from dsh_client.opening import Header, Opening
from dsh_client.session import CLOSE_WITHIN
from dsh_protocol.errors import DshdError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from dsh_client.calls import OpenCall
    from dsh_client.exchange import Ticket
    from dsh_client.ports import Line
    from dsh_client.shapes import Json, Prompt, ToolCall


@asynccontextmanager
async def open_session(
    session_id: str | None = None,
    *,
    client: AsyncClient | None = None,
    create: bool = True,
    takeover: bool = False,
    **header: Unpack[Header],
) -> AsyncGenerator[AsyncSession, None]:
    """Take the write handle of a session, give it up at the end of the block.

    What the last holder left open is closed here and told in `AsyncSession.repairs`. At the end everything recorded is
    made durable; after an exception that is tried for a few seconds and the exception goes on.

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
    async with AsyncExitStack() as stack:
        if client is None:
            client = await stack.enter_async_context(AsyncClient())
        handle = Handle(_AsyncPorts(client), Opening(session_id, create, takeover, header))
        await handle.open()
        try:
            yield AsyncSession(handle)
        except BaseException as failure:
            with anyio.CancelScope(shield=True):  # bounded by CLOSE_WITHIN
                try:
                    await handle.close(CLOSE_WITHIN)
                except (DshdError, ClientError) as second:
                    failure.add_note(f"closing session {handle.id!r} failed too: {second}")
            raise
        await handle.close()


class AsyncSession:
    """A session whose write handle this process has. Tasks of one event loop may share it."""

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

    async def messages(self) -> list[Json]:
        """Return the history as a provider takes it, what is recorded but not yet durable included."""
        return await history.messages(self._handle)

    def turn(self, *prompts: Prompt) -> AsyncTurn:
        """Return the next turn, to be entered; the prompts are recorded with its first step."""
        return AsyncTurn(self._course, prompts)

    async def append(self, events: Sequence[Mapping[str, Any]]) -> int:
        """Record events of the program's own; return the seq of the first. Not yet durable.

        Raises:
            EventInvalidError: A rule of the log forbids them; nothing is recorded.
        """
        entry = await self._handle.record([self._handle.stamp(event) for event in events])
        return entry.first

    async def flush(self) -> int:
        """Wait until everything recorded is durable; return how many events are. Opens the latch.

        Raises:
            DshdError: It failed, and the latch is closed.
            ClientError: No daemon, or no answer in time; likewise.
        """
        return await self._handle.flush()


class AsyncTurn:
    """One turn: entering records its start, leaving its end and waits until that is durable.

    An exception ends it as failed or aborted, without waiting, and goes on.
    """

    def __init__(self, course: Course, prompts: Sequence[Prompt]) -> None:
        """Make a turn that is not begun; `AsyncSession.turn` does that."""
        self._course = course
        self._prompts = prompts

    async def __aenter__(self) -> Self:
        """Record the start."""
        await self._course.begin_turn(self._prompts)
        return self

    async def __aexit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        """Record the end; wait for it if nothing failed."""
        await self._course.end_turn(failure)  # noqa: ASYNC102  waits only if nothing failed

    def step(self, *prompts: Prompt) -> AsyncStep:
        """Return the next step, to be entered; the prompts are messages that come between two steps."""
        return AsyncStep(self._course, prompts)

    def end(self, reason: Mapping[str, Any]) -> None:
        """Say with which reason the turn ends (`{"kind": "max-tokens"}`), where that is not `completed`."""
        self._course.reason = dict(reason)


class AsyncStep:
    """One step: a request, the model's answer, its calls. Leaving waits until all of it is durable."""

    def __init__(self, course: Course, prompts: Sequence[Prompt]) -> None:
        """Make a step that is not begun; `AsyncTurn.step` does that."""
        self._course = course
        self._prompts = prompts

    async def __aenter__(self) -> Self:
        """Record the start, and the messages that go into the request."""
        await self._course.begin_step(self._prompts)
        return self

    async def __aexit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        """Answer the calls that did not run, record the end; wait for it if nothing failed."""
        await self._course.end_step(failure)  # noqa: ASYNC102  waits only if nothing failed

    def request(self, header: Mapping[str, Any]) -> AsyncRequest:
        """Return a request, to be entered (or awaited): then everything that the model will see is durable.

        Args:
            header: `{"config": {"provider", "model", …}, "system"?, "tools"?}`; recorded where it is new.
        """
        return AsyncRequest(self._course, header)

    async def answer(
        self, content: Prompt, *, usage: Mapping[str, Any] | None = None, interrupted: bool = False
    ) -> list[ToolCall]:
        """Record what the model answered (text, blocks or a message); return the calls that it asks for.

        Raises:
            MisuseError: No request was made in this step since the last answer.
        """
        return await self._course.answer(content, usage, interrupted=interrupted)

    def tool(self, call: ToolCall) -> AsyncTool:
        """Return a call of the model, to be entered: its body runs only if the daemon says DISPATCH."""
        return AsyncTool(self._course, call)


class AsyncRequest:
    """A model request: entering (or awaiting) it waits until everything that the model will see is durable."""

    def __init__(self, course: Course, header: Mapping[str, Any]) -> None:
        """Make a request whose checkpoint is not taken; `AsyncStep.request` does that."""
        self._course = course
        self._header = header

    def __await__(self) -> Generator[Any, Any, Self]:
        """Take the checkpoint, for programs that have no use for a block."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        """Take the checkpoint; call the model after that.

        Raises:
            LatchedError: An earlier checkpoint failed; nothing is sent.
            DshdError: The checkpoint failed: do not call the model. The latch is closed.
            ClientError: No answer: likewise.
        """
        await self._course.request(self._header)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Nothing is recorded here: `AsyncStep.answer` does that."""

    async def chunk(self, chunk: Mapping[str, Any]) -> None:
        """Record a piece of the model's stream; the next answer cites all of them."""
        await self._course.chunk(chunk)


class AsyncTool:
    """One call: entering waits until its start is durable, so that a crash in the body can be told from none.

    An exception of the body is recorded as the call's result and goes on.
    """

    def __init__(self, course: Course, call: ToolCall) -> None:
        """Make a call that is not started; `AsyncStep.tool` does that."""
        self._course = course
        self._open: OpenCall | None = None
        self.call = call

    async def __aenter__(self) -> Self:
        """Record that the call starts.

        Raises:
            LatchedError: An earlier checkpoint failed; nothing is sent.
            NotDispatchedError: The daemon did not let it run.
            DshdError: The checkpoint failed; the body must not run. The latch is closed.
            ClientError: No answer: likewise.
            MisuseError: The model did not ask for it, or it was started before.
        """
        self._open = await self._course.begin_tool(self.call)
        return self

    async def __aexit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        """Record what the body raised, or an empty result where it gave none."""
        await self._course.end_tool(self._started(), failure)  # noqa: ASYNC102  waits only if nothing failed

    @property
    def idempotency_key(self) -> str | None:
        """The key to hand to what the tool changes: the same call has the same key after a crash."""
        return self._started().idempotency_key

    async def result(
        self, content: Prompt, *, is_error: bool = False, meta: Mapping[str, Any] | None = None
    ) -> None:
        """Record the call's result at once; call it once, as soon as the effect has happened."""
        found = self._started()
        result = {"content": content, "isError": is_error, "meta": meta}
        await self._course.answer_tool(found, result)

    def dispatch(self, name: str, arguments: str) -> AsyncNested:
        """Return a call that this tool makes of another one, to be entered."""
        return AsyncNested(self._course, self._started(), self.call.id, (name, arguments))

    def _started(self) -> OpenCall:
        if self._open is None:
            raise MisuseError(f"call {self.call.id!r} is not started; enter step.tool(call) first")
        return self._open


class AsyncNested:
    """A call made by a running tool: recorded, but it shares the outer call's checkpoint."""

    def __init__(self, course: Course, outer: OpenCall, root: str, what: tuple[str, str]) -> None:
        """Make a nested call that is not started; `AsyncTool.dispatch` does that."""
        self._course = course
        self._outer = outer
        self._root = root
        self._what = what
        self._open: OpenCall | None = None

    async def __aenter__(self) -> Self:
        """Record that it starts.

        Raises:
            LatchedError: A checkpoint failed; the body must not run.
            DshdError: Likewise.
        """
        self._open = await self._course.begin_nested(self._outer, self._root, *self._what)
        return self

    async def __aexit__(self, _kind: object, failure: BaseException | None, _trace: object) -> None:
        """Record what the body raised, or an empty result where it gave none."""
        self._course.settle_nested(self._started(), self._outer, self._root, failure)

    async def result(self, content: Prompt, *, is_error: bool = False) -> None:
        """Record how it ended."""
        result = {"content": content, "isError": is_error}
        self._course.answer_nested(self._started(), self._outer, self._root, result)

    def _started(self) -> OpenCall:
        if self._open is None:
            raise MisuseError("a nested call is not started; enter tool.dispatch(…) first")
        return self._open


class _AsyncPorts:
    """Locks, clock and waiting of an asynchronous client."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._mending = anyio.Lock()
        self.timeout = client.timeout

    def guard(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing is awaited inside: no other task runs meanwhile

    def turnstile(self) -> anyio.Lock:
        return self._mending

    async def connect(self, within: float) -> Line:
        return await self._client.link(within)

    async def ready(self, line: Line | None, events: list[Json]) -> None:
        pass  # a writer of its own sends what is put here

    async def wait(self, line: Line, ticket: Ticket, within: float) -> None:
        link = cast("AsyncLink", line)
        # what has been appended stays appended; only a wait for the disk can be called off
        cancel = ticket.method.startswith("checkpoint.") or ticket.method == FLUSH
        await link.wait_answered(ticket, max(within, 0.001), cancel=cancel)

    async def pause(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    def now(self) -> float:
        return anyio.current_time()

    def wall_clock(self) -> int:
        return time.time_ns() // 1_000_000
