"""A disk that does nothing for a minute, and clients that append as fast as they can: what the daemon holds meanwhile.

The rule that holds here: the clients never wait for an answer before they send on, so that only the daemon's own limits
bound what it holds.
"""

from __future__ import annotations

import gc
import resource
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import trio

from dshd.settings import Settings
from simulation.machine import ROOT, Machine
from simulation.oracle import Oracle, require
from simulation.world import run_simulated, seeded
from support import events

if TYPE_CHECKING:
    from simulation.wire import ClientEnd

BLOCKED_S = 60.0
_MIB = 1 << 20
_PAGE = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Held:
    """What a flood found.

    Attributes:
        grown: Bytes by which the resident memory grew.
        pending: Bytes of the session with the most pending events.
        sent: Bytes that the clients could send.
        late: Calls that were still unanswered a while after the disk had come back.
        durable: Events that were durable then.
    """

    grown: int
    pending: int
    sent: int
    late: int
    durable: int


def flood(sessions: int, event_bytes: int, events_a_call: int) -> Held:
    """Flood so many sessions, each over a connection of its own."""
    found: list[Held] = []
    logs = structlog.get_config()
    structlog.configure(processors=[_drop])
    try:
        flooding = _Flood(sessions, event_bytes, events_a_call)
        run_simulated(1, partial(flooding.run, found))
    finally:
        structlog.configure(**logs)
    return found[0]


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * _PAGE


class _Flood:
    def __init__(self, sessions: int, event_bytes: int, events_a_call: int) -> None:
        settings = Settings(socket=Path("/s"), root=ROOT, state_dir=ROOT)
        self._settings = settings
        self._sessions = sessions
        self._text = "x" * event_bytes
        self._count = events_a_call
        self._sent = 0
        self._answered = 0
        self._asked = 0

    async def run(self, found: list[Held]) -> None:
        machine = Machine(seeded(1), lambda _: None, self._settings, Oracle(lambda _: None))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(machine.run_life)
            lines = [await self._begin(machine, number) for number in range(self._sessions)]
            before = _resident()
            machine.slow_until = trio.current_time() + BLOCKED_S
            for number, line in enumerate(lines):
                nursery.start_soon(self._send, line, number)
                nursery.start_soon(self._receive, line)
            await trio.sleep(BLOCKED_S - 1)
            assert machine.services is not None
            live = machine.services.registry.live.values()
            pending = max(session.drain.pending_bytes for session in live)
            grown, sent = _resident() - before, self._sent
            await trio.sleep(60)
            durable = sum(session.durable_seq for session in live)
            found.append(Held(grown, pending, sent, self._asked - self._answered, durable))
            nursery.cancel_scope.cancel()

    async def _begin(self, machine: Machine, number: int) -> tuple[ClientEnd, str]:
        line = await machine.connect(1)
        made = line.request("session.create", id=f"f{number}", cwd="/w")
        (sent,) = await line.send(made)
        writer = (await line.answer(sent))["result"]["writer"]
        begin = line.request(
            "session.append",
            id=f"f{number}",
            writer=writer,
            events=[events.turn_start(), events.step_start()],
        )
        (sent,) = await line.send(begin)
        require("result" in await line.answer(sent), "the turn begins")
        return line, writer

    async def _send(self, line: tuple[ClientEnd, str], number: int) -> None:
        end, writer = line
        added = [events.chunk(self._text)] * self._count
        params = {"id": f"f{number}", "writer": writer, "events": added}
        call = {"jsonrpc": "2.0", "method": "session.append", "params": params}
        stop = trio.current_time() + BLOCKED_S
        at = 0
        while trio.current_time() < stop:
            at += 1
            data = msgspec.json.encode({**call, "id": f"n{at}"}) + b"\n"
            self._asked += 1
            await end.send_bytes(data)
            self._sent += len(data)

    async def _receive(self, line: tuple[ClientEnd, str]) -> None:
        end, _ = line
        while True:
            piece = await end.incoming.take_some(1 << 16)
            if not piece:
                return
            self._answered += piece.count(b"\n")
