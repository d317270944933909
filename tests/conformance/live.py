"""What must hold over the socket: turns, recovery, checkpoints and forks, checks over a running daemon.

The rule that holds here: every check uses sessions of its own, so one daemon does for all.
"""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from conformance.cases import Suite, refused
from support import events
from support.events import stored as numbered
from support.rpc import CallRefusedError
from support.turns import begin_turn, end_turn, opening, tool, types, write_session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.rpc import Connection

Event = dict[str, Any]


class Running(Protocol):
    """A daemon that answers, and whose root is at hand."""

    root: Path

    def connect(self) -> Connection:
        """Open a connection to it."""
        ...


LIVE: Suite[Running] = Suite()
holds = LIVE.holds

_names = count()
TURN = [events.turn_start(), events.step_start(), events.user()]
END = [events.step_end(), events.turn_end()]


def fresh(word: str = "live") -> str:
    """Return an id that no other check uses."""
    return f"{word}-{next(_names)}"


def lay(daemon: Running, log: Sequence[Event], tail: bytes = b"") -> str:
    """Lay out a raw log of these events and return its id; nobody is alive who would go on with it."""
    name = fresh("laid")
    header = {"type": "session", "version": 0, "id": name, "createdAt": 1, "cwd": "/w"}
    lines = [json.dumps(row) for row in [{**header, "delegationDepth": 0}, *numbered(log)]]
    path = daemon.root / "--w--" / name / "session.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode() + tail)
    return name


def read(connection: Connection, name: str) -> list[Event]:
    """Return a session's events."""
    found: list[Event] = connection.call("session.read", id=name)["events"]
    return found


def refusal(connection: Connection, method: str, **params: Any) -> CallRefusedError:
    """Make a call that must be refused."""
    with refused(CallRefusedError) as caught:
        connection.call(method, **params)
    error: CallRefusedError = caught[0]
    return error


def closers(daemon: Running, log: Sequence[Event]) -> list[Event]:
    """Return the events that would close a log, by a look at it; the look changes nothing."""
    name = lay(daemon, log)
    with daemon.connect() as connection:
        recovery = connection.call("session.open", id=name, access="read")["recovery"]
        assert read(connection, name) == numbered(log)
    found: list[Event] = [] if recovery is None else recovery["closers"]
    assert [event["seq"] for event in found] == list(range(len(log), len(log) + len(found)))
    return found


def answers(found: Sequence[Event]) -> list[tuple[str, str]]:
    """Return the calls that closers answer, with the code of each."""
    return [
        (event["data"]["message"]["source"]["callId"], event["data"]["error"]["code"])
        for event in found
        if event["type"] == "tool/result"
    ]


# ---------------------------------------------------------------------- closing a turn


@holds("R1", "R2", "R3", "R4")
def check_what_is_open_is_closed_from_the_inside(daemon: Running) -> None:
    """Nothing for a closed or empty log; the step before its turn; a turn without a step alone."""
    assert closers(daemon, []) == []
    assert closers(daemon, [*TURN, *END, events.title()]) == []
    assert types(closers(daemon, TURN[:1])) == ["turn/end"]
    found = closers(daemon, TURN)
    assert types(found) == ["step/end", "turn/end"]
    assert found[0]["data"] == {"turn": 1, "step": 1}
    assert found[1]["data"] == {"turn": 1, "reason": {"kind": "interrupted"}}
    assert {event["time"] for event in found} == {numbered(TURN)[-1]["time"]}


@holds("R5", "R6", "R9", "R10")
def check_every_unanswered_call_gets_one_result(daemon: Running) -> None:
    """In the order of the message; started ones unknown and citing their start, others not started, answered none."""
    log = [*TURN, events.assistant("a", "b", "c"), events.tool_call("c"), events.tool_call("b")]
    found = closers(daemon, [*log, events.tool_result("b")])
    assert answers(found) == [("a", "TOOL_NOT_STARTED"), ("c", "TOOL_OUTCOME_UNKNOWN")]
    assert [event.get("sourceEventSeqs") for event in found] == [None, [4], None, None]
    assert [event.get("surfaceOp") for event in found] == ["append", "append", None, None]
    assert list(found[1]) == ["type", "seq", "time", "data", "surfaceOp", "sourceEventSeqs"]


@holds("R7", "R8", "R11")
def check_only_the_open_step_is_answered(daemon: Running) -> None:
    """Not what a closed step or turn left, and not a start that no message asked for."""
    closed = [*TURN, events.assistant("a"), events.step_end()]
    assert types(closers(daemon, closed)) == ["turn/end"]
    second = [events.step_start(2), events.assistant("b", step=2)]
    assert answers(closers(daemon, [*closed, *second])) == [("b", "TOOL_NOT_STARTED")]
    next_turn = [*closed, events.turn_end(), events.turn_start(2)]
    assert types(closers(daemon, next_turn)) == ["turn/end"]
    assert answers(closers(daemon, [*TURN, events.tool_call("a")])) == []


@holds("K3", "K4", "K5", "J28", "O40", "J87", "S24", "Z15")
def check_a_recovery_is_stored_once_and_tells_what_may_be_repeated(daemon: Running) -> None:
    """Looked at it stays in memory; recovered it is stored, in one piece with the tail set aside, and once."""
    log = [*TURN, events.assistant("a", "b"), events.tool_call("b")]
    name = lay(daemon, log, tail=b'{"type":"tool/res')
    path = daemon.root / "--w--" / name / "session.jsonl"
    before = path.read_bytes()
    with daemon.connect() as connection:
        shown = connection.call("session.messages", id=name)
        preview = connection.call("session.open", id=name, access="read")["recovery"]
        assert path.read_bytes() == before
        assert [one["code"] for one in preview["repairs"]] == [
            "TOOL_NOT_STARTED",
            "TOOL_OUTCOME_UNKNOWN",
        ]
        opened = connection.call("session.open", id=name, access="write")
        handle = {"id": name, "writer": opened["writer"]}
        assert read(connection, name) == numbered(log)
        committed = connection.call("session.recover", **handle)
        assert committed == {**preview, "committed": True}
        assert connection.call("session.recover", **handle) == committed
        whole = read(connection, name)
        assert whole[: len(log)] == numbered(log)
        assert whole[len(log) : -1] == preview["closers"]
        assert whole[-1]["type"] == "session/end-seed"
        connection.call("session.close", **handle)
        again = connection.call("session.messages", id=name)
    assert again["messages"] == shown["messages"]
    results = [m["content"][0] for m in again["messages"] if m["source"]["kind"] == "tool"]
    assert [one["toolCallId"] for one in results] == ["a", "b"]
    texts = [one["content"][0]["text"] for one in results]
    assert all(one["isError"] for one in results)
    assert "read-only or idempotent" in texts[1]
    assert "ask the user" in texts[1]


@holds("O2", "S23", "A5", "NO20")
def check_a_living_writer_is_not_repaired_over_its_head(daemon: Running) -> None:
    """An open turn of a live session is shown as it stands, and nobody else may write or recover it."""
    name = fresh()
    with daemon.connect() as owner, daemon.connect() as other:
        handle = begin_turn(owner, name, "a")
        before = read(other, name)
        assert other.call("session.open", id=name, access="read")["recovery"] is None
        assert other.call("session.messages", id=name)["recovery"] is None
        assert refusal(other, "session.open", id=name, access="write").kind == "SESSION_BUSY"
        forged = {"id": name, "writer": "forged"}
        assert refusal(other, "session.recover", **forged).kind == "WRITER_LOST"
        assert read(other, name) == before
        owner.call("session.close", **handle)


# ---------------------------------------------------------------------- a session's life


@holds("O1", "O14", "A18", "O22", "S15")
def check_a_session_goes_on_where_it_was_closed(daemon: Running) -> None:
    """What was admitted is durable at the close; the next handle goes on with seq and turn and repeats nothing."""
    name = fresh()
    with daemon.connect() as connection:
        length = write_session(connection, name)
        first = read(connection, name)
        opened = connection.call("session.open", id=name, access="write")
        assert opened["recovery"] is None
        handle = {"id": name, "writer": opened["writer"]}
        begun = connection.call("session.append", **handle, events=opening(2))
        assert begun["firstSeq"] == length + 1
        wrong = refusal(connection, "session.append", **handle, events=[events.turn_start(1)])
        assert wrong.kind == "EVENT_INVALID"
        connection.call("session.append", **handle, events=[events.assistant(turn=2)])
        end_turn(connection, handle, 2)
        connection.call("session.close", **handle)
        whole = read(connection, name)
    assert whole[:length] == first
    assert whole[length]["type"] == "session/end-seed"
    assert [event["seq"] for event in whole] == list(range(len(whole)))


@holds("O25", "A4", "L48")
def check_an_id_in_use_is_not_created_again(daemon: Running) -> None:
    """Live, stored, or created and never written: the id is taken, and whoever has it is not disturbed."""
    name = fresh()
    with daemon.connect() as owner, daemon.connect() as other:
        made = owner.call("session.create", id=name, cwd="/w")
        assert refusal(other, "session.create", id=name, cwd="/x").kind == "SESSION_EXISTS"
        handle = {"id": name, "writer": made["writer"]}
        owner.call("session.append", **handle, events=opening())
        assert refusal(other, "session.create", id=name).kind == "SESSION_EXISTS"
        owner.call("session.close", **handle)
        assert refusal(other, "session.create", id=name, cwd="/w").kind == "SESSION_EXISTS"


@holds("A3", "A6", "A7", "L55", "L56")
def check_a_session_needs_neither_id_nor_cwd(daemon: Running) -> None:
    """An id is made where none is given; without a cwd a session is created and resumed like any other."""
    with daemon.connect() as connection:
        made = connection.call("session.create")
        name = made["session"]["id"]
        assert name
        assert "cwd" not in made["session"]["header"]
        handle = {"id": name, "writer": made["writer"]}
        connection.call("session.append", **handle, events=[events.title()])
        connection.call("session.close", **handle)
        header = connection.call("session.stat", id=name)["session"]["header"]
        assert header == made["session"]["header"]
        again = connection.call("session.open", id=name, access="write")
        connection.call("session.close", id=name, writer=again["writer"])


@holds("L59", "K2")
def check_a_cwd_must_be_absolute(daemon: Running) -> None:
    """What could never be loaded is refused, and the id stays free."""
    name = fresh()
    with daemon.connect() as connection:
        for cwd in ("", "w", "./w", "~"):
            error = refusal(connection, "session.create", id=name, cwd=cwd)
            assert error.kind == "INVALID_PARAMS"
        assert (
            refusal(connection, "session.create", id=name, createdAt=1.5).kind == "INVALID_PARAMS"
        )
        write_session(connection, name)


@holds("NH2", "K8")
def check_offsets_and_lengths_are_counts(daemon: Running) -> None:
    """A negative or fractional offset or length is refused; behind the end there is nothing."""
    name = fresh()
    with daemon.connect() as connection:
        length = write_session(connection, name)
        for wrong in ({"offset": -1}, {"offset": 0.5}, {"length": -1}, {"offset": True}):
            assert refusal(connection, "session.read", id=name, **wrong).kind == "INVALID_PARAMS"
        assert (
            read(connection, name)[2:]
            == (connection.call("session.read", id=name, offset=2)["events"])
        )
        behind = connection.call("session.read", id=name, offset=length + 5)
        assert (behind["events"], behind["end"]) == ([], True)
        assert refusal(connection, "session.read", id="absent").kind == "SESSION_NOT_FOUND"


@holds("K12", "L17", "L20", "J93", "NH17")
def check_what_is_no_plain_json_never_gets_in(daemon: Running) -> None:
    """NaN, infinities, negative zero, integers beyond 2^53, duplicate keys, lone surrogates: refused, the seq free."""
    name = fresh()
    with daemon.connect() as connection:
        handle = {"id": name, "writer": connection.call("session.create", id=name)["writer"]}
        for wrong in (
            "NaN",
            "Infinity",
            "-0",
            "9007199254740993",
            '{"a":1,"a":2}',
            '"\\ud800"',
            "1e999",
        ):
            call: Event = {"jsonrpc": "2.0", "id": 9, "method": "session.append"}
            call["params"] = {
                **handle,
                "events": [{"type": "session/title", "data": {"x": "HERE"}}],
            }
            connection.socket.sendall(json.dumps(call).replace('"HERE"', wrong).encode() + b"\n")
            answer = connection.read_message()
            assert answer["error"]["data"]["kind"] in {"EVENT_INVALID", "PARSE_ERROR"}, wrong
        done = connection.call("session.append", **handle, events=[events.title()], expectedSeq=0)
        assert done["firstSeq"] == 0
        connection.call("session.close", **handle)


@holds("J80", "O26", "O27")
def check_what_is_sent_again_is_compared_whole(daemon: Running) -> None:
    """The same events at the same seq are no news; other data, at equal type and time, is a conflict."""
    name = fresh()
    with daemon.connect() as connection:
        handle = {"id": name, "writer": connection.call("session.create", id=name)["writer"]}
        sent = [{**events.title("one"), "time": 5}, {**events.title("two"), "time": 6}]
        connection.call("session.append", **handle, events=sent, expectedSeq=0)
        again = connection.call("session.append", **handle, events=sent, expectedSeq=0)
        assert (again["duplicate"], again["nextSeq"]) == (True, 2)
        other = [sent[0], {**events.title("other"), "time": 6}]
        params = {**handle, "expectedSeq": 0}
        assert refusal(connection, "session.append", **params, events=other).kind == "SEQ_CONFLICT"
        more = [*sent, events.title("three")]
        error = refusal(connection, "session.append", **params, events=more)
        assert (error.kind, error.facts["expected"]) == ("SEQ_CONFLICT", 2)
        rest = connection.call("session.append", **handle, events=more[2:], expectedSeq=2)
        assert (rest["duplicate"], rest["nextSeq"]) == (False, 3)
        connection.call("session.close", **handle)


@holds("H6", "H7", "S48", "S49", "O11", "L10", "G17", "G18", "G2")
def check_no_client_writes_what_could_not_be_loaded(daemon: Running) -> None:
    """Retired types and reasons, malformed messages, surface marks where they do not belong: refused, nothing kept."""
    name = fresh()
    fallback = events.request_header()
    fallback["data"]["reason"] = "fallback"
    nameless = events.user()
    nameless["data"]["id"] = ""
    sourceless = events.assistant()
    sourceless["data"]["message"]["source"] = {"kind": "model"}
    wrongs: list[Event] = [
        *({"type": "request/header-delta", "data": {}}, {"type": "mode/set", "data": {}}),
        *(fallback, nameless, sourceless, {**events.user(), "surfaceOp": None}),
        *({**events.user(), "surfaceOp": "replace"}, {**events.title(), "surfaceOp": "append"}),
        {**events.title(), "sourceEventSeqs": [0]},
        *({**events.user(), "extra": 1}, {**events.title(), "ignorable": False}),
    ]
    with daemon.connect() as connection:
        handle = begin_turn(connection, name)
        length = len(read(connection, name))
        for wrong in wrongs:
            sent = [events.title(), wrong]
            error = refusal(connection, "session.append", **handle, events=sent)
            assert (error.kind, error.facts["index"]) == ("EVENT_INVALID", 1), wrong
        assert len(read(connection, name)) == length
        connection.call("session.close", **handle)


# ---------------------------------------------------------------------- checkpoints


@holds("C1", "E1", "NL3", "T2")
def check_a_request_is_answered_when_all_before_it_is_durable(daemon: Running) -> None:
    """What the model is about to see is on disk: a second connection reads it as durable."""
    name = fresh()
    with daemon.connect() as connection, daemon.connect() as other:
        made = connection.call("session.create", id=name, cwd="/w")
        handle = {"id": name, "writer": made["writer"]}
        asked = connection.call("checkpoint.request", **handle, events=opening())
        assert asked["durableSeq"] == asked["nextSeq"] == len(opening())
        page = other.call("session.read", id=name)
        assert page["durableSeq"] == len(page["events"]) == len(opening())
        connection.call("session.close", **handle)


@holds("C2", "C3", "T7", "T8", "C4")
def check_there_is_no_checkpoint_without_a_live_session(daemon: Running) -> None:
    """Of an absent, a closed, or somebody else's session it is refused: nothing may be dispatched on its word."""
    name = fresh()
    with daemon.connect() as connection:
        handle = begin_turn(connection, name, "a")
        connection.call("session.close", **handle)
        for method, more in (
            ("checkpoint.request", {}),
            ("checkpoint.tool", tool("a")),
            ("checkpoint.postStep", {}),
        ):
            error = refusal(connection, method, **handle, **more)
            assert error.kind == "WRITER_LOST"
            error = refusal(connection, method, id="absent", writer="w", **more)
            assert error.kind in {"SESSION_NOT_FOUND", "WRITER_LOST"}
        assert types(read(connection, name))[-1] == "assistant/message"


@holds("C5", "E2", "C8")
def check_a_call_is_durable_before_its_body_and_a_nested_one_is_not_waited_for(
    daemon: Running,
) -> None:
    """DISPATCH means that the start is on disk; a dispatch inside it is recorded and costs no flush."""
    name = fresh()
    with daemon.connect() as connection:
        handle = begin_turn(connection, name, "a")
        given = connection.call("checkpoint.tool", **handle, **tool("a"))
        assert given["decision"] == "DISPATCH"
        assert given["callSeq"] < given["durableSeq"]
        inner = {"callId": "a:1", "name": "sub", "arguments": "{}", "parentCallId": "a"}
        nested = connection.call("checkpoint.tool", **handle, **inner)
        assert nested["decision"] == "DISPATCH"
        assert nested["callSeq"] >= nested["durableSeq"]
        assert read(connection, name)[-1]["type"] == "tool/code-dispatch-start"
        connection.call("session.flush", **handle)
        connection.call("session.close", **handle)
        repairs = connection.call("session.open", id=name, access="read")["recovery"]["repairs"]
        assert [(one["callId"], one["code"]) for one in repairs] == [("a", "TOOL_OUTCOME_UNKNOWN")]


@holds("C9")
def check_a_step_is_durable_when_it_has_ended(daemon: Running) -> None:
    """Answer, results and end of the step are on disk at the answer; an open step has no such checkpoint."""
    name = fresh()
    with daemon.connect() as connection:
        handle = begin_turn(connection, name, "a")
        connection.call("checkpoint.tool", **handle, **tool("a"))
        assert refusal(connection, "checkpoint.postStep", **handle).kind == "EVENT_INVALID"
        rest = [events.tool_result("a"), events.step_end()]
        done = connection.call("checkpoint.postStep", **handle, events=rest)
        assert done["durableSeq"] == done["nextSeq"]
        ended = connection.call("checkpoint.turnEnd", **handle, reason={"kind": "completed"})
        assert ended["durableSeq"] == ended["nextSeq"]
        connection.call("session.close", **handle)


@holds("NL8", "NL11", "NL2")
def check_a_close_ends_a_handle_and_the_next_one_writes(daemon: Running) -> None:
    """The old writer's events are refused for ever; the new one's are stored behind what the close made durable."""
    name = fresh()
    with daemon.connect() as connection:
        old = begin_turn(connection, name)
        connection.call("session.append", **old, events=[events.title("last")])
        closed = connection.call("session.close", **old)
        assert closed["durableSeq"] == closed["nextSeq"]
        assert (
            refusal(connection, "session.append", **old, events=[events.title()]).kind
            == "WRITER_LOST"
        )
        opened = connection.call("session.open", id=name, access="write")
        new = {"id": name, "writer": opened["writer"]}
        connection.call("session.recover", **new)
        connection.call("session.append", **new, events=[events.title("new")])
        connection.call("session.close", **new)
        assert read(connection, name)[-1]["data"]["title"] == "new"


# ---------------------------------------------------------------------- forks


@holds("F2", "F3", "F4", "F5", "O13", "J27", "L8", "J15", "A16")
def check_a_fork_begins_with_the_parent_and_says_so(daemon: Running) -> None:
    """At the last closed turn, with what follows it, or an earlier one; stored once, marked, with its lineage."""
    name = fresh("parent")
    with daemon.connect() as connection:
        write_session(connection, name, agentPreset="coder", delegationDepth=1)
        opened = connection.call("session.open", id=name, access="write")
        handle = {"id": name, "writer": opened["writer"]}
        connection.call("session.append", **handle, events=[events.title("after")])
        whole = read(connection, name)
        first_end = types(whole).index("turn/end")
        for boundary in (None, first_end, first_end + 1):
            child = fresh("child")
            asked = {} if boundary is None else {"boundary": boundary}
            made = connection.call("session.fork", id=name, newId=child, **asked)["session"]
            seed = whole if boundary is None else whole[: boundary + 1]
            found = read(connection, child)
            assert found[: len(seed)] == seed
            added = [] if types(seed)[-1] == "session/end-seed" else ["session/end-seed"]
            assert types(found[len(seed) :]) == added
            header = made["header"]
            assert (header["parentSession"], header["seedLength"]) == (name, len(seed))
            assert (header["cwd"], header["delegationDepth"]) == ("/w", 0)
            assert "agentPreset" not in header
            assert made["writer"] is None
            resumed = connection.call("session.open", id=child, access="write")
            connection.call("session.close", id=child, writer=resumed["writer"])
            assert read(connection, child) == found
            assert resumed["session"]["header"] == header
        connection.call("session.append", **handle, events=opening(2))
        child = fresh("child")
        connection.call("session.fork", id=name, newId=child, boundary=first_end)
        assert read(connection, child)[: first_end + 1] == whole[: first_end + 1]
        connection.call("session.close", **handle)


@holds("F7", "F9", "F12", "F13", "F14")
def check_a_fork_that_cannot_be_leaves_nothing(daemon: Running) -> None:
    """A taken id before all else, an unknown source, a boundary outside the log or inside a turn: refused."""
    name, child = fresh("parent"), fresh("child")
    with daemon.connect() as connection:
        handle = begin_turn(connection, name)
        length = len(read(connection, name))
        fork = {"id": name, "newId": child}
        assert refusal(connection, "session.fork", **fork).kind == "OPEN_TURN"
        assert refusal(connection, "session.fork", **fork, boundary=0).kind == "OPEN_TURN"
        for wrong in (length, -1, 0.5):
            error = refusal(connection, "session.fork", **fork, boundary=wrong)
            assert error.kind == "INVALID_PARAMS"
        taken = refusal(connection, "session.fork", id=name, newId=name, boundary=length + 9)
        assert taken.kind == "SESSION_EXISTS"
        absent = refusal(connection, "session.fork", id="absent", newId=child)
        assert absent.kind == "SESSION_NOT_FOUND"
        assert refusal(connection, "session.stat", id=child).kind == "SESSION_NOT_FOUND"
        connection.call("session.close", **handle)


# ---------------------------------------------------------------------- the history


@holds("D6", "D11", "G32", "G33", "G34", "G35", "G37", "H4", "H5", "H8")
def check_the_history_is_the_surface_and_nothing_else(daemon: Running) -> None:
    """Messages in the order of the surface, replaced where they were replaced; the last header and context in force."""
    name = fresh()
    empty = events.assistant(step=2)
    empty["data"]["message"]["content"] = []
    context = {"type": "request/context", "data": {"provider": "p", "model": "m"}}
    summary = events.user("summary", surfaceOp={"op": "replace", "start": 2, "end": 4})
    summary["sourceEventSeqs"] = [2, 4]
    log = [
        *(*TURN, events.request_header(), events.assistant(), events.step_end()),
        *(events.step_start(2), context, empty, events.chunk(step=2), events.step_end(2)),
        *(summary, events.user("more"), events.turn_end()),
    ]
    name = lay(daemon, log)
    with daemon.connect() as connection:
        found = connection.call("session.messages", id=name)
        assert [message["id"] for message in found["messages"]] == ["u-summary", "u-more"]
        assert found["requestHeader"] == {"config": {"provider": "p", "model": "m"}}
        assert found["requestContext"] == context["data"]
        assert (found["recovery"], found["problem"]) == (None, None)
        again = connection.call("session.messages", id=name, offset=1)
        assert again["messages"] == found["messages"][1:]
