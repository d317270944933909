"""What a log says at its end: the open turn and step, the calls without a result, what is in force.

The fold takes any stored event, one at a time, however odd: only a surface that does not fit is refused. What clients
may append is judged before, in `rules`. The one rule: the state depends on the events alone, not on who wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dsh_protocol.events import SURFACE_TYPES
from dshd.sessions.surface import Surface, SurfaceDefectError
from dshd.sessions.values import is_array, is_count, is_object, members

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_protocol.events import Event

CLOSER_ID = "interrupted-tool-result-"
_PLAIN_KEYS = 4  # type, seq, time, data


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of the last turn.

    Attributes:
        turn: The number of the turn that was open when the model asked.
        step: As the asking message gives it, whatever step is open.
        message_seq: The `assistant/message` that asked; None for a call that nobody asked for.
        call_seq: The `tool/call` as crash recovery counts it; asking again forgets it.
        started_seq: The `tool/call`, whoever asked again since: whether a body may have run.
        result_seq: The first `tool/result`, also one that recovery wrote.
    """

    call_id: str
    name: Any
    arguments: Any
    turn: Any
    step: Any
    message_seq: int | None = None
    call_seq: int | None = None
    started_seq: int | None = None
    result_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A nested call of a running tool, started and not settled."""

    call_id: str
    root_call_id: str
    parent_call_id: str
    name: str
    arguments: Any
    seq: int


@dataclass(frozen=True, slots=True)
class Committed:
    """How the last turn was closed by recovery: the stored closers, and the calls they answered, in order."""

    closers: list[Event]
    calls: list[Call]


def tool_calls(message: Any) -> list[dict[str, Any]]:
    """Return the tool-call blocks of a message, of whatever shape, that carry a usable id."""
    content = members(message).get("content")
    if not is_array(content):
        return []
    return [
        block
        for block in content
        if is_object(block)
        and block.get("type") == "tool-call"
        and isinstance(block.get("id"), str)
    ]


def result_call_id(data: Any) -> Any:
    """Return the call that the data of a `tool/result` answers; None where it names none."""
    return members(members(members(data).get("message")).get("source")).get("callId")


class Fold:
    """The incremental state of one log.

    `begin`, then `commit` or `rollback`, make a group of events all or none. They nest; an outer rollback undoes all.

    Attributes:
        next_seq: The log's length (with a base, the absolute seq of the next event).
        last_time: `time` of the last event; None in an empty log.
        last_type: `type` of the last event; None in an empty log.
        turns: How many `turn/start` there are.
        last_turn: The number of the last one, 0 before the first. A number that is not a count leaves it unchanged.
        open_turn, open_step: As stored, hence of any type in an odd log; None where none is open.
        last_step: The number of the open turn's last `step/start`, 0 before the first.
        title: Of the last `session/title`.
        request_header, request_context: As last recorded.
        pending: The calls that recovery would answer, by call id, in its order.
        calls: Every call of the last turn by id, the latest of an id; kept until the next `turn/start`.
        nested: Dispatches started and not settled, by their own id.
        nested_ids: Every nested id of the open step, settled or not.
        committed: Set from the interrupted turn's stored end until the next `turn/start`.
        surface: The surface.
    """

    __slots__ = (
        "_closer_results",
        "_marks",
        "_replaced",
        "_step_end",
        "calls",
        "committed",
        "last_step",
        "last_time",
        "last_turn",
        "last_type",
        "nested",
        "nested_ids",
        "next_seq",
        "open_step",
        "open_turn",
        "pending",
        "request_context",
        "request_header",
        "surface",
        "title",
        "turns",
    )

    def __init__(self, base_seq: int = 0) -> None:
        """Begin before the first event, or at `base_seq` for a part of a log."""
        self.next_seq = base_seq
        self.last_time: int | None = None
        self.last_type: str | None = None
        self.turns = 0
        self.last_turn = 0
        self.open_turn: Any = None
        self.open_step: Any = None
        self.last_step = 0
        self.title: str | None = None
        self.request_header: dict[str, Any] | None = None
        self.request_context: dict[str, Any] | None = None
        self.pending: dict[str, Call] = {}
        self.calls: dict[str, Call] = {}
        self.nested: dict[str, Dispatch] = {}
        self.nested_ids: frozenset[str] = frozenset()
        self.committed: Committed | None = None
        self.surface = Surface()
        self._closer_results: list[tuple[Event, Call]] = []
        self._step_end: tuple[Event, int | None] | None = None
        self._marks: list[tuple[Any, ...]] = []
        self._replaced: list[tuple[dict[str, Call], str, Call | None]] = []

    @property
    def ends_with_end_seed(self) -> bool:
        """Whether the last event is `session/end-seed`, so that a resume adds none."""
        return self.last_type == "session/end-seed"

    @property
    def half_closed(self) -> list[Call]:
        """The calls that a recovery answered before it was cut off: its closers end the log, the turn is open."""
        if self.open_turn is None:
            return []
        return self._closers_before(self.next_seq, self.last_time)[1]

    @property
    def unsettled(self) -> tuple[list[tuple[Event, Call]], tuple[Event, int | None] | None]:
        """What may yet turn out to be closers: results as recovery writes them, and the last `step/end`."""
        return self._closer_results, self._step_end

    @unsettled.setter
    def unsettled(
        self, found: tuple[list[tuple[Event, Call]], tuple[Event, int | None] | None]
    ) -> None:
        self._closer_results, self._step_end = found

    def apply(self, event: Event) -> None:
        """Take the next event in, from a stored log or just admitted.

        Raises:
            SurfaceDefectError: Its seq is not the next one, or it does not fit the surface. Nothing changed.
        """
        if event["seq"] != self.next_seq:
            text = f"seq {event['seq']!r} where {self.next_seq} is the next"
            raise SurfaceDefectError("seq-not-contiguous", text)
        kind: str = event["type"]
        if len(event) > _PLAIN_KEYS or kind in SURFACE_TYPES:
            self.surface.apply(event)
        effect = self._EFFECTS.get(kind)
        if effect is not None:
            effect(self, event, members(event.get("data")))
        self.next_seq += 1
        self.last_time = event.get("time")  # absent only in a log that cannot be continued
        self.last_type = kind

    def begin(self) -> None:
        """Mark the state to which `rollback` returns."""
        mark = (
            (self.next_seq, self.last_time, self.last_type, self.turns, self.last_turn),
            (self.open_turn, self.open_step, self.last_step, self.title),
            (self.request_header, self.request_context, self.committed, self._step_end),
            (self.pending.copy(), self.nested.copy(), self.nested_ids),
            (self.calls, len(self._replaced)),
            (self._closer_results, len(self._closer_results)),
            self.surface.mark(),
        )
        self._marks.append(mark)

    def commit(self) -> None:
        """Keep what was applied since the last `begin`."""
        self._marks.pop()
        if not self._marks:
            self._replaced.clear()

    def rollback(self) -> None:
        """Undo what was applied since the last `begin`."""
        counters, position, in_force, few, calls, closer_results, surface = self._marks.pop()
        self.next_seq, self.last_time, self.last_type, self.turns, self.last_turn = counters
        self.open_turn, self.open_step, self.last_step, self.title = position
        self.request_header, self.request_context, self.committed, self._step_end = in_force
        self.pending, self.nested, self.nested_ids = few
        self.calls, kept = calls
        self._closer_results, count = closer_results
        del self._closer_results[count:]
        self._put_back(kept)
        self.surface.rollback(surface)

    def _put_back(self, kept: int) -> None:
        """Undo what was noted in `calls` since `kept` notes: a long turn has too many calls to copy them each time."""
        while len(self._replaced) > kept:
            calls, call_id, before = self._replaced.pop()
            if before is None:
                del calls[call_id]
            else:
                calls[call_id] = before

    def _note_call(self, call_id: str, call: Call) -> None:
        if self._marks:
            self._replaced.append((self.calls, call_id, self.calls.get(call_id)))
        self.calls[call_id] = call

    # What each type does. `data` is {} where the stored data is no object.

    def _turn_start(self, _event: Event, data: dict[str, Any]) -> None:
        number = data.get("turn")
        self.turns += 1
        if is_count(number):
            self.last_turn = int(number)
        self.open_turn = number
        self.open_step = None
        self.last_step = 0
        self.pending = {}
        self.calls = {}
        self.committed = None
        self._closer_results = []
        self._clear_nested()

    def _turn_end(self, event: Event, data: dict[str, Any]) -> None:
        if members(data.get("reason")).get("kind") == "interrupted":
            events, calls = self._closers_before(event["seq"], event["time"])
            self.committed = Committed([*events, event], calls)
        self.open_turn = None
        self.open_step = None
        self.pending = {}
        self._clear_nested()

    def _step_start(self, _event: Event, data: dict[str, Any]) -> None:
        number = data.get("step")
        if is_count(number):
            self.last_step = int(number)
        self.open_step = number
        self._clear_nested()

    def _step_ended(self, event: Event, _data: dict[str, Any]) -> None:
        self._step_end = (event, self.last_time)
        self.open_step = None
        self.pending = {}
        self._clear_nested()

    def _asked(self, event: Event, data: dict[str, Any]) -> None:
        for block in tool_calls(data.get("message")):
            call_id = block["id"]
            before = self.calls.get(call_id)
            unanswered = before is not None and before.result_seq is None
            call = Call(
                call_id=call_id,
                name=block.get("name"),
                arguments=block.get("arguments"),
                turn=self.open_turn,
                step=data.get("step"),
                message_seq=event["seq"],
                started_seq=before.started_seq if before is not None and unanswered else None,
            )
            self.pending[call_id] = call
            self._note_call(call_id, call)

    def _started(self, event: Event, data: dict[str, Any]) -> None:
        call_id = data.get("callId")
        if not isinstance(call_id, str):
            return
        seq: int = event["seq"]
        call = self.calls.get(call_id)
        if call is None or call.result_seq is not None:
            call = Call(
                call_id=call_id,
                name=data.get("name"),
                arguments=data.get("arguments"),
                turn=self.open_turn,
                step=data.get("step"),
            )
        call = replace(call, call_seq=seq, started_seq=seq)
        self._note_call(call_id, call)
        if call_id in self.pending:
            self.pending[call_id] = call

    def _answered(self, event: Event, data: dict[str, Any]) -> None:
        call_id = result_call_id(data)
        call = self.pending.pop(call_id, None) if isinstance(call_id, str) else None
        if call is None:
            return
        self._note_call(call_id, replace(call, result_seq=event["seq"]))
        message_id = f"{CLOSER_ID}{call_id}-{event['seq']}"
        if event.get("surfaceOp") == "append" and data["message"].get("id") == message_id:
            self._closer_results.append((event, call))

    def _dispatched(self, event: Event, data: dict[str, Any]) -> None:
        call_id = data.get("subCallId")
        if not isinstance(call_id, str):
            return
        self.nested[call_id] = Dispatch(
            call_id=call_id,
            root_call_id=data.get("rootCallId", ""),
            parent_call_id=data.get("parentCallId", ""),
            name=data.get("name", ""),
            arguments=data.get("arguments"),
            seq=event["seq"],
        )
        self.nested_ids |= {call_id}

    def _settled(self, _event: Event, data: dict[str, Any]) -> None:
        call_id = data.get("subCallId")
        if isinstance(call_id, str):
            self.nested.pop(call_id, None)

    def _titled(self, _event: Event, data: dict[str, Any]) -> None:
        title = data.get("title")
        if isinstance(title, str):
            self.title = title

    def _header_recorded(self, _event: Event, data: dict[str, Any]) -> None:
        header = data.get("header")
        if is_object(header):
            self.request_header = header

    def _context_recorded(self, _event: Event, data: dict[str, Any]) -> None:
        self.request_context = data

    def _clear_nested(self) -> None:
        if self.nested_ids:
            self.nested = {}
            self.nested_ids = frozenset()

    def _closers_before(self, seq: int, time: int | None) -> tuple[list[Event], list[Call]]:
        """Find the closers, of one time, that stand right before `seq`, and the calls that they answer.

        A real `step/end` of that very millisecond with nothing unanswered before it cannot be told from a closer and is
        taken for one.
        """
        events: list[Event] = []
        calls: list[Call] = []
        if self._step_end is not None:
            step_end, time_before = self._step_end
            if step_end["seq"] == seq - 1 and step_end["time"] == time == time_before:
                events.append(step_end)
        for event, call in reversed(self._closer_results):
            if event["seq"] != seq - 1 - len(events):
                break
            events.append(event)
            calls.append(call)
        return events[::-1], calls[::-1]

    _EFFECTS: ClassVar[dict[str, Callable[[Fold, Event, dict[str, Any]], None]]] = {
        "turn/start": _turn_start,
        "turn/end": _turn_end,
        "step/start": _step_start,
        "step/end": _step_ended,
        "assistant/message": _asked,
        "tool/call": _started,
        "tool/result": _answered,
        "tool/code-dispatch-start": _dispatched,
        "tool/code-dispatch": _settled,
        "session/title": _titled,
        "request/header": _header_recorded,
        "request/context": _context_recorded,
    }
