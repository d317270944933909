"""Calls that a log leaves without a result though their step or turn has ended, and the answers a history gives them.

Pure: events in, answers out. The one rule: the log is not touched. An answer exists in the history that is read, is the
same whenever it is read, and says of a call that began nothing but that its outcome is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dshd.sessions import closers
from dshd.sessions.fold import Call, result_call_id, tool_calls
from dshd.sessions.values import members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import ClassVar

    from dsh_protocol.events import Event, Header

ANSWER_ID = "unanswered-tool-result-"


@dataclass(frozen=True, slots=True)
class Answer:
    """What stands in a history, behind the message that asked, for a result that no log has."""

    call: Call
    message: dict[str, Any]


class Unanswered:
    """The calls of one log that wait for a result, as events are taken in.

    A result belongs to the last message that asked for its call id. What was asked before, and what is still open when
    its step or turn ends, will get none.
    """

    def __init__(self) -> None:
        """Begin before the first event."""
        self._turn: Any = None
        self._waiting: dict[str, Call] = {}  # of the open step, by call id
        self._left: list[Call] = []
        self._began: dict[str, int] = {}  # of the open turn, begun and not answered

    def add(self, event: Event) -> None:
        """Take the next event in, of a log that folds."""
        effect = self._EFFECTS.get(event["type"])
        if effect is not None:
            effect(self, event, members(event.get("data")))

    def _turn_started(self, _event: Event, data: dict[str, Any]) -> None:
        self._leave()
        self._turn = data.get("turn")
        self._began = {}

    def _ended(self, _event: Event, _data: dict[str, Any]) -> None:
        self._leave()

    def _asked(self, event: Event, data: dict[str, Any]) -> None:
        for block in tool_calls(data.get("message")):
            call_id = block["id"]
            before = self._waiting.pop(call_id, None)
            if before is not None and before.message_seq != event["seq"]:
                self._left.append(before)
            self._waiting[call_id] = Call(
                call_id=call_id,
                name=block.get("name"),
                arguments=block.get("arguments"),
                turn=self._turn,
                step=data.get("step"),
                message_seq=event["seq"],
                started_seq=self._began.get(call_id),
            )

    def _started(self, event: Event, data: dict[str, Any]) -> None:
        call_id = data.get("callId")
        if not isinstance(call_id, str):
            return
        self._began[call_id] = event["seq"]
        call = self._waiting.get(call_id)
        if call is not None:
            self._waiting[call_id] = replace(call, started_seq=event["seq"])

    def _answered(self, event: Event, data: dict[str, Any]) -> None:
        call_id = result_call_id(data)
        if event.get("surfaceOp") != "append" or not isinstance(call_id, str):
            return
        self._began.pop(call_id, None)
        if self._waiting.pop(call_id, None) is None:
            self._answered_late(call_id)

    def _answered_late(self, call_id: str) -> None:
        """A result behind the end of the step that asked: late, and an answer all the same."""
        for place in range(len(self._left) - 1, -1, -1):
            if self._left[place].call_id == call_id:
                del self._left[place]
                return

    def _leave(self) -> None:
        self._left += self._waiting.values()
        self._waiting = {}

    def answers(self, *, open_turn: bool) -> dict[int, list[Answer]]:
        """Return the answers that are due, by the seq of the message that asked, in the order of its calls.

        Args:
            open_turn: Whether a turn is open: the calls of its open step may still get their results.
        """
        found: dict[int, list[Answer]] = {}
        for call in self._due(open_turn=open_turn):
            seq = call.message_seq
            if seq is not None:
                message = closers.answer(call, f"{ANSWER_ID}{call.call_id}-{seq}")
                found.setdefault(seq, []).append(Answer(call, message))
        return found

    def _due(self, *, open_turn: bool) -> Iterator[Call]:
        yield from self._left
        if not open_turn:
            yield from self._waiting.values()

    _EFFECTS: ClassVar[dict[str, Callable[[Unanswered, Event, dict[str, Any]], None]]] = {
        "turn/start": _turn_started,
        "turn/end": _ended,
        "step/end": _ended,
        "assistant/message": _asked,
        "tool/call": _started,
        "tool/result": _answered,
    }


def reports(answers: list[Answer], header: Header | None) -> list[dict[str, Any]]:
    """Return what is told of answered calls: the wire's `Repair` for each; without a header, without keys."""
    return [closers.repair(answer.call, header) for answer in answers]
