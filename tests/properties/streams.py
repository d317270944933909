"""Random event streams that keep every rule of the log, made from a seed as an agent makes them.

The rule that holds here: what is offered is judged by the rules themselves, and only what they admit counts; so a
stream is valid however odd, and no second set of rules is kept here.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from dsh_protocol.errors import EventInvalidError
from dshd.sessions import rules
from dshd.sessions.fold import Fold
from support import events as make
from support.folds import folded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

Event = dict[str, Any]

TEXTS = (
    "",
    "a",
    'plain words, a comma and "quotes"',
    "line\nline\r\n\ttab \\ back",
    "\u2028\u2029\x85\x0b\x0c\x1c\x1e",
    "\x00\x01\x1f\x7f",
    "é\u0301 ẞ ﬁ Å",
    "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "\U0010ffff\ufffe\ufeff",
    "שלום \u202e abc",
    "\ud800 half a pair \udc00",
    "/" * 300,
    '{"type":"turn/end"}\n{"type":"session"}',
    "\x28\xb5\x2f\xfd",
)
NUMBERS = (0, 1, -1, 2**53 - 1, -(2**53) + 1, 0.1, 1e-7, 1.5e300, -2.5, 123456789.125)
_DELTAS = ("text-delta", "reasoning-delta", "tool-call-delta")


class Stream:
    """An endless agent.

    Attributes:
        fold: Of all events so far.
        log: All events so far; not those of a batch that was taken back.
        closed: Every length of the log at which no turn is open.
        refused: How many events the rules did not take.
    """

    def __init__(self, chosen: Random) -> None:
        self.fold = Fold()
        self.log: list[Event] = []
        self.closed = [0]
        self.refused = 0
        self._chosen = chosen
        self._now = chosen.randrange(1, 10**13)
        self._calls = 0

    def batch(self) -> list[Event]:
        """Return the next events, as they are stored; the same objects stand in the log."""
        first = len(self.log)
        wanted = first + self._chosen.choice((1, 1, 1, 2, 3, 5, 9, 20))
        while len(self.log) < wanted:
            self._take(self._next())
        return self.log[first:]

    def take_back(self, length: int) -> None:
        """Forget what came behind the first events: it was never stored."""
        self.go_on(self.log[:length])

    def go_on(self, log: Sequence[Event]) -> None:
        """Continue this log."""
        self.log = list(log)
        self.fold = folded(self.log)
        self.closed = [length for length in self.closed if length <= len(self.log)]
        if self.fold.open_turn is None and self.closed[-1] != len(self.log):
            self.closed.append(len(self.log))

    def _take(self, offered: list[Event]) -> None:
        chosen = self._chosen
        self._now = max(0, self._now + chosen.choice((0, 1, 7, 1000, -3)))
        for event in offered:
            if chosen.random() < 0.1:
                event["time"] = chosen.choice((0, self._now + 5, 2**53 - 1, 1))
            try:
                self.log += rules.admit(self.fold, [copy.deepcopy(event)], self._now)
            except EventInvalidError:
                self.refused += 1
                return
            if self.fold.open_turn is None:
                self.closed.append(len(self.log))

    # ------------------------------------------------------------------ what comes next

    def _next(self) -> list[Event]:
        chosen, fold = self._chosen, self.fold
        if chosen.random() < 0.12:
            return [self._anywhere()]
        if fold.open_turn is None:
            return [make.turn_start(fold.last_turn + 1)]
        if fold.open_step is None:
            return [self._between_steps()]
        return self._in_step()

    def _anywhere(self) -> Event:
        chosen = self._chosen
        made: tuple[Callable[[], Event], ...] = (
            lambda: make.title(self._text()),
            lambda: {
                "type": f"acme/{chosen.randrange(3)}",
                "data": self.value(3),
                "ignorable": True,
            },
            lambda: make.user(self._text()),
            self._replacing_message,
            self._rewritten_result,
        )
        return chosen.choice(made)()

    def _between_steps(self) -> Event:
        fold, kind = self.fold, self._chosen.random()
        if kind < 0.25:
            return make.turn_end(fold.open_turn)
        if kind < 0.4:
            return make.user(self._text())
        if kind < 0.5:
            return make.request_header()
        return make.step_start(fold.last_step + 1, fold.open_turn)

    def _in_step(self) -> list[Event]:
        chosen, fold = self._chosen, self.fold
        turn, step = fold.open_turn, fold.open_step
        kind = chosen.random()
        if kind < 0.3:
            return self._chunks(turn, step)
        if fold.pending:
            return [self._of_call(turn, step)]
        if kind < 0.6:
            ids = [self._call_id() for _ in range(chosen.choice((0, 1, 1, 2, 4)))]
            return [make.assistant(*ids, turn=turn, step=step)]
        if kind < 0.65:
            return [make.request_header()]
        return [make.step_end(step, turn)]

    def _call_id(self) -> str:
        self._calls += 1
        return self._chosen.choice(
            (f"c{self._calls}", f"{self._calls} \u2028é", f"c{self._calls % 3}")
        )

    def _of_call(self, turn: Any, step: Any) -> Event:
        """What may come of the calls that are open: their start, what they start in turn, their results."""
        chosen, fold = self._chosen, self.fold
        call = chosen.choice(list(fold.pending.values()))
        if call.started_seq is None:
            return make.tool_call(call.call_id, step, turn)
        inner = [one for one in fold.nested.values() if one.root_call_id == call.call_id]
        if inner and chosen.random() < 0.6:
            one = chosen.choice(inner)
            return make.dispatch_end(one.call_id, one.parent_call_id, one.root_call_id)
        if chosen.random() < 0.3:
            self._calls += 1
            parent = chosen.choice([call.call_id, *(one.call_id for one in inner)])
            return make.dispatch_start(f"n{self._calls}", parent, call.call_id)
        return make.tool_result(call.call_id, step, turn)

    def _chunks(self, turn: Any, step: Any) -> list[Event]:
        """A run that packs, or nearly."""
        chosen = self._chosen
        kind, index = chosen.choice(_DELTAS), chosen.randrange(3)
        piece: Event = {"type": kind, "index": index}
        key = "text"
        if kind == "tool-call-delta":
            piece["id"], key = f"c{index}", "argumentsDelta"
            if chosen.random() < 0.5:
                piece["name"] = self._text()
        if chosen.random() < 0.1:
            piece["more"] = self.value(1)
        return [
            {
                "type": "assistant/chunk",
                "data": {"turn": turn, "step": step, "chunk": {**piece, key: self._text()}},
            }
            for _ in range(chosen.choice((1, 2, 3, 4, 12)))
        ]

    def _range(self) -> tuple[list[int], int] | None:
        nodes = self.fold.surface.nodes
        if not nodes:
            return None
        start = self._chosen.randrange(len(nodes))
        return nodes, start

    def _replacing_message(self) -> Event:
        """A message in place of some that stand on the surface."""
        found = self._range()
        if found is None:
            return make.title()
        nodes, start = found
        shadowed = nodes[start : start + self._chosen.randrange(1, 4)]
        op = {"op": "replace", "start": shadowed[0], "end": shadowed[-1]}
        return make.user(self._text(), surfaceOp=op, sourceEventSeqs=sorted(shadowed))

    def _rewritten_result(self) -> Event:
        """A result with another content, in place of itself."""
        results = [seq for seq in self.fold.surface.nodes if self.log[seq]["type"] == "tool/result"]
        if not results:
            return make.title(self._text())
        seq = self._chosen.choice(results)
        data = copy.deepcopy(self.log[seq]["data"])
        data["message"]["content"][0]["content"] = [{"type": "text", "text": self._text()}]
        op = {"op": "replace", "start": seq, "end": seq}
        return {"type": "tool/result", "data": data, "surfaceOp": op, "sourceEventSeqs": [seq]}

    def _text(self) -> str:
        chosen = self._chosen
        return "".join(chosen.choices(TEXTS, k=chosen.choice((1, 1, 2, 5))))

    def value(self, depth: int) -> Any:
        """Any JSON value."""
        chosen = self._chosen
        kind = chosen.randrange(7 if depth else 4)
        match kind:
            case 0 | 1:
                return self._text()
            case 2:
                return chosen.choice(NUMBERS)
            case 3:
                return chosen.choice((None, True, False))
            case 4 | 5:
                return [self.value(depth - 1) for _ in range(chosen.randrange(4))]
            case _:
                return {self._text(): self.value(depth - 1) for _ in range(chosen.randrange(4))}
