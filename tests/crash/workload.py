"""The reference workload: what two clients do with a few sessions, step by step.

The one rule: it is a value. The event that a client sends at a place of a session is a function of that session and
that place, and so is whatever the daemon adds, so that a checker can tell an event that was invented from one that was
merely never acknowledged.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from support import events

if TYPE_CHECKING:
    from collections.abc import Iterator

Event = dict[str, Any]
Verb = Literal["create", "append", "close", "open", "recover", "drop", "tear", "fork"]

CANARY = "canary-7f3a"
"""In the text of every event, and in no error, no log."""
CWDS = {"a": "/w/one", "b": "/w/two", "d": "/w/one"}
_TIME = 1_000_000
_CHUNKS = 6


@dataclass(frozen=True)
class Step:
    """One thing that a client does.

    Args:
        verb: What. `drop` loses the client's connection, `tear` leaves bytes of a dead program behind a closed log.
        session: With which session.
        client: Who; 0 or 1.
        events: Of an append.
        child: Of a fork.
    """

    verb: Verb
    session: str
    client: int = 0
    events: tuple[Event, ...] = field(default=(), repr=False)
    child: str = ""


def text(session: str, place: int) -> str:
    """Return the text at a place of a session: nobody else's, and hard to compress."""
    seed = f"{session}:{place}"
    return f"{CANARY}:{seed}:{hashlib.sha256(seed.encode()).hexdigest() * (1 + place % 3)}"


def further(session: str, seq: int) -> Event:
    """Return the event that whoever goes on with a session after its turns appends at `seq`."""
    return {**events.title(text(session, seq)), "time": _TIME + seq}


class _Writer:
    """Writes one client's turns with one session."""

    def __init__(self, session: str, client: int) -> None:
        self.session = session
        self.client = client
        self._place = 0
        self._turn = 0

    def do(self, verb: Verb, **more: Any) -> Step:
        return Step(verb, self.session, self.client, **more)

    def turn(self, *, until: int = 6) -> Iterator[Step]:
        """Yield the appends of one turn, up to some of its six batches."""
        self._turn += 1
        for batch in self._batches()[:until]:
            for event in batch:
                event["time"] = _TIME + self._place
                self._place += 1
            yield self.do("append", events=tuple(batch))

    def _batches(self) -> list[list[Event]]:
        turn, call = self._turn, f"{self.session}{self._turn}"
        asked = events.assistant(call, turn=turn)
        answered = events.tool_result(call, turn=turn)
        asked["data"]["message"]["content"][0]["text"] = text(self.session, self._place + 40)
        answered["data"]["message"]["content"][0]["content"][0]["text"] = CANARY * turn
        opening = [events.turn_start(turn), events.step_start(1, turn)]
        opening += [events.user(text(self.session, self._place)), events.request_header()]
        chunks = [events.chunk(text(self.session, k), turn=turn) for k in range(_CHUNKS)]
        start = [events.tool_call(call, turn=turn)]
        ending = [events.step_end(1, turn), events.turn_end(turn)]
        return [opening, chunks, [asked], start, [answered], ending]


def _together(*parts: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps of several, one of each in turn."""
    left = list(parts)
    while left:
        for one in list(left):
            step = next(one, None)
            if step is None:
                left.remove(one)
            else:
                yield step


def whole() -> list[Step]:
    """W: three sessions and a fork, two clients, more than sixty batches, every kind of end and of beginning."""
    a, b, c, d = _Writer("a", 0), _Writer("b", 1), _Writer("c", 0), _Writer("d", 1)
    return [
        *(a.do("create"), b.do("create"), c.do("create")),
        *_together(a.turn(), b.turn(), c.turn()),
        *(c.do("close"), c.do("tear"), a.do("close"), a.do("open"), c.do("open")),
        *_together(a.turn(), c.turn(), b.turn()),
        *b.turn(until=4),
        *(b.do("drop"), b.do("open"), b.do("recover")),
        *b.turn(),
        *(a.do("fork", child="d"), d.do("open")),
        *_together(d_turns(d), a.turn()),
        *(d.do("close"), a.do("close"), a.do("open"), b.do("close"), b.do("open")),
        *_together(a.turn(), b.turn()),
        *(c.do("close"), c.do("tear"), c.do("open")),
        *c.turn(until=2),
        *(b.do("close"), a.do("close")),
    ]


def d_turns(writer: _Writer) -> Iterator[Step]:
    """Yield the turns that the fork goes on with: behind those that it got."""
    for _ in range(2):  # the numbers of the turns that it got are used up
        list(writer.turn())
    yield from writer.turn()


def small() -> list[Step]:
    """W-small: two sessions, one interrupted and recovered, one torn and mended."""
    a, b = _Writer("a", 0), _Writer("b", 1)
    return [
        *(a.do("create"), b.do("create")),
        *_together(a.turn(until=4), b.turn()),
        *(a.do("drop"), a.do("open"), a.do("recover")),
        *(b.do("close"), b.do("tear"), b.do("open")),
        *_together(a.turn(until=3), b.turn(until=2)),
    ]


def batches_of(steps: list[Step]) -> int:
    """Return how many batches there are."""
    return sum(step.verb in {"append", "recover"} for step in steps)
