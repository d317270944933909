"""Makes a `Model` of events, one at a time; streamed chunks are folded into the message that they became.

The rule: no stored event makes it fail, whatever its shape; what it does not know becomes a mark or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.render import marks
from dsh_client.cli.render.drafts import Draft
from dsh_client.cli.render.model import (
    ANSWERED,
    ASKED,
    FAILED,
    FATE_OF_CODE,
    RUNNING,
    UNANSWERED,
    USAGE,
    Call,
    Json,
    Mark,
    Model,
    Said,
    Step,
    Tick,
    Turn,
)
from dsh_client.cli.values import as_list, as_object
from dsh_protocol.ids import idempotency_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def build(session: Json, recovery: Json | None, events: Iterable[Json]) -> Model:
    """Return the model of a session: what the daemon says of it, what a recovery would do, its events."""
    builder = Builder(session, recovery or {})
    for event in events:
        builder.take(event)
    return builder.finish()


class Builder:
    """The state while events are taken in order."""

    def __init__(self, session: Json, recovery: Json) -> None:
        """Begin an empty model."""
        self.model = Model(session, as_object(session.get("header")), recovery)
        self._seed = self.model.header.get("seedLength")
        self._turn: Turn | None = None
        self._step: Step | None = None
        self._draft: Draft | None = None
        self._calls: dict[str, Call] = {}  # of the open turn, nested ones too
        self._results: dict[Any, Call] = {}  # by the seq of their result, for rewrites
        self._asked = 0
        self._last: tuple[int, Any] = (-1, None)
        self._takers: dict[str, Callable[[int, Any, Json, Json], None]] = {
            "turn/start": self._turn_start,
            "turn/end": self._turn_end,
            "step/start": self._step_start,
            "step/end": self._step_end,
            "assistant/chunk": self._chunk,
            "assistant/message": self._assistant,
            "user/message": self._user,
            "steering/message": self._user,
            "tool/call": self._tool_call,
            "tool/result": self._tool_result,
            "tool/code-dispatch-start": self._nested_start,
            "tool/code-dispatch": self._nested_end,
            "request/header": self._request_header,
            "llm/retry": self._retry,
            "approval/decided": self._approval,
            "approval/asked": self._approval,
            "session/title": self._title,
        }

    def take(self, event: Json) -> None:
        """Take the next event."""
        seq, time = self.model.events, event.get("time")
        if type(event.get("seq")) is int:
            seq = event["seq"]
        kind, data = str(event.get("type")), as_object(event.get("data"))
        self.model.events += 1
        if kind != "assistant/chunk":
            self.model.ticks.append(Tick(seq, time, self._turn is not None))
        taker = self._takers.get(kind)
        if taker is not None:
            taker(seq, time, data, event)
        else:
            mark = marks.mark_of(kind, seq, time, data)
            if mark is not None:
                self._place(mark)
        if kind != "assistant/chunk":
            self._last = (seq, time)

    def finish(self) -> Model:
        """End the model: keep what was streamed last, and the verdicts that are due."""
        self._end_draft()
        repairs = as_list(self.model.recovery.get("repairs"))
        committed = bool(self.model.recovery.get("committed"))
        for repair in map(as_object, repairs):
            call = self._calls.get(str(repair.get("callId")))
            if call is not None:
                call.key = repair.get("idempotencyKey") or ""
                call.message = repair.get("message") or ""
                if not committed:
                    call.fate = FATE_OF_CODE.get(str(repair.get("code")), call.fate)
                    call.due = True
        return self.model

    def _place(self, item: Said | Mark) -> None:
        if self._step is not None:
            self._step.items.append(item)
        elif self._turn is not None:
            self._turn.items.append(item)
        else:
            self.model.items.append(item)

    # ------------------------------------------------------------ turns and steps

    def _turn_start(self, seq: int, time: Any, data: Json, _event: Json) -> None:
        self._end_draft()
        inherited = isinstance(self._seed, int) and seq < self._seed
        self._turn, self._step = Turn(data.get("turn"), seq, time, inherited=inherited), None
        self._calls = {}
        self.model.items.append(self._turn)

    def _turn_end(self, seq: int, time: Any, data: Json, _event: Json) -> None:
        self._end_draft()
        self._step = None
        turn, self._turn = self._turn, None
        if turn is None:
            return
        turn.reason = as_object(data.get("reason"))
        turn.end_seq, turn.end_time = seq, time
        turn.ended = str(turn.reason.get("kind") or "ended")
        for call in self._calls.values():
            if call.fate in {ASKED, RUNNING}:
                call.fate = UNANSWERED

    def _step_start(self, seq: int, time: Any, data: Json, _event: Json) -> None:
        self._end_draft()
        if self._turn is None:
            self._turn = Turn(None, seq, time)
            self.model.items.append(self._turn)
        self._step = Step(data.get("step"), seq, time)
        self._turn.items.append(self._step)

    def _step_end(self, seq: int, time: Any, _data: Json, _event: Json) -> None:
        self._end_draft()
        if self._step is not None:
            self._step.end_seq, self._step.end_time = seq, time
        self._step = None

    # ------------------------------------------------------------ what is said

    def _chunk(self, seq: int, time: Any, data: Json, _event: Json) -> None:
        self.model.chunks += 1
        if self._draft is None:
            self.model.ticks.append(Tick(seq, time, self._turn is not None))
            self._draft = Draft(seq, time)
            self._mark_request()
        self._draft.take(as_object(data.get("chunk")))
        if self._step is not None:
            self._step.chunks += 1

    def _assistant(self, seq: int, time: Any, data: Json, event: Json) -> None:
        if self._draft is None:
            self._mark_request()
        draft, self._draft = self._draft, None
        message = as_object(data.get("message")) or data
        source = as_object(message.get("source")) or as_object(data.get("provenance"))
        content = [as_object(block) for block in as_list(message.get("content"))]
        self._answered(seq, time, source, as_object(data.get("usage")), draft)
        said = Said(seq, time, "assistant", "model", [], cut=data.get("interrupted") is True)
        said.blocks = [block for block in content if block.get("type") != "tool-call"]
        said.replaces = _replaced(event)
        if said.blocks or said.cut:
            self._place(said)
        for block in content:
            if block.get("type") == "tool-call":
                self._ask(seq, block)

    def _answered(
        self, seq: int, time: Any, source: Json, usage: Json, draft: Draft | None
    ) -> None:
        step = self._step
        if step is None:
            return
        step.answer_seq, step.answer_time = seq, time
        step.provider = str(source.get("provider") or step.provider)
        step.model = str(source.get("model") or step.model)
        figures = usage or (draft.usage if draft else {})
        step.usage = {name: figures[name] for name in USAGE if type(figures.get(name)) is int}
        if draft is not None:
            step.finish = draft.finish

    def _ask(self, seq: int, block: Json) -> None:
        call = Call(str(block.get("id")), str(block.get("name")), block.get("arguments"), seq)
        call.place = self._asked
        self._asked += 1
        self._calls[call.id] = call
        if self._step is not None:
            self._step.items.append(call)

    def _user(self, seq: int, time: Any, data: Json, event: Json) -> None:
        message = as_object(data.get("message")) or data
        source = as_object(message.get("source"))
        kind = str(source.get("kind") or "user")
        content = message.get("content")
        blocks = [as_object(block) for block in as_list(content)]
        if isinstance(content, str):
            blocks = [{"type": "text", "text": content}]
        label = str(source.get("plugin") or "")
        said = Said(seq, time, "user", kind, blocks, label, replaces=_replaced(event))
        self._place(said)

    def _end_draft(self) -> None:
        """Keep what was streamed of a message that never came."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        blocks = draft.blocks
        if blocks:
            self._place(Said(draft.seq, draft.time, "assistant", "model", blocks, draft=True))
        if self._step is not None:
            self._step.finish = draft.finish

    def _mark_request(self) -> None:
        if self._step is not None and self._step.request_seq is None:
            self._step.request_seq, self._step.request_time = self._last

    # ------------------------------------------------------------ calls

    def _tool_call(self, seq: int, time: Any, data: Json, _event: Json) -> None:
        self._end_draft()
        call_id = str(data.get("callId"))
        call = self._calls.get(call_id)
        if call is None or call.seq is not None:
            block = {"id": call_id, "name": data.get("name"), "arguments": data.get("arguments")}
            self._ask(-1, block)
            call = self._calls[call_id]
        self._start(call, seq, time)

    def _start(self, call: Call, seq: int, time: Any) -> None:
        call.seq, call.time, call.fate = seq, time, RUNNING
        header = self.model.header
        if isinstance(header.get("createdAt"), int):
            call.key = idempotency_key(str(header.get("id")), header["createdAt"], seq, call.id)

    def _tool_result(self, seq: int, time: Any, data: Json, event: Json) -> None:
        replaced = _replaced(event)
        if replaced is not None:
            earlier = self._results.get(replaced[0])
            if earlier is not None:
                earlier.rewritten = True
                self._results[seq] = earlier
            return
        message = as_object(data.get("message"))
        block = as_object((as_list(message.get("content")) or [data])[0])
        source = as_object(message.get("source"))
        call_id = str(source.get("callId") or block.get("toolCallId") or block.get("callId"))
        call = self._calls.get(call_id)
        if call is None:
            self._ask(-1, {"id": call_id, "name": "", "arguments": None})
            call = self._calls[call_id]
        call.code = str(as_object(data.get("error")).get("code") or "")
        call.repaired = str(message.get("id", "")).startswith("interrupted-tool-result-")
        self._settle(call, seq, time, block)
        self._results[seq] = call

    def _settle(self, call: Call, seq: int, time: Any, block: Json) -> None:
        call.end_seq, call.end_time = seq, time
        call.result = [as_object(one) for one in as_list(block.get("content"))]
        plain = FAILED if block.get("isError") is True else ANSWERED
        call.fate = FATE_OF_CODE.get(call.code, plain)

    def _nested_start(self, seq: int, time: Any, data: Json, _event: Json) -> None:
        parent = self._calls.get(str(data.get("parentCallId"))) or self._calls.get(
            str(data.get("rootCallId"))
        )
        call = Call(str(data.get("subCallId")), str(data.get("name")), data.get("arguments"), seq)
        self._start(call, seq, time)
        self._calls[call.id] = call
        if parent is not None:
            parent.nested.append(call)

    def _nested_end(self, seq: int, time: Any, data: Json, event: Json) -> None:
        if str(data.get("subCallId")) not in self._calls:
            self._nested_start(seq, time, data, event)
        self._settle(self._calls[str(data.get("subCallId"))], seq, time, data)

    # ------------------------------------------------------------ the rest

    def _request_header(self, seq: int, _time: Any, data: Json, _event: Json) -> None:
        header = as_object(data.get("header"))
        config = as_object(header.get("config"))
        self.model.requests.append((seq, header))
        if self._step is not None:
            self._step.provider = str(config.get("provider") or "")
            self._step.model = str(config.get("model") or "")

    def _retry(self, seq: int, time: Any, data: Json, _event: Json) -> None:
        self._end_draft()
        if self._step is not None:
            self._step.retries += 1
        self._place(Mark(seq, time, "llm/retry", marks.retry_text(data), "warn"))

    def _approval(self, seq: int, time: Any, data: Json, event: Json) -> None:
        kind = str(event.get("type"))
        call = self._calls.get(str(data.get("callId")))
        if call is not None:
            call.approval = "asked for approval"
        self._place(Mark(seq, time, kind, marks.approval_text(kind, data), "warn"))

    def _title(self, _seq: int, _time: Any, data: Json, _event: Json) -> None:
        if isinstance(data.get("title"), str):
            self.model.title = data["title"]


def _replaced(event: Json) -> tuple[Any, Any] | None:
    operation = as_object(event.get("surfaceOp"))
    return (operation.get("start"), operation.get("end")) if operation else None
