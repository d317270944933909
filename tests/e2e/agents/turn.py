"""An agent that plays one turn, writes down what it did, and stands still where it was told to, to be killed there.

The one rule: the journal is written before a call is sent and after its answer is read, so that it never claims less
than was acknowledged. The standard library only; run as a program with its plan as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from support import events
from support.rpc import Connection

_ARGUMENTS = '{{"for":"{}"}}'


class Agent:
    """One turn with one step.

    The plan: `socket`, `id`, `cwd`, `journal`, `effects` (files), `calls` (call id to `idle`, `started` or `answered`,
    in the order of the answer), `point` and `place` (where to stand still; None for the end of the turn), or `endless`
    (turn after turn instead).
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.journal = os.open(plan["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.connection = Connection(plan["socket"], name=f"agent of {plan['id']}", limit_s=300)
        made = self.connection.call("session.create", id=plan["id"], cwd=plan["cwd"])
        self.handle = {"id": plan["id"], "writer": made["writer"]}
        self.next_seq = 0
        self.turn = 1
        self.note(writer=made["writer"], createdAt=made["session"]["createdAt"])

    def note(self, **what: Any) -> None:
        os.write(self.journal, json.dumps(what).encode() + b"\n")

    def stand_still(self, word: str = "held") -> None:
        """Say so and wait for a line, or for the end."""
        os.write(1, word.encode() + b"\n")
        sys.stdin.readline()

    def is_at(self, point: str, place: str) -> bool:
        return (self.plan.get("point"), self.plan.get("place")) == (point, place)

    def call(
        self, point: str, method: str, added: events.Event | None = None, **params: Any
    ) -> Any:
        """Make a call that appends `params["events"]` and `added`, and stand still at its places."""
        whole = [*params.get("events", ()), *([added] if added else ())]
        if self.is_at(point, "unsent"):
            self.stand_still()
        if self.is_at(point, "sent"):
            self.stand_still("ready")
        self.note(sent=whole, at=self.next_seq)
        params["expectedSeq"] = self.next_seq
        sent = self.connection.send(method, **self.handle, **params)
        if self.is_at(point, "sent"):
            self.stand_still()
        result = self.connection.result(sent)
        self.next_seq = result["nextSeq"]
        self.note(durable=result["durableSeq"])
        if self.is_at(point, "answered"):
            self.stand_still()
        return result

    def flush(self) -> None:
        self.note(durable=self.connection.call("session.flush", **self.handle)["durableSeq"])

    def play(self) -> None:
        opening = [
            events.turn_start(),
            events.step_start(),
            events.user(),
            events.request_header(),
        ]
        self.call("request", "checkpoint.request", events=opening)
        calls = self.plan["calls"]
        self.call("answer", "session.append", events=[events.assistant(*calls)])
        self.flush()
        for call_id in reversed(calls):  # not in the order in which they were asked for
            if calls[call_id] != "idle":
                self.start(call_id)
            if calls[call_id] == "answered":
                self.call("result", "session.append", events=[events.tool_result(call_id)])
                if self.plan.get("point") is None:
                    self.flush()
        if self.plan.get("point") is None:
            self.stand_still()
        self.call("step-end", "checkpoint.postStep", events=[events.step_end()])
        end = events.turn_end()
        self.call("turn-end", "checkpoint.turnEnd", end, reason=end["data"]["reason"])

    def start(self, call_id: str) -> None:
        """Start a call and run its body on DISPATCH only."""
        asked = {"callId": call_id, "name": "t", "arguments": _ARGUMENTS.format(call_id)}
        added = events.tool_call(call_id, turn=self.turn)
        answer = self.call("tool", "checkpoint.tool", added, **asked)
        assert answer["decision"] == "DISPATCH", answer
        self.note(dispatched=call_id, seq=answer["callSeq"], key=answer["idempotencyKey"])
        if self.is_at("body", "unsent"):
            self.stand_still()
        with Path(self.plan["effects"]).open("a", encoding="utf-8") as effects:
            effects.write(f"{call_id}\n")
        if self.is_at("body", "answered"):
            self.stand_still()

    def play_on(self) -> None:
        """Play turn after turn without a pause, until the daemon or the process is gone."""
        for turn in itertools.count(1):
            begun = [
                events.turn_start(turn),
                events.step_start(1, turn),
                events.user(f"turn {turn}"),
                events.request_header(),
            ]
            self.call("", "checkpoint.request", events=begun)
            self.call("", "session.append", events=[events.chunk(turn=turn)] * 3)
            answer = [events.assistant(*"xyz", turn=turn)]
            self.call("", "session.append", events=answer)
            for call_id in "zxy":
                self.turn = turn
                self.start(call_id)
                result = [events.tool_result(call_id, turn=turn)]
                self.call("", "session.append", events=result)
            end = events.turn_end(turn)
            reason = end["data"]["reason"]
            ended = [events.step_end(1, turn)]
            self.call("", "checkpoint.turnEnd", end, events=ended, reason=reason)


def run(plan: dict[str, Any]) -> None:
    agent = Agent(plan)
    if not plan.get("endless"):
        agent.play()
        return
    os.write(1, b"playing\n")
    try:
        agent.play_on()
    except (ConnectionError, TimeoutError):
        agent.stand_still("alone")


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
