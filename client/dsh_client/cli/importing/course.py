"""A conversation that happened elsewhere becomes the turns, steps and calls of a session.

The rule: order is the file's, but for one thing: a result is put where its call's step is still open, even if other
records stand between. A call without a result gets one that says so, and that its outcome is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsh_client.cli.importing.carrying import is_light, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_client.cli.importing.report import Report

    Json = dict[str, Any]

_PATIENCE = 200
"""So many records may stand between a call and its result."""


class Asked(NamedTuple):
    """What a person, or a program on their behalf, said to the model."""

    line: int
    time: int | None
    blocks: list[Json]
    source: Json


class Answered(NamedTuple):
    """What the model said, or a part of it: those with one key, one after the other, are one message."""

    line: int
    time: int | None
    blocks: list[Json]
    key: str
    provider: str
    model: str
    usage: Json | None = None


class Returned(NamedTuple):
    """What a call came to."""

    line: int
    time: int | None
    call_id: str
    blocks: list[Json]
    failed: bool


Item = Asked | Answered | Returned


class Course:
    """The state of one conversation.

    Args:
        emit: Takes each event, in order.
        report: Is told what is odd.
    """

    def __init__(self, emit: Callable[[Json], None], report: Report) -> None:
        """Begin before the first turn."""
        self._emit = emit
        self._report = report
        self._waiting: list[Item] = []
        self._said: Answered | None = None
        self._open: dict[
            str, tuple[str, int]
        ] = {}  # of the open step: the file's id; ours, its line
        self._ids: set[str] = set()
        self._turn = 0
        self._steps = 0
        self._step: int | None = None
        self._in_turn = False
        self._unanswered = False
        self._config: tuple[str, str, str] = ("", "", "")
        self._messages = 0
        self.system = ""
        """The instructions in force; part of the next request's header."""

    def take(self, item: Item) -> None:
        """Take what comes next in the file."""
        self._waiting.append(item)
        self._go_on(patience=_PATIENCE)

    def end(self) -> None:
        """Close what is open."""
        self._go_on(patience=0)
        self._end_message()
        self._end_turn()

    def _go_on(self, patience: int) -> None:
        while self._waiting:
            place = self._next(patience)
            if place is None:
                return
            self._apply(self._waiting.pop(place))

    def _next(self, patience: int) -> int | None:
        """Return the place of the item whose turn it is; None while a result may still come."""
        first = self._waiting[0]
        if self._said is not None:
            if isinstance(first, Answered) and first.key == self._said.key:
                return 0
            self._end_message()
        if not self._open:
            return 0
        awaited = set(self._open)
        for place, item in enumerate(self._waiting):
            if isinstance(item, Returned) and item.call_id in awaited:
                return place
            if isinstance(
                item, Answered
            ):  # from here on, a result of the same id is another call's
                awaited -= {block.get("id") for block in item.blocks}
        if awaited and len(self._waiting) <= patience:
            return None
        self._end_step(first.time)
        return 0

    def _apply(self, item: Item) -> None:
        if isinstance(item, Asked):
            self._ask(item)
        elif isinstance(item, Answered):
            self._answer(item)
        else:
            self._return(item)

    def _ask(self, item: Asked) -> None:
        if self._steps or not self._in_turn:
            self._end_turn(item.time)
            self._begin_turn(item.time)
        message = {
            "id": self._message_id(item.line),
            "role": "user",
            "content": self._fitting(item.blocks, item.line),
            "source": item.source,
        }
        self._log("user/message", message, item.time)
        self._report.taken["messages"] += 1

    def _answer(self, item: Answered) -> None:
        if self._said is None:
            self._said = item
            return
        said = self._said
        self._said = said._replace(
            blocks=[*said.blocks, *item.blocks], usage=item.usage or said.usage
        )

    def _return(self, item: Returned) -> None:
        if item.call_id not in self._open:
            self._keep_stray(item)
            return
        call_id, _ = self._open.pop(item.call_id)
        blocks = self._fitting(item.blocks, item.line)
        data = self._result(call_id, item.line, blocks, failed=item.failed)
        self._log("tool/result", data, item.time)
        self._report.taken["results"] += 1

    def _keep_stray(self, item: Returned) -> None:
        self._report.damage("a result without an open call", item.line)
        blocks = self._fitting(item.blocks, item.line)
        data = {"line": item.line, "kind": "result", "callId": item.call_id, "content": blocks}
        self._log("import/record", data, item.time, ignorable=True)

    # ------------------------------------------------------------ turns and steps

    def _begin_turn(self, time: int | None) -> None:
        self._turn += 1
        self._in_turn, self._unanswered = True, False
        self._steps = 0
        self._log("turn/start", {"turn": self._turn}, time)

    def _end_turn(self, time: int | None = None) -> None:
        self._end_step(time)
        if self._in_turn:
            left = self._unanswered or self._steps == 0
            reason = (
                {"kind": "aborted", "reason": {"kind": "legacy"}} if left else {"kind": "completed"}
            )
            self._log("turn/end", {"turn": self._turn, "reason": reason}, time)
        self._in_turn = False

    def _end_step(self, time: int | None) -> None:
        if self._step is None:
            return
        self._unanswered = bool(self._open)
        for call_id, line in self._open.values():
            self._report.damage("a call without a result", line)
            self._log("tool/result", self._no_result(call_id, line), time)
        self._open = {}
        self._log("step/end", {"turn": self._turn, "step": self._step}, time)
        self._step = None

    def _no_result(self, call_id: str, line: int) -> Json:
        said = (
            "The imported file has no result of this call: whether it was carried out is not known."
        )
        data = self._result(call_id, line, [{"type": "text", "text": said}], failed=True)
        return {**data, "error": {"name": "NoResultError", "code": "TOOL_OUTCOME_UNKNOWN"}}

    def _result(self, call_id: str, line: int, blocks: list[Json], *, failed: bool) -> Json:
        block: Json = {"type": "tool-result", "toolCallId": call_id, "content": blocks}
        message = {
            "id": self._message_id(line),
            "role": "user",
            "source": {"kind": "tool", "callId": call_id},
            "content": [{**block, "isError": failed}],
        }
        return {"turn": self._turn, "step": self._step, "message": message}

    def _end_message(self) -> None:
        """Write the message that is complete now, and the calls that it asks for."""
        said, self._said = self._said, None
        if said is None:
            return
        self._begin_step(said)
        blocks = [
            self._with_own_id(block, said.line) for block in self._fitting(said.blocks, said.line)
        ]
        model = {"kind": "model", "provider": said.provider, "model": said.model}
        message = {
            "id": self._message_id(said.line),
            "role": "assistant",
            "content": blocks,
            "source": model,
        }
        data: Json = {"turn": self._turn, "step": self._step, "message": message}
        if said.usage:
            data["usage"] = said.usage
        self._log("assistant/message", data, said.time)
        self._report.taken["messages"] += 1
        for block in blocks:
            if block["type"] == "tool-call":
                self._start(block, said.time)

    def _begin_step(self, said: Answered) -> None:
        if not self._in_turn:
            self._begin_turn(said.time)
        self._end_step(said.time)
        self._steps += 1
        self._step = self._steps
        self._log("step/start", {"turn": self._turn, "step": self._step}, said.time)
        config = (said.provider, said.model, self.system)
        if config != self._config:
            header: Json = {"config": {"provider": said.provider, "model": said.model}}
            if self.system:
                header["system"] = self.system
            reason = "change" if self._config[0] else "initial"
            self._config = config
            self._log("request/header", {"header": header, "reason": reason}, said.time)

    def _with_own_id(self, block: Json, line: int) -> Json:
        """Return a block; a call whose id was there before gets another one, so that results cannot be mixed up."""
        if block["type"] != "tool-call":
            return block
        wanted = own = str(block["id"])
        number = 1
        while own in self._ids:
            number += 1
            own = f"{wanted}~{number}"
        if own != wanted:
            self._report.damage("a call id twice", line)
        self._ids.add(own)
        self._open[own if wanted in self._open else wanted] = (own, line)
        return {**block, "id": own}

    def _start(self, block: Json, time: int | None) -> None:
        data = {
            "turn": self._turn,
            "step": self._step,
            "callId": block["id"],
            "name": block["name"],
            "arguments": block["arguments"],
        }
        self._log("tool/call", data, time)
        self._report.taken["calls"] += 1

    # ------------------------------------------------------------ events

    def _fitting(self, blocks: list[Json], line: int) -> list[Json]:
        return blocks if is_light({"content": blocks}) else shortened(blocks, line)

    def _message_id(self, line: int) -> str:
        self._messages += 1
        return f"import-{line}-{self._messages}"

    def _log(self, kind: str, data: Json, time: int | None, **marks: Any) -> None:
        event: Json = {"type": kind, "data": data, **marks}
        if time is not None:
            event["time"] = time
        self._emit(event)
