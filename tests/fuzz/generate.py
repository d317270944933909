"""Hostile and odd traffic, made from a seed: lines, calls, batches, notifications and cancels.

The one rule: everything comes from one `Random`, so that a seed replays a case to the byte.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from support import events

if TYPE_CHECKING:
    from random import Random

TEXTS = (
    "",
    "a",
    "s0",
    "s1",
    "s2",
    "\u2028",
    "\x00",
    "../..",
    "é" * 300,
    "x" * 5000,
    "$/cancelRequest",
)
NUMBERS = (0, 1, -1, 2, 1.5, 2**53, -(2**53), 2**63, 10**30, 1e308, 255, 4)
RAW = (
    "NaN",
    "-0",
    "-0.0",
    "1e400",
    '"\\ud800"',
    "Infinity",
    "[" * 70 + "]" * 70,
    '{"a":1,"a":2}',
    "truth",
)
NAMES = ("s0", "s1", "s2")
METHOD_NAMES = (
    "__class__",
    "rpc.x",
    "",
    "session",
    "x" * 1000,
    "$/cancelRequest",
    "daemon.shutdown2",
)
NEVER = frozenset({"daemon.shutdown"})
FIRST_ID = 1_000_000  # of calls that must be answered; no spoilt line has as many digits


class Traffic:
    """An endless source of lines for one connection.

    Args:
        random: Where every choice comes from.
        document: The OpenRPC document: the methods and what each takes.
    """

    def __init__(self, random: Random, document: dict[str, Any]) -> None:
        self._random = random
        self._schemas = document["components"]["schemas"]
        self._methods = [one for one in document["methods"] if one["name"] not in NEVER]
        self._last_id = 0
        self.expected: set[int] = set()
        self.answered: Counter[int] = Counter()
        self.heard_last = False
        self.writers: dict[str, str] = {}
        self.next_seq: dict[str, int] = {}

    # ------------------------------------------------------------------ lines

    def line(self) -> bytes:
        """One line without its newline, good or not."""
        random = self._random
        kind = random.random()
        if kind < 0.7:
            return encoded(self.message())
        if kind < 0.75:
            return self._race()
        if kind < 0.85:
            return encoded([self.message() for _ in range(random.choice((0, 1, 2, 5, 30)))])
        if kind < 0.97:
            return self._mutated(encoded(self.message(answered=False)))
        return random.choice(
            (b"", b"\r", b"{", b"[]", b"null", b"\xff", b"\xef\xbb\xbf{}", b"[" * 5000)
        )

    def message(self, *, answered: bool = True) -> Any:
        """A call, a notification, a cancel, or something that is none; `answered`: a good call has its one answer."""
        random = self._random
        kind = random.random()
        if kind < 0.06:
            last = FIRST_ID + self._last_id
            return _cancel(random.choice((last, last - 1, self._last_id, "x", None, 1.5)))
        if kind < 0.08:
            return self.value(2)
        call: dict[str, Any] = {"jsonrpc": "2.0"}
        if kind < 0.9:
            self._last_id += 1
            call["id"] = self._last_id
        if kind < 0.12:
            call["id"] = self.value(1)
        call |= self._sensible() if kind < 0.55 else self._by_schema()
        if random.random() < 0.03:
            call[random.choice(("jsonrpc", "method", "params"))] = self.value(2)
        elif answered and 0.12 <= kind < 0.9:
            call["id"] += FIRST_ID
            self.expected.add(call["id"])
        return call

    def _race(self) -> bytes:
        """Calls that wait, and their cancels before, between and behind them, some twice, in lines or a batch."""
        random = self._random
        calls: list[dict[str, Any]] = []
        for _ in range(random.randrange(1, 5)):
            self._last_id += 1
            calls.append({"jsonrpc": "2.0", "id": FIRST_ID + self._last_id, **self._sensible()})
        ids = [call["id"] for call in calls]
        self.expected |= set(ids)
        mixed = calls + [_cancel(random.choice((*ids, ids[0] - 1, "x"))) for _ in ids]
        random.shuffle(mixed)
        return encoded(mixed) if random.random() < 0.3 else b"\n".join(map(encoded, mixed))

    def _mutated(self, line: bytes) -> bytes:
        random = self._random
        if random.random() < 0.5:
            return line.replace(b"1", random.choice(RAW).encode(), 1)
        at = random.randrange(len(line) + 1)
        junk = bytes(random.choices(b'"\\{}[],:0a\xff\x00 ', k=random.randrange(4)))
        return (line[:at] + junk + line[at + random.randrange(3) :]).replace(b"\n", b" ")

    # ------------------------------------------------------------------ calls

    def _sensible(self) -> dict[str, Any]:
        """A call as an agent makes it, on one of few sessions, in any order."""
        random = self._random
        name = random.choice(NAMES)
        handle = {"id": name, "writer": self.writers.get(name, "none")}
        method = random.choice(SENSIBLE)
        params = dict(_sensible_params(method, random, handle))
        if method.startswith(("checkpoint.", "session.append")) and random.random() < 0.3:
            params["expectedSeq"] = max(0, self.next_seq.get(name, 0) - random.randrange(3))
        return {"method": method, "params": params}

    def _by_schema(self) -> dict[str, Any]:
        """A call whose parameters have the right names and about the right types."""
        random = self._random
        if random.random() < 0.05:
            return {"method": random.choice(METHOD_NAMES), "params": self.value(2)}
        method = random.choice(self._methods)
        params: dict[str, Any] = {}
        for one in method["params"]:
            if one.get("required") or random.random() < 0.5:
                params[one["name"]] = self._like(one["schema"], 4)
        if "id" in params and random.random() < 0.8:
            params["id"] = random.choice(NAMES)
            if "writer" in params:
                params["writer"] = self.writers.get(params["id"], "none")
        if random.random() < 0.05:
            params[random.choice(TEXTS)] = self.value(2)
        return {"method": method["name"], "params": params}

    def _like(self, schema: dict[str, Any], depth: int) -> Any:
        random = self._random
        if depth == 0 or random.random() < 0.1:
            return self.value(2)
        if "$ref" in schema:
            return self._like(self._schemas[schema["$ref"].rpartition("/")[2]], depth)
        for choice in ("anyOf", "oneOf", "enum"):
            if choice in schema:
                found = random.choice(schema[choice])
                return found if choice == "enum" else self._like(found, depth - 1)
        return self._of_type(schema, depth)

    def _of_type(self, schema: dict[str, Any], depth: int) -> Any:
        random = self._random
        made: Any = None
        match schema.get("type"):
            case "object":
                made = {
                    name: self._like(inner, depth - 1)
                    for name, inner in schema.get("properties", {}).items()
                    if random.random() < 0.8
                }
            case "array":
                inner = schema.get("items", {})
                made = [self._like(inner, depth - 1) for _ in range(random.randrange(4))]
            case "string":
                made = random.choice(TEXTS)
            case "integer" | "number":
                made = random.choice(NUMBERS)
            case "boolean":
                made = random.random() < 0.5
            case _:
                made = self.value(2)
        return made

    def value(self, depth: int) -> Any:
        """Any JSON value."""
        random = self._random
        kind = random.randrange(7 if depth else 5)
        match kind:
            case 0 | 1:
                return random.choice(TEXTS)
            case 2 | 3:
                return random.choice(NUMBERS)
            case 4:
                return random.choice((None, True, False))
            case 5:
                return [self.value(depth - 1) for _ in range(random.randrange(4))]
            case _:
                return {random.choice(TEXTS): self.value(depth - 1) for _ in range(3)}

    # ------------------------------------------------------------------ answers

    def learn(self, answer: dict[str, Any]) -> None:
        """Note writers and seqs from an answer, so that later calls get further than the first check."""
        answer_to = answer.get("id")
        if isinstance(answer_to, int) and answer_to in self.expected:
            self.answered[answer_to] += 1
        self.heard_last = self.heard_last or answer_to == "last"
        match answer:
            case {"result": {"session": {"id": str(name), "nextSeq": next_seq}, **more}}:
                writer: Any = more.get("writer")
                if isinstance(writer, str):
                    self.writers[name] = writer
                self.next_seq[name] = next_seq if isinstance(next_seq, int) else 0
            case _:
                return


def _cancel(call_id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": call_id}}


def encoded(message: Any) -> bytes:
    """The message as a line."""
    return json.dumps(message, separators=(",", ":")).encode()


def _some_events(random: Random) -> list[events.Event]:
    made = (
        events.turn_start(random.randrange(1, 4)),
        events.step_start(1, 1),
        events.user(),
        events.request_header(),
        events.chunk(random.choice(TEXTS)),
        events.assistant("a", "b"),
        events.tool_result(random.choice("ab")),
        events.step_end(),
        events.title(),
        {"type": "unknown", "data": None, "ignorable": True},
    )
    if random.random() < 0.5:
        return list(made[:4])
    return random.choices(made, k=random.randrange(4))


def _tool(random: Random) -> dict[str, Any]:
    call_id = random.choice("abc")
    return {"callId": call_id, "name": "t", "arguments": f'{{"for":"{call_id}"}}'}


SENSIBLE = (
    *("session.create", "session.open", "session.append", "session.flush", "session.recover"),
    *("session.close", "session.read", "session.messages", "session.stat", "session.list"),
    *("session.fork", "session.subscribe", "checkpoint.request", "checkpoint.tool"),
    *("checkpoint.postStep", "checkpoint.turnEnd", "daemon.status", "daemon.metrics"),
)


def _sensible_params(method: str, random: Random, handle: dict[str, Any]) -> dict[str, Any]:
    """What an agent sends with a method, more or less."""
    name = {"id": handle["id"]}
    access = random.choice(("read", "write"))
    particular: dict[str, dict[str, Any]] = {
        "session.create": name,
        "session.open": {**name, "access": access, "takeover": True},
        "session.append": {**handle, "events": _some_events(random)},
        "session.read": {**name, "offset": random.randrange(5)},
        "session.messages": name,
        "session.stat": name,
        "session.list": {"limit": random.randrange(3)},
        "session.fork": name,
        "session.subscribe": {**name, "fromSeq": random.randrange(4)},
        "checkpoint.request": {**handle, "events": _some_events(random)},
        "checkpoint.tool": {**handle, **_tool(random)},
        "checkpoint.postStep": {**handle, "events": _some_events(random)},
        "checkpoint.turnEnd": {**handle, "reason": {"kind": "completed"}},
        "daemon.status": {},
        "daemon.metrics": {},
    }
    return particular.get(method, handle)
