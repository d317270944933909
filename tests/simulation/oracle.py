"""What must hold, whatever happens: the judge of a world.

The rule that holds here: it hears what crosses the wire, and nothing else. What the daemon has once said is durable
must stand at its place for ever; what nobody sent must not be found; nothing may be found twice, or out of order. An
event is known by its type and data, which no agent uses twice in a session.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Event = dict[str, Any]

NEVER = frozenset({"INTERNAL", "LOG_CORRUPT", "FORMAT_UNSUPPORTED", "LOG_CHANGED", "UNSAFE_PATH"})
"""Kinds for which no world gives a reason."""
OF_DISKS = frozenset({"WRITE_FAILED", "NO_SPACE", "SESSION_SEALED", "OVERLOADED"})
"""Kinds for which only a disk that fails gives a reason."""
_ENDS = frozenset({"tool/result", "step/end", "turn/end", "tool/code-dispatch"})
"""What the daemon itself writes to close a turn."""
_END_SEED = "session/end-seed"


class BrokenPromiseError(AssertionError):
    """Something that must hold did not."""


@dataclass(eq=False, slots=True)
class Known:
    """What is known of one session.

    Attributes:
        sent: Every event that was sent for it, with its places in the order of sending.
        sends: How many were sent.
        given: Which event was given which seq, by the last reply that said so.
        final: The same for what was acknowledged.
        batches: Events that were sent in one call.
        acknowledged: How many events a reply has called durable.
        exists: A reply has said that it is on disk.
        dispatched: Tool calls whose body may have run.
        started: Tool calls whose start was sent.
        decided: What this life of the daemon has decided about a tool call, by the seq of its start.
    """

    sent: dict[bytes, list[int]] = field(default_factory=dict[bytes, list[int]])
    sends: int = 0
    given: dict[int, bytes] = field(default_factory=dict[int, bytes])
    final: dict[int, bytes] = field(default_factory=dict[int, bytes])
    batches: list[tuple[bytes, ...]] = field(default_factory=list[tuple[bytes, ...]])
    acknowledged: int = 0
    exists: bool = False
    dispatched: set[str] = field(default_factory=set[str])
    started: set[str] = field(default_factory=set[str])
    decided: dict[int, str] = field(default_factory=dict[int, str])
    origin: str | None = None


class Oracle:
    """See the module.

    Args:
        note: Told of every line, for the trace.

    Attributes:
        failing: Whether the disk has a reason to fail.
        plain: Whether logs are plain lines.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self.failing = False
        self.plain = False
        self.broken: str | None = None
        self.known: defaultdict[str, Known] = defaultdict(Known)
        self.replies = 0
        self.acknowledged = 0
        self._note = note
        self._open: dict[tuple[int, Any], dict[str, Any]] = {}
        self._followed: dict[tuple[int, str], str] = {}

    def forgotten(self) -> None:
        """Hear that the daemon has ended, and with it what it alone knew."""
        for known in self.known.values():
            known.decided.clear()

    # ------------------------------------------------------------------ what crosses the wire

    def asked(self, connection: int, request: dict[str, Any]) -> None:
        """Hear a call that is about to be sent."""
        method, params = request["method"], request["params"]
        if "id" in request:
            self._open[connection, request["id"]] = request
        session_id = params.get("id")
        if method == "session.fork":  # it may be there though nobody hears of it
            known, forked = self.known[session_id], self.known[params["newId"]]
            forked.origin, forked.started = session_id, set(known.started)
        if not isinstance(session_id, str) or "writer" not in params:
            return
        known = self.known[session_id]
        added = added_by(request)
        for event in added:
            known.sends += 1
            known.sent.setdefault(identity(event), []).append(known.sends)
        together = tuple(identity(event) for event in added if event["type"] not in _ENDS)
        if len(together) > 1:
            known.batches.append(together)
        if method == "checkpoint.tool":
            known.started.add(params["callId"])

    def replied(self, connection: int, line: bytes) -> None:
        """Hear a line that the daemon has sent; what does not hold is kept, for the daemon would swallow it."""
        try:
            self._replied(connection, line)
        except BrokenPromiseError as error:
            self.broken = self.broken or str(error)

    def _replied(self, connection: int, line: bytes) -> None:
        self._note(f"{connection} < {line.decode()}")
        self.replies += 1
        try:
            found: Any = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise BrokenPromiseError(f"a line is no JSON: {line!r}") from error
        messages: list[Any] = [found] if isinstance(found, dict) else found
        for message in messages:
            if "method" in message:
                self._told(connection, message)
            else:
                self._answered(connection, message)

    def _answered(self, connection: int, message: dict[str, Any]) -> None:
        if message["id"] is None:
            return  # of a line that was no call
        request = self._open.pop((connection, message["id"]), None)
        if request is None:
            raise BrokenPromiseError(f"answered twice, or never asked: {message}")
        if ("result" in message) == ("error" in message):
            raise BrokenPromiseError(f"no answer: {message}")
        session_id = request["params"].get("id")
        if "error" in message:
            self._refused(message["error"])
        elif isinstance(session_id, str):
            self._learn(connection, session_id, request, message["result"])
        elif request["method"] == "session.list":
            for info in message["result"]["sessions"]:
                self._shown(info)

    def _refused(self, error: dict[str, Any]) -> None:
        kind = error["data"]["kind"]
        if kind in NEVER:
            raise BrokenPromiseError(f"refused for no reason: {error}")
        require(self.failing or kind not in OF_DISKS, f"no disk has failed: {error}")

    def _shown(self, info: dict[str, Any]) -> None:
        problem = info["problem"]
        if problem is not None:
            kind = problem["kind"]
            require(kind not in NEVER, f"shown with a problem: {info}")
            require(self.failing or kind not in OF_DISKS, f"no disk has failed: {info}")
        if info["durableSeq"] is not None:
            self._durable(info["id"], info["durableSeq"])

    def _learn(
        self, connection: int, session_id: str, request: dict[str, Any], result: dict[str, Any]
    ) -> None:
        """Learn from the result of a call on a session."""
        method, known = request["method"], self.known[session_id]
        events = added_by(request)
        if events and "nextSeq" in result:
            first = result["nextSeq"] - len(events)
            for seq, event in enumerate(events, first):
                known.given[seq] = identity(event)
        if method == "session.read":
            first = result["nextOffset"] - len(result["events"])
            self._read(known, first, result["events"], result["durableSeq"])
        self._learn_of_being(session_id, method, result)
        if method in {"session.flush", "session.recover"}:
            known.exists = True
        if method == "session.recover":
            known.given |= {event["seq"]: identity(event) for event in result["closers"]}
        if method == "session.subscribe":
            self._followed[connection, result["subscriptionId"]] = session_id
        if method.startswith("checkpoint."):
            self._learn_of_checkpoint(known, request, result)
        if "durableSeq" in result:
            self._durable(session_id, result["durableSeq"])
        recovery = result if method == "session.recover" else result.get("recovery")
        self._repaired(known, (recovery or {}).get("repairs", ()))

    def _learn_of_checkpoint(
        self, known: Known, request: dict[str, Any], result: dict[str, Any]
    ) -> None:
        require(result["durableSeq"] >= result["nextSeq"], f"answered too soon: {result}")
        decision = result.get("decision")
        if decision == "DISPATCH":
            known.dispatched.add(request["params"]["callId"])
        if decision is not None:
            first = known.decided.setdefault(result["callSeq"], decision)
            require(first == decision, f"decided otherwise before: {result}")

    def _learn_of_being(self, session_id: str, method: str, result: dict[str, Any]) -> None:
        """Learn what sessions there are from a result that shows one."""
        if method == "session.open" and result["writer"] is not None:
            # what was given and is not durable may be gone, and its seqs be given anew
            known = self.known[session_id]
            known.given = {s: one for s, one in known.given.items() if s < known.acknowledged}
        shown = result.get("session")
        if shown is None:
            return
        if method == "session.fork":
            known, forked = self.known[session_id], self.known[shown["id"]]
            forked.exists, forked.started = True, set(known.started)
            forked.dispatched = set(known.dispatched)
        self._shown(shown)

    def _repaired(self, known: Known, repairs: Sequence[dict[str, Any]]) -> None:
        for repair in repairs:
            call_id, code = repair["callId"], repair["code"]
            if code == "TOOL_NOT_STARTED":
                require(call_id not in known.dispatched, f"its body may have run: {repair}")
            else:
                require(call_id in known.started, f"nobody started it: {repair}")

    def _told(self, connection: int, message: dict[str, Any]) -> None:
        if message["method"] != "session.event":
            return
        params = message["params"]
        session_id = self._followed[connection, params["subscriptionId"]]
        events = params["events"]
        self._read(self.known[session_id], events[0]["seq"], events, events[-1]["seq"] + 1)
        self._durable(session_id, events[-1]["seq"] + 1)

    def _durable(self, session_id: str, count: int) -> None:
        known = self.known[session_id]
        if count <= known.acknowledged:
            return
        for seq in range(known.acknowledged, count):
            given = known.given.get(seq)
            if given is not None:
                known.final.setdefault(seq, given)
        self.acknowledged += count - known.acknowledged
        known.acknowledged = count
        known.exists = True

    def _read(self, known: Known, first: int, events: Sequence[Event], durable: int) -> None:
        for seq, event in enumerate(events, first):
            if event["seq"] != seq:
                raise BrokenPromiseError(f"seq {event['seq']} where {seq} is due")
            if seq < durable:
                found = identity(event)
                final = known.final.setdefault(seq, found)
                if final != found:
                    raise BrokenPromiseError(f"at {seq} was {final!r} and is {found!r}")

    # ------------------------------------------------------------------ what is stored

    def check(self, session_id: str, stored: Sequence[Event] | None) -> None:
        """Judge a whole log; None where there is none.

        Raises:
            BrokenPromiseError: Something does not hold.
        """
        known = self.known[session_id]
        if stored is None:
            require(not known.exists, f"session {session_id} is gone, with {known.acknowledged}")
            return
        require(
            len(stored) >= known.acknowledged,
            f"session {session_id}: {known.acknowledged} are acknowledged, {len(stored)} stored",
        )
        self._read(known, 0, stored, known.acknowledged)
        self._check_origin(session_id, stored)
        if not self.plain:
            self._check_batches(known, stored)

    def _check_batches(self, known: Known, stored: Sequence[Event]) -> None:
        """Demand that a call's events are all there or none; those that were sent again one by one tell nothing."""
        found = {identity(event) for event in stored}
        for batch in known.batches:
            if all(len(known.sent[one]) == 1 for one in batch):
                count = len(found.intersection(batch))
                require(count in {0, len(batch)}, f"{count} of {len(batch)} of a call: {batch}")

    def _check_origin(self, session_id: str, stored: Sequence[Event]) -> None:
        """Demand that every event was sent, once, in this order, or is the daemon's own."""
        known, last = self.known[session_id], 0
        sent, forked = known.sent, known.origin is not None
        parent = known.origin
        while parent is not None:  # a fork begins with what was sent for its parent
            sent = self.known[parent].sent | sent
            parent = self.known[parent].origin
        strange: Event | None = None
        for event in stored:
            kind = event["type"]
            if kind == _END_SEED:
                strange = None
                continue
            places = sent.get(identity(event))
            if places is None:
                if kind not in _ENDS:
                    raise BrokenPromiseError(f"{session_id}: nobody sent {event}")
                strange = event
                continue
            if strange is not None and kind not in _ENDS:
                raise BrokenPromiseError(f"{session_id}: nobody sent {strange}")
            later = next((place for place in places if place > last), 0)
            if not later and not forked:
                raise BrokenPromiseError(f"{session_id}: twice, or out of order: {event}")
            last = later or last
        # a batch of plain lines has no end of its own: what a cut leaves of closers is completed by the next recovery
        require(strange is None or self.plain, f"{session_id}: nobody sent {strange}")


def require(holds: object, text: str) -> None:
    """Raise BrokenPromiseError unless it holds."""
    if not holds:
        raise BrokenPromiseError(text)


def identity(event: Event) -> bytes:
    """What an event is known by."""
    return msgspec.json.encode((event["type"], event["data"]), order="sorted")


def added_by(request: dict[str, Any]) -> list[Event]:
    """Return the events that a call adds, where it is served."""
    method, params = request["method"], request["params"]
    events: list[Event] = list(params.get("events") or ())
    if method == "checkpoint.tool":
        turn, step = (int(part) for part in params["callId"].split("-")[1:3])
        data = {key: params[key] for key in ("callId", "name", "arguments")}
        events.append({"type": "tool/call", "data": {"turn": turn, "step": step, **data}})
    elif method == "checkpoint.turnEnd":
        turn = params["events"][-1]["data"]["turn"]
        events.append({"type": "turn/end", "data": {"turn": turn, "reason": params["reason"]}})
    return events
