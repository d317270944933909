"""What one connection is being answered: its calls in flight, their order, its batches and notifications.

The rule that holds here: calls on one session are admitted in the order of their lines and answered in that order;
everything else runs side by side. A large reply is made only when there is room for it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from dsh_protocol import envelope
from dsh_protocol.envelope import Batch, Refusal
from dsh_protocol.errors import DshdError, FrameTooLargeError, OverloadedError
from dsh_protocol.method import ALIASES, METHODS, convert_params
from dshd.rpc.answers import Answers
from dshd.rpc.calls import Call
from dshd.rpc.context import Context
from dshd.rpc.driving import AT_ONCE, Driving, contained, fail
from dshd.sessions.at_once import Signal
from dshd.sessions.threads import out_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from dsh_protocol.envelope import Message, Request
    from dshd.rpc.context import Connected, Services
    from dshd.rpc.dispatch import Dispatcher

_CANCEL = frozenset({"$/cancelRequest", "$/cancel_request"})
_BULKY = frozenset(
    {
        "session.read",
        "session.messages",
        "session.list",
        "session.search",
        "daemon.metrics",
        "rpc.discover",
    }
)
_MOST_BULKY = 16
"""Calls with large replies that wait for their turn; beyond that the connection is not read."""
_MOST_WAITING_BYTES = 1024 * 1024
"""Of the lines whose calls are in flight; one is taken however large it is."""
_BULKY_BYTES = 4 * 1024 * 1024
"""About the largest reply of one."""


class Serving:
    """The calls of one connection.

    Args:
        services: What handlers need.
        dispatcher: Finds the handler of a call.
        connected: The connection; its nursery runs the calls, its outbox takes the replies.

    Attributes:
        running: How many calls have no answer yet.
        driving: Serves those that need no task.
    """

    def __init__(self, services: Services, dispatcher: Dispatcher, connected: Connected) -> None:
        self._services = services
        self._dispatcher = dispatcher
        self._connected = connected
        self._nursery = connected.nursery
        self._outbox = connected.outbox
        self._limits = services.settings.limits
        self._lanes: dict[str, Call] = {}
        self._in_flight: dict[Any, Call] = {}
        self._less = trio.Event()
        self._bulky_batch = Signal()
        self._bulky_batch.set()
        self._bulky = 0
        self._waiting_bytes = 0
        self.driving = Driving(self._dispatch, self._end_at_once, self._end_call)
        self.running = 0

    async def wait_room(self) -> None:
        """Wait while too much is in flight or unsent: back-pressure before refusal."""
        if self._has_room() and self._outbox.has_room:
            return
        self.driving.begin_due()
        await self._outbox.wait_room()
        while not self._has_room():
            await self.wait_less()

    def _has_room(self) -> bool:
        return (
            self.running < self._limits.max_calls_in_flight
            and self._bulky < _MOST_BULKY
            and self._waiting_bytes < _MOST_WAITING_BYTES
        )

    async def wait_less(self) -> None:
        """Wait until a call has ended."""
        self._less = trio.Event()
        await self._less.wait()

    def start(self, message: Message, size: int) -> None:
        """Begin to serve what a line of `size` bytes held."""
        if isinstance(message, Refusal):
            self._refuse(message)
        elif isinstance(message, Batch):
            self._start_batch(message, size)
        elif not message.has_id:
            self._start_notification(message, size)
        else:
            self._start(message, size)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what cannot be served; of a notification, remember the failure for its writer's next call."""
        if not refusal.notification:
            self._outbox.put(envelope.encode_error(refusal.id, refusal.error))
        elif refusal.method == "session.append":
            self._note_failed(refusal.session_id, refusal.writer, refusal.error)
        else:
            self._services.metrics.inc("dshd_notifications_dropped", reason="method")

    def _note_failed(self, session_id: Any, writer: Any, error: DshdError) -> None:
        claim = self._services.registry.claim_of(session_id, writer)
        if claim is None:
            self._services.metrics.inc("dshd_notifications_dropped", reason=error.kind)
        elif claim.notification_error is None:
            claim.notification_error = error

    def _new_call(self, request: Request, size: int) -> Call:
        call = Call(request, size, trio.current_time())
        method = METHODS.get(ALIASES.get(request.method, request.method))
        session_id = request.params.get("id") if method is not None else None
        in_lane = method is not None and (method.session_param or method.name == "session.create")
        if in_lane and isinstance(session_id, str):
            call.before = self._lanes.get(session_id)
            self._lanes[session_id] = call
        self.running += 1
        self._bulky += request.method in _BULKY
        self._waiting_bytes += size
        if request.has_id:
            self._in_flight[request.id] = call
        return call

    def _end_call(self, call: Call) -> None:
        call.admitted.set()
        call.answered.set()
        self.running -= 1
        self._bulky -= call.request.method in _BULKY
        self._waiting_bytes -= call.size
        self._less.set()
        if self._in_flight.get(call.request.id) is call:
            del self._in_flight[call.request.id]
        session_id = call.request.params.get("id")
        if isinstance(session_id, str) and self._lanes.get(session_id) is call:
            del self._lanes[session_id]
        call.before = None

    def _start(self, request: Request, size: int) -> None:
        if request.method in _CANCEL:
            self._outbox.put(self._cancel(request))
            return
        call = self._new_call(request, size)
        if not self.driving.begin(call):
            self._nursery.start_soon(self._serve, call)

    def _end_at_once(self, call: Call, result: Any, error: BaseException | None) -> None:
        """Answer a call that had no task. A defect here is the connection's, as in a task."""

        def end() -> None:
            call.admitted.set()
            if call.request.has_id:
                self._answer_in_turn(call, self._line(call, result, error))
                return
            if isinstance(error, DshdError):
                self._note_call_failed(call, error)
            elif isinstance(error, Exception):
                self._nursery.start_soon(fail, error)
            self._in_turn(call, lambda: self._end_call(call))

        contained(self._nursery, end)

    def _answer_in_turn(self, call: Call, reply: bytes) -> None:
        before = call.before
        held = 0 if before is None or before.answered.is_set else len(reply)

        def answer() -> None:
            if held:
                self._outbox.release(held)
            try:
                self._outbox.put(reply)
            finally:
                self._end_call(call)

        if held:
            self._outbox.hold(held)
        self._in_turn(call, answer)

    def _in_turn(self, call: Call, act: Callable[[], None]) -> None:
        """Do it when the call before this one in its lane has been answered: now, where it has."""
        if call.before is None:
            act()
        else:
            call.before.answered.then(lambda: contained(self._nursery, act))

    async def _serve(self, call: Call) -> None:
        try:
            reply = await self._reply(call)
            self._outbox.hold(len(reply))
            try:
                await call.wait_turn_to_answer()
            finally:
                self._outbox.release(len(reply))
            self._outbox.put(reply)
            if call.after_reply is not None:
                call.after_reply()
        finally:
            self._end_call(call)

    async def _reply(self, call: Call) -> bytes:
        """Serve a call and return its reply as a line."""
        try:
            result = await call.run(self._dispatch)
        except (DshdError, MemoryError) as error:
            return self._line(call, None, error)
        return self._line(call, result, None)

    def _line(self, call: Call, result: Any, error: BaseException | None) -> bytes:
        """Return the reply to a call, and count it."""
        request, kind = call.request, "OK"
        try:
            if error is not None:
                raise error
            line = envelope.encode_result(request.id, result)
            if len(line) > self._limits.max_line_bytes:
                raise FrameTooLargeError(
                    f"the answer has {len(line)} bytes, more than maxLineBytes"
                    f" ({self._limits.max_line_bytes}); ask for less at a time",
                    limit="maxLineBytes",
                    maximum=self._limits.max_line_bytes,
                )
        except MemoryError:
            kind, line = OverloadedError.kind, envelope.encode_error(request.id, out_of("memory"))
        except DshdError as refusal:
            kind = refusal.kind
            line = envelope.encode_error(request.id, refusal)
        finally:
            error = None  # its traceback knows this frame, which holds all of the call
        method = request.method if request.method in METHODS else "unknown"
        self._services.metrics.inc("dshd_calls", method=method, kind=kind)
        self._services.metrics.observe(
            "dshd_call_seconds", trio.current_time() - call.read_at, method=method
        )
        return line

    async def _dispatch(self, call: Call) -> Any:
        if not call.request.has_id and self._follows_failure(call):
            self._services.metrics.inc("dshd_notifications_dropped", reason="after-failure")
            return None
        context = Context(self._services, self._connected, call)
        if call.request.method in AT_ONCE:
            return await self._dispatcher.directly(context)
        if call.request.method not in _BULKY:
            return await self._dispatcher.dispatch(context)
        making = self._services.making.place() if call.in_batch else self._outbox.large()
        async with making:
            return await self._dispatcher.dispatch(context)

    def _cancel(self, request: Request) -> bytes:
        """Act on a `$/cancelRequest` and return its answer; a call is found by what its id came to when it was read."""
        try:
            asked: Any = convert_params(request.method, request.params)
        except DshdError as error:
            if not request.has_id:
                self._services.metrics.inc("dshd_notifications_dropped", reason=error.kind)
            return envelope.encode_error(request.id, error)
        call = self._in_flight.get(asked.id)
        if call is not None:
            call.cancel()
        return envelope.encode_result(request.id, {})

    # ------------------------------------------------------------------ notifications

    def _start_notification(self, request: Request, size: int) -> None:
        if request.method in _CANCEL:
            self._cancel(request)
        elif request.method == "session.append":
            call = self._new_call(request, size)
            if not self.driving.begin(call):
                self._nursery.start_soon(self._serve_notification, call)
        else:
            self._services.metrics.inc("dshd_notifications_dropped", reason="method")

    async def _serve_notification(self, call: Call) -> None:
        try:
            await self._run_notification(call)
            await call.wait_turn_to_answer()
        finally:
            self._end_call(call)

    async def _run_notification(self, call: Call) -> None:
        try:
            await call.run(self._dispatch)
        except DshdError as error:
            self._note_call_failed(call, error)

    def _follows_failure(self, call: Call) -> bool:
        """Whether an earlier notification has failed and its writer does not know yet."""
        params = call.request.params
        claim = self._services.registry.claim_of(params.get("id"), params.get("writer"))
        return claim is not None and claim.notification_error is not None

    def _note_call_failed(self, call: Call, error: DshdError) -> None:
        params = call.request.params
        self._note_failed(params.get("id"), params.get("writer"), error)

    # ------------------------------------------------------------------ batches

    def _start_batch(self, batch: Batch, size: int) -> None:
        share = size // max(len(batch.items), 1)
        items: list[Call | bytes] = []
        for item in batch.items:
            if isinstance(item, Refusal) and item.notification:
                self._refuse(item)
            elif isinstance(item, Refusal):
                items.append(envelope.encode_error(item.id, item.error))
            elif item.method in _CANCEL:
                answer = self._cancel(item)
                if item.has_id:
                    items.append(answer)
            elif item.has_id or item.method == "session.append":
                call = self._new_call(item, share)
                call.in_batch = True
                items.append(call)
            else:
                self._services.metrics.inc("dshd_notifications_dropped", reason="method")
        if items:
            # In the order of the lines, not of the tasks: the calls are in their lanes by now.
            turn = self._take_turn([item for item in items if isinstance(item, Call)])
            self._nursery.start_soon(self._serve_batch, items, turn)

    async def _serve_batch(self, items: list[Call | bytes], turn: tuple[Signal, Signal]) -> None:
        """Admit the calls of one line in order, and answer them in one line."""
        calls = dict.fromkeys(item for item in items if isinstance(item, Call))
        answers = Answers(self._limits.max_line_bytes)
        after, done = turn
        try:
            await after.wait()
            async with self._room_for(calls), trio.open_nursery() as nursery:
                for at, item in enumerate(items):
                    if isinstance(item, bytes):
                        answers.put(at, item)
                    else:
                        nursery.start_soon(self._serve_in_batch, item, answers, at)
                        await item.admitted.wait()
            for call in calls:
                if call.before is not None and call.before not in calls:
                    await call.before.answered.wait()
            line = answers.joined()
            if line is not None:
                self._outbox.put(line)
            for call in calls:
                if call.after_reply is not None:
                    call.after_reply()
        except OverloadedError as error:  # no room for the answers, so nothing was begun
            self._outbox.put(envelope.encode_error(None, error))
        finally:
            done.set()
            for call in calls:
                self._end_call(call)

    @asynccontextmanager
    async def _room_for(self, calls: dict[Call, None]) -> AsyncGenerator[None, None]:
        """Reserve room for a batch's answers, when nothing that may wait for room itself comes before its calls."""
        bulky = sum(call.request.method in _BULKY for call in calls)
        for call in calls if bulky else ():
            if call.before is not None and call.before not in calls:
                await call.before.admitted.wait()
        size = min(bulky * _BULKY_BYTES, self._limits.max_line_bytes)
        async with self._services.making.reserved(size):
            yield

    def _take_turn(self, calls: list[Call]) -> tuple[Signal, Signal]:
        """What a batch waits for and what it sets at its end: those with large replies come one after the other."""
        after, done = self._bulky_batch, Signal()
        if any(call.request.method in _BULKY for call in calls):
            self._bulky_batch = done
            return after, done
        free = Signal()
        free.set()
        return free, done

    async def _serve_in_batch(self, call: Call, answers: Answers, at: int) -> None:
        if call.request.has_id:
            answers.put_call(at, call.request.id, await self._reply(call))
        else:
            await self._run_notification(call)
        await call.end_admission()
