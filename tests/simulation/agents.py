"""Clients of a world: agents that play turns and lose everything on the way, and lookers-on.

The rule that holds here: an agent does what the protocol asks of it and no more. It sends every event with the seq that
it takes for right, believes nothing that was not answered, and finds out after every loss where it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from simulation.oracle import BrokenPromiseError, added_by, require
from simulation.wire import LostError
from support import events

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from simulation.machine import Machine
    from simulation.wire import ClientEnd

ANSWER_LIMIT_S = 400.0
_TRIES = 12
_HURRIED = 3
Message = dict[str, Any]


class RefusedError(Exception):
    """The daemon has answered with an error."""

    def __init__(self, error: Message) -> None:
        super().__init__(f"{error['data']['kind']}: {error['message']}")
        self.kind: str = error["data"]["kind"]
        self.facts: Message = error["data"]


class Client:
    """A process that talks to the daemon over one connection at a time."""

    def __init__(self, machine: Machine, chance: Random, pid: int) -> None:
        self.machine = machine
        self.chance = chance
        self.pid = pid
        self.line: ClientEnd | None = None
        machine.alive.add(pid)

    async def connected(self) -> ClientEnd:
        """Return the connection, a new one where there is none."""
        if self.line is None:
            self.line = await self.machine.connect(self.pid)
        return self.line

    def drop(self) -> None:
        """Close the connection."""
        if self.line is not None:
            self.line.close()
            self.line = None

    async def call(self, method: str, /, **params: Any) -> Message:
        """Make a call and return its result.

        Raises:
            RefusedError: It is an error.
            LostError: The connection ended first.
        """
        line = await self.connected()
        (sent,) = await self._sent(line, line.request(method, **params))
        return await self.result(sent)

    async def _sent(self, line: ClientEnd, *requests: Message, batch: bool = False) -> list[Any]:
        try:
            return await line.send(*requests, batch=batch)
        except LostError:
            self.drop()
            raise

    async def result(self, sent: int | None) -> Message:
        """Return the result of a call that was sent."""
        line = self.line
        if line is None:
            raise LostError
        answer: Message | None = None
        with trio.move_on_after(ANSWER_LIMIT_S):
            try:
                answer = await line.answer(sent)
            except LostError:
                self.drop()
                raise
        if answer is None:
            raise BrokenPromiseError(f"call {sent} of connection {line.number} has no answer")
        if "error" in answer:
            raise RefusedError(answer["error"])
        found: Message = answer["result"]
        return found


class Agent(Client):
    """One that writes a session, turn after turn.

    Attributes:
        log: The events that it takes for admitted, by seq; None where the daemon wrote one.
    """

    def __init__(self, machine: Machine, chance: Random, pid: int, session_id: str) -> None:
        super().__init__(machine, chance, pid)
        self.id = session_id
        self.life = 0
        self.turn = 0
        self.writer: str | None = None
        self.log: list[Message | None] = []
        self.made = False

    async def play(self, actions: int) -> None:
        """Make about so many calls that write, then leave, in order or not."""
        for _ in range(_TRIES):
            try:
                if self.writer is None:
                    await self._enter()
                while actions > 0:
                    for request in self._turn():
                        actions = (
                            min(actions, _HURRIED) - 1 if self.machine.hurried else actions - 1
                        )
                        await self._act(request)
                        if actions <= 0 and self.chance.random() < 0.5:
                            break
                if self.chance.random() < 0.7:
                    await self.call("session.close", id=self.id, writer=self.writer)
                self.drop()
            except LostError:
                await self._resume()
            except RefusedError as error:
                await self._cope(error)
            else:
                return
        self.drop()

    # ------------------------------------------------------------------ what it sends

    def _turn(self) -> Iterator[Message]:
        """Yield the calls of a turn, as methods with their parameters."""
        chance = self.chance
        self.turn += 1
        turn, mark = self.turn, f"{self.life}.{self.turn}"
        opening = [events.turn_start(turn), events.step_start(1, turn), events.user(mark)]
        yield _asking("checkpoint.request", [*opening, _header(mark)])
        step = 1
        while True:
            for number in range(chance.randrange(3)):
                pieces = [
                    events.chunk(f"{mark}.{step}.{number}.{one}", step, turn)
                    for one in range(chance.randint(1, 4))
                ]
                yield _asking("session.append", pieces)
            ids = [f"c-{turn}-{step}-{self.life}-{n}" for n in range(chance.randrange(3))]
            yield _asking("session.append", [_answer(ids, mark, step, turn)])
            for call_id in chance.sample(ids, len(ids)):
                yield {"method": "checkpoint.tool", **_tool(call_id)}
                yield _asking("session.append", [events.tool_result(call_id, step, turn)])
            ending = [events.step_end(step, turn)]
            if step == 2 or chance.random() < 0.7:
                break
            yield _asking("checkpoint.postStep", ending)
            step += 1
            yield _asking("session.append", [events.step_start(step, turn)])
        yield _asking("checkpoint.turnEnd", ending) | {"reason": {"kind": "completed"}}

    async def _act(self, asking: Message) -> None:
        """Make one call of a turn, in one of the ways in which a call can be made."""
        chance = self.chance.random()
        method = asking["method"]
        if chance < 0.04:
            self.drop()
            raise LostError
        if chance < 0.08:
            await self._be_cut_short(asking)
        if chance < 0.14:
            await self._send_cancelled(asking)
        elif chance < 0.2 and method == "session.append":
            await self._send_notified(asking)
        elif chance < 0.26:
            await self._send_together(asking)
        else:
            self._learn(asking, await self._send(asking))
        if chance > 0.92:
            await self._look_around()

    def _params(self, asking: Message) -> Message:
        params = {key: value for key, value in asking.items() if key != "method"}
        return params | {"id": self.id, "writer": self.writer, "expectedSeq": len(self.log)}

    async def _send(self, asking: Message) -> Message:
        return await self.call(asking["method"], **self._params(asking))

    async def _send_cancelled(self, asking: Message) -> None:
        """Call, and cancel at once; what came of it decides."""
        line = await self.connected()
        request = line.request(asking["method"], **self._params(asking))
        cancel = line.request("$/cancelRequest", notify=True)
        cancel["params"] = {"id": request["id"]}
        sent, _ = await self._sent(line, request, cancel)
        try:
            self._learn(asking, await self.result(sent))
        except RefusedError as error:
            if error.kind != "CANCELLED":
                raise
            self._learn(asking, await self._send(asking))

    async def _send_notified(self, asking: Message) -> None:
        """Append without an answer, then find out with a flush."""
        line = await self.connected()
        note = line.request("session.append", notify=True, **self._params(asking))
        await self._sent(line, note)
        events_sent = asking["events"]
        flushed = await self.call("session.flush", id=self.id, writer=self.writer)
        require(
            flushed["nextSeq"] == len(self.log) + len(events_sent),
            f"{flushed} after {len(self.log)} and a notification of {len(events_sent)}",
        )
        self.log += events_sent

    async def _send_together(self, asking: Message) -> None:
        """Send the call, a flush and a look in one piece or in one line."""
        line = await self.connected()
        requests = [
            line.request(asking["method"], **self._params(asking)),
            line.request("session.flush", id=self.id, writer=self.writer),
            line.request("session.read", id=self.id, offset=max(0, len(self.log) - 3)),
        ]
        first, *others = await self._sent(line, *requests, batch=self.chance.random() < 0.5)
        self._learn(asking, await self.result(first))
        for other in others:
            await self.result(other)

    async def _be_cut_short(self, asking: Message) -> None:
        """End in the middle of a line: nobody has asked for anything then."""
        line = await self.connected()
        request = line.request(asking["method"], **self._params(asking))
        text = repr(request).encode()
        try:
            await line.send_bytes(text[: self.chance.randrange(1, len(text))])
        finally:
            self.drop()
        raise LostError

    def _learn(self, asking: Message, result: Message) -> None:
        added = added_by({"method": asking["method"], "params": asking})
        if result["nextSeq"] != len(self.log) + len(added):
            raise BrokenPromiseError(f"{result} for {len(added)} events at {len(self.log)}")
        self.log += added
        if result.get("decision") == "ABORTED_BEFORE_DISPATCH":
            require(result["result"] is not None, f"no result to record: {result}")

    async def _look_around(self) -> None:
        kind = self.chance.randrange(6)
        if kind == 0:
            await self.call("session.messages", id=self.id)
        elif kind == 1:
            await self.call("session.list")
        elif kind == 2:
            await self.call("session.stat", id=self.id)
        elif kind == 3:
            await self.call("session.read", id=self.id, offset=self.chance.randrange(5))
        elif kind == 4:
            await self.call("session.flush", id=self.id, writer=self.writer)
        else:
            await trio.sleep(self.chance.random() * 3)  # long enough for a snapshot

    # ------------------------------------------------------------------ after a loss

    async def _enter(self) -> None:
        """Get the write handle as a new process does, with what is in the log already."""
        self.life += 1
        if not self.made:
            try:
                made = await self.call("session.create", id=self.id, cwd="/w")
            except RefusedError as error:
                if error.kind != "SESSION_EXISTS":
                    raise
            else:
                self.log, self.turn, self.writer = [], 0, made["writer"]
                self.made = True
                return
        self.made = True
        try:
            opened = await self.call("session.open", id=self.id, access="write", takeover=True)
        except RefusedError as error:
            if error.kind == "SESSION_NOT_FOUND":  # it was never durable
                self.made = False
            raise
        self.writer = opened["writer"]
        if opened["recovery"] is not None and not opened["recovery"]["committed"]:
            await self.call("session.recover", id=self.id, writer=self.writer)
        await self._read_log()

    async def _read_log(self) -> None:
        found = await self.call("session.read", id=self.id)
        stored: list[Message] = found["events"]
        require(found["end"], "a small log is read at once")
        view = await self.call("session.stat", id=self.id)
        self.log = [*stored, *[None] * (view["session"]["nextSeq"] - len(stored))]
        turns = [one["data"]["turn"] for one in stored if one["type"] == "turn/start"]
        self.turn = max(turns, default=0)

    async def _resume(self) -> None:
        """Go on after a lost connection: with the turn, or as a new process."""
        writer = self.writer
        self.writer = None
        if writer is None or self.chance.random() < 0.4:
            if self.chance.random() < 0.5:
                self._be_another_process()
            return
        state = {"nextSeq": len(self.log), "writer": writer}
        try:
            opened = await self.call(
                "session.open", id=self.id, access="write", **{"continue": state}
            )
        except (LostError, RefusedError):
            return
        # what the daemon knows beyond that was sent and not answered: it is asked again in a new turn
        self.writer = opened["writer"]
        try:
            await self._send_again(opened["session"]["nextSeq"])
        except (LostError, RefusedError):
            self.writer = None

    async def _send_again(self, next_seq: int) -> None:
        """Send what the daemon has lost, then close and let a new handle find out the rest."""
        missing = self.log[next_seq:]
        require(None not in missing, f"what the daemon wrote itself is gone from {next_seq}")
        del self.log[next_seq:]
        for event in missing:
            assert event is not None
            require(event["type"] != "tool/call", f"a started call was lost: {event}")
            params = {"id": self.id, "writer": self.writer, "expectedSeq": len(self.log)}
            await self.call("session.append", events=[_as_sent(event)], **params)
            self.log.append(event)
        await self.call("session.close", id=self.id, writer=self.writer)
        self.writer = None

    def _be_another_process(self) -> None:
        self.drop()
        self.machine.alive.discard(self.pid)
        self.pid += 1000
        self.machine.alive.add(self.pid)

    async def _cope(self, error: RefusedError) -> None:
        """Wait a little after a refusal, then begin again with what is in the log."""
        if error.kind in {"EVENT_INVALID", "INVALID_PARAMS", "PARSE_ERROR", "INVALID_REQUEST"}:
            raise BrokenPromiseError(f"refused to a client that keeps to the rules: {error}")
        self.drop()
        self.writer = None
        await trio.sleep(self.chance.random() * 2)


class Onlooker(Client):
    """One that follows a session, forks it, and asks for what there is."""

    async def look(self, session_id: str, times: int) -> None:
        """Do one of these things a few times; whatever is refused is no matter."""
        for number in range(times):
            await trio.sleep(self.chance.random() * 0.5)
            try:
                await self._do(session_id, number)
            except (LostError, RefusedError):
                continue
        self.drop()

    async def _do(self, session_id: str, number: int) -> None:
        kind = self.chance.randrange(5)
        if kind == 0:
            await self.call("session.subscribe", id=session_id, fromSeq=0)
            await trio.sleep(0.3)
            await self.call("session.stat", id=session_id)  # takes what has come
        elif kind == 1:
            await self.call("session.fork", id=session_id, newId=f"{session_id}-fork-{number}")
        elif kind == 2:
            await self.call("session.list")
        elif kind == 3:
            await self.call("session.open", id=session_id, access="read")
        else:
            self.drop()


def _asking(method: str, added: list[Message]) -> Message:
    return {"method": method, "events": added}


def _as_sent(event: Message) -> Message:
    return {key: event[key] for key in ("type", "data")}


def _header(mark: str) -> Message:
    header = {"config": {"provider": "p", "model": f"m {mark}"}}
    return {"type": "request/header", "data": {"header": header, "reason": "initial"}}


def _answer(ids: list[str], mark: str, step: int, turn: int) -> Message:
    made = events.assistant(*ids, step=step, turn=turn)
    made["data"]["message"]["content"][0]["text"] = f"answer {mark}"
    return made


def _tool(call_id: str) -> Message:
    return {"callId": call_id, "name": "t", "arguments": f'{{"for":"{call_id}"}}'}
