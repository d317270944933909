"""The time line of a session: spans and marks on one axis, for a page and for a terminal.

Pure. The rule: the axis never runs backwards and never is mostly empty: a clock that was set back stands still, and a
pause in which nothing was open is drawn shorter than it was, and marked.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from dsh_client.cli.render.model import (
    ABORTED,
    ANSWERED,
    FAILED,
    RUNNING,
    UNKNOWN,
    Call,
    Mark,
    Model,
    Step,
    Turn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_IDLE_SHARE = 0.05
_BUSY_SHARE = 0.5
_HOUR_MS = 3_600_000
_TONES = {ANSWERED: "ok", FAILED: "bad", UNKNOWN: "bad", RUNNING: "open", ABORTED: "warn"}

_DRAWN = {"llm/retry": "retry", "compaction/summary": "compaction", "approval/asked": "approval"}


class Span(NamedTuple):
    """A stretch of the axis, from 0 to 1. `lane` is `model`, or `tool` with a row for those that overlap."""

    lane: str
    row: int
    start: float
    end: float
    tone: str
    label: str
    target: str


class Point(NamedTuple):
    """A moment: `checkpoint`, `crash`, `recovery`, `retry`, `approval`, `compaction` or `gap`."""

    kind: str
    at: float
    label: str


class TurnBand(NamedTuple):
    """A turn's place on the axis. `number` counts the turns of the page from 1."""

    number: int
    start: float
    end: float
    ended: str
    label: str


class TimeLine(NamedTuple):
    """All of it. `length` is how long the drawn stretches took, in milliseconds."""

    turns: list[TurnBand]
    spans: list[Span]
    points: list[Point]
    rows: int
    length: int


class Axis:
    """Places of events between 0 and 1."""

    def __init__(self, model: Model) -> None:
        """Lay the ticks of a model out."""
        self.pauses: list[tuple[int, int, int]] = []  # seq before, seq after, milliseconds
        self._at: dict[int, float] = {}
        self._total = 0.0
        self._lay_out(model)

    @property
    def length(self) -> int:
        """How long the axis is, in milliseconds."""
        return round(self._total)

    def place(self, seq: int | None) -> float:
        """Return where an event stands; the end, where it is not known."""
        if seq is None or seq not in self._at or not self._total:
            return 1.0 if seq is None or seq not in self._at else 0.0
        return self._at[seq] / self._total

    def _lay_out(self, model: Model) -> None:
        ticks = sorted(model.ticks, key=lambda tick: tick.seq)
        deltas: list[float] = [0.0][: len(ticks)]
        for before, after in pairwise(ticks):
            known = isinstance(before.time, int) and isinstance(after.time, int)
            deltas.append(max(after.time - before.time, 0) if known else 0)
        busy = [delta for delta, tick in zip(deltas, ticks, strict=True) if tick.busy]
        usual = sum(delta for delta in busy if delta <= _HOUR_MS) or 1000
        for index, (tick, delta) in enumerate(zip(ticks, deltas, strict=True)):
            most = usual * (_BUSY_SHARE if tick.busy and delta <= _HOUR_MS else _IDLE_SHARE)
            drawn = delta
            if delta > most and (not tick.busy or delta > _HOUR_MS):
                drawn = most
                self.pauses.append((ticks[index - 1].seq, tick.seq, round(delta)))
            # Events of one moment keep a hair's breadth, so that their order can be seen.
            self._total += max(drawn, usual / 2000)
            self._at[tick.seq] = self._total


def lay_out(model: Model) -> TimeLine:
    """Return the time line of a session."""
    axis = Axis(model)
    spans: list[Span] = []
    rows: list[float] = []
    for turn in model.turns:
        cut = _cut_seq(turn)
        for step in turn.steps:
            _model_span(step, axis, spans, f"turn {turn.number}, step {step.number}")
            for call in step.calls:
                if call.seq is not None:
                    end = cut if call.repaired else call.end_seq
                    spans.append(_tool_span(call, axis.place(call.seq), axis.place(end), rows))
    points = sorted(_points(model, axis), key=lambda point: point.at)
    return TimeLine(_bands(model, axis), spans, points, max(len(rows), 1), axis.length)


def _model_span(step: Step, axis: Axis, spans: list[Span], where: str) -> None:
    if step.request_seq is None:
        return
    end = step.answer_seq if step.answer_seq is not None else step.end_seq
    tone = "ok" if step.answer_seq is not None else "bad"
    name = step.model or "model"
    target = f"e{step.seq}"
    place = axis.place(step.request_seq)
    spans.append(Span("model", 0, place, axis.place(end), tone, f"{name} ({where})", target))


def _tool_span(call: Call, start: float, end: float, rows: list[float]) -> Span:
    row = next((number for number, until in enumerate(rows) if until <= start), len(rows))
    if row == len(rows):
        rows.append(end)
    rows[row] = end
    label = f"{call.name}: {call.fate}"
    return Span("tool", row, start, end, _TONES.get(call.fate, "warn"), label, f"c{call.seq}")


def _bands(model: Model, axis: Axis) -> list[TurnBand]:
    return [
        TurnBand(
            number,
            axis.place(turn.seq),
            axis.place(turn.end_seq),
            turn.ended or "open",
            f"turn {turn.number}: {turn.ended or 'open'}",
        )
        for number, turn in enumerate(model.turns, 1)
    ]


def _points(model: Model, axis: Axis) -> Iterator[Point]:
    """Yield the moments; where a run was cut off, the last thing that it stored is where it stopped."""
    yield from _checkpoints(model, axis)
    for turn in model.turns:
        cut = _cut_seq(turn)
        if cut is not None and turn.end_seq is not None:
            yield Point("crash", axis.place(cut), "cut off here")
            yield Point("recovery", axis.place(recovery_seq(model, turn.end_seq)), "recovered here")
        elif turn.end_seq is None and model.session.get("state") == "interrupted":
            yield Point("crash", 1.0, "cut off here; a recovery is due")
    for before, after, length in axis.pauses:
        yield Point("gap", (axis.place(before) + axis.place(after)) / 2, str(length))
    for mark in _marks(model):
        if mark.kind in _DRAWN:
            yield Point(_DRAWN[mark.kind], axis.place(mark.seq), mark.text)


def _checkpoints(model: Model, axis: Axis) -> Iterator[Point]:
    """Yield where the client waited until all was durable: before a request, before a tool, after a step."""
    for turn, step in model.steps:
        where = f"turn {turn.number}, step {step.number}"
        if step.request_seq is not None:
            yield Point("checkpoint", axis.place(step.request_seq), f"request of {where}")
        if step.end_seq is not None and turn.ended != "interrupted":
            yield Point("checkpoint", axis.place(step.end_seq), f"end of {where}")
        for call in step.calls:
            if call.seq is not None:
                yield Point("checkpoint", axis.place(call.seq), f"start of {call.name}")


def _cut_seq(turn: Turn) -> int | None:
    """Return the last event that the writer of an interrupted turn stored; None of a turn that ended well.

    Behind it stand the closers: the results that a recovery wrote, the end of an open step, the end of the turn.
    """
    if turn.ended != "interrupted" or turn.end_seq is None:
        return None
    closers = {call.end_seq for call in turn.calls if call.repaired}
    first = turn.end_seq
    if any(step.end_seq == first - 1 for step in turn.steps) and (
        first - 2 in closers or not _closed_itself(turn, first - 1)
    ):
        first -= 1
    while first - 1 in closers and first - 1 > turn.seq:
        first -= 1
    return first - 1


def _closed_itself(turn: Turn, end_seq: int) -> bool:
    """Whether the agent ended its last step: every call has a result of its own, and the model answered."""
    step = next(one for one in turn.steps if one.end_seq == end_seq)
    return step.answer_seq is not None and all(call.end_seq is not None for call in step.calls)


def recovery_seq(model: Model, end_seq: int) -> int:
    """Return where the next writer came: its end-seed behind the closers, else the closers themselves."""
    for mark in _marks(model):
        if mark.kind == "session/end-seed" and mark.seq == end_seq + 1:
            return mark.seq
    return end_seq


def _marks(model: Model) -> Iterator[Mark]:
    for item in model.items:
        if isinstance(item, Mark):
            yield item
    for turn in model.turns:
        for inner in turn.items:
            if isinstance(inner, Mark):
                yield inner
            elif isinstance(inner, Step):
                yield from (one for one in inner.items if isinstance(one, Mark))


def on_terminal(line: TimeLine, columns: int, symbols: dict[str, str]) -> str:
    """Return a time line of `columns` characters: who was at work in each, and where it was cut off."""
    cells = [symbols["idle"]] * columns
    for lane in ("model", "tool"):
        for span in line.spans:
            if span.lane == lane:
                first, last = _cells(span.start, span.end, columns)
                cells[first : last + 1] = [symbols[lane]] * (last + 1 - first)
    for band in line.turns[1:]:
        cells[_cells(band.start, band.start, columns)[0]] = symbols["turn"]
    for point in line.points:
        if point.kind in {"crash", "recovery"}:
            place = _cells(point.at, point.at, columns)[0]
            if point.kind == "recovery" and cells[place] == symbols["crash"]:
                place = min(place + 1, columns - 1)
            cells[place] = symbols[point.kind]
    return "".join(cells)


def _cells(start: float, end: float, columns: int) -> tuple[int, int]:
    first = min(int(start * columns), columns - 1)
    return first, max(first, min(int(end * columns), columns - 1))


__all__ = ["Axis", "Point", "Span", "TimeLine", "TurnBand", "lay_out", "on_terminal"]
