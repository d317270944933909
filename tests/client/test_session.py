from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dsh_client.blocking import Client
from dsh_client.errors import (
    CallTimeoutError,
    DaemonUnavailableError,
    LatchedError,
    MisuseError,
)
from dsh_client.session import Session, open_session
from dsh_client.shapes import ToolCall
from dsh_protocol.errors import (
    DshdError,
    EventInvalidError,
    NoSpaceError,
    SeqConflictError,
    SessionBusyError,
    SessionNotFoundError,
    ShuttingDownError,
    WriterLostError,
)
from support.fake_daemon import FakeDaemon, FakeSession, holder_of_this_process

if TYPE_CHECKING:
    from collections.abc import Generator

HEADER = {"config": {"provider": "p", "model": "m"}}
CHECKPOINTS = [
    "checkpoint.request",
    "checkpoint.tool",
    "checkpoint.postStep",
    "checkpoint.turnEnd",
]


def ask(*ids: str) -> list[dict[str, Any]]:
    return [{"type": "tool-call", "id": i, "name": "t", "arguments": "{}"} for i in ids]


@pytest.fixture
def daemon() -> Generator[FakeDaemon, None, None]:
    with FakeDaemon() as running:
        yield running


@pytest.fixture
def client(daemon: FakeDaemon) -> Generator[Client, None, None]:
    one = Client(daemon.path, timeout=3)
    yield one
    one.close()


class Ran:
    """What an agent did: how often the model was called and which bodies ran."""

    def __init__(self) -> None:
        self.requests = 0
        self.bodies: list[str] = []


def agent(session: Session, ran: Ran, calls: tuple[str, ...] = ("c",)) -> None:
    """Run one turn of two steps: the model asks for the calls, then is content."""
    with session.turn("hello") as turn:
        for content in (ask(*calls), "done"):
            with turn.step() as step:
                with step.request(HEADER):
                    ran.requests += 1
                for call in step.answer(content):
                    with step.tool(call) as tool:
                        ran.bodies.append(call.id)
                        tool.result("ok")


WHOLE = [
    "turn/start",
    "step/start",
    "user/message",
    "request/header",
    "assistant/message",
    "tool/call",
    "tool/result",
    "step/end",
    "step/start",
    "assistant/message",
    "step/end",
    "turn/end",
]


def whole(session: FakeSession) -> None:
    """The log is that of `agent`, once, dense, and durable."""
    assert [event["type"] for event in session.events] == WHOLE
    assert session.durable == len(session.events)


def test_a_turn_is_recorded_in_order_and_durable_at_its_end(
    daemon: FakeDaemon, client: Client
) -> None:
    ran = Ran()
    with open_session("s", client=client, cwd="/w") as session:
        agent(session, ran)
    whole(daemon.sessions["s"])
    assert daemon.sessions["s"].header["cwd"] == "/w"
    assert (ran.requests, ran.bodies) == (2, ["c"])


def test_every_call_that_records_says_which_seq_it_expects(
    daemon: FakeDaemon, client: Client
) -> None:
    with open_session("s", client=client) as session:
        agent(session, Ran())
    for method, params in daemon.calls:
        if params.get("events") or method in {"checkpoint.tool", "checkpoint.turnEnd"}:
            assert "expectedSeq" in params, method


def test_a_result_cites_the_call_that_it_answers(daemon: FakeDaemon, client: Client) -> None:
    with open_session("s", client=client) as session:
        agent(session, Ran())
    events = daemon.sessions["s"].events
    assert events[6]["sourceEventSeqs"] == [5]


def test_the_model_is_called_after_the_checkpoint_and_the_body_after_dispatch(
    daemon: FakeDaemon, client: Client
) -> None:
    with (
        open_session("s", client=client) as session,
        session.turn("x") as turn,
        turn.step() as step,
    ):
        with step.request(HEADER):
            assert daemon.sessions["s"].durable == 4
        (call,) = step.answer(ask("c"))
        with step.tool(call) as tool:
            assert daemon.sessions["s"].durable == 6
            assert tool.idempotency_key == "key-5"
            tool.result("ok")


# -- lost connections and replies


@pytest.mark.parametrize("kind", ["lose-call", "lose-reply", "half-reply"])
@pytest.mark.parametrize("method", ["session.append", *CHECKPOINTS])
def test_a_lost_call_or_answer_is_repeated_and_nothing_runs_twice(
    daemon: FakeDaemon, client: Client, method: str, kind: str
) -> None:
    ran = Ran()
    daemon.fault(method, kind)
    with open_session("s", client=client) as session:
        agent(session, ran)
    whole(daemon.sessions["s"])
    assert (ran.requests, ran.bodies) == (2, ["c"])
    assert daemon.connections == 2


def test_every_answer_lost_once_still_gives_one_of_everything(
    daemon: FakeDaemon, client: Client
) -> None:
    seen: set[str] = set()

    def lose_first(method: str, params: dict[str, Any]) -> None:
        key = f"{method} {params.get('expectedSeq')}"
        if params.get("expectedSeq") is not None and key not in seen:
            seen.add(key)
            daemon.fault(method, "lose-reply")

    daemon.on_call = lose_first
    ran = Ran()
    with open_session("s", client=client) as session:
        agent(session, ran)
    whole(daemon.sessions["s"])
    assert (ran.requests, ran.bodies) == (2, ["c"])
    assert daemon.connections > 8


@pytest.mark.parametrize("method", ["session.append", *CHECKPOINTS, "session.close"])
def test_what_a_crashed_daemon_forgot_is_sent_again(
    daemon: FakeDaemon, client: Client, method: str
) -> None:
    def restart(name: str, _params: dict[str, Any]) -> None:
        if name == method and not restarted:
            restarted.append(name)
            daemon.fault(method, "crash")
            threading.Timer(0.03, daemon.start).start()

    restarted: list[str] = []
    ran = Ran()
    daemon.on_call = restart
    with open_session("s", client=client) as session:
        agent(session, ran)
    whole(daemon.sessions["s"])
    assert (ran.requests, ran.bodies) == (2, ["c"])


def test_events_not_yet_durable_survive_a_daemon_that_dies_between_calls(
    daemon: FakeDaemon, client: Client
) -> None:
    with open_session("s", client=client) as session:
        session.append([{"type": "a", "data": 1}])
        session.flush()
        session.append([{"type": "b", "data": 2}])
        session.append([{"type": "c", "data": 3}])
        daemon.crash()
        assert daemon.types("s") == ["a"]
        daemon.start()
        session.append([{"type": "d", "data": 4}])
        assert daemon.types("s") == ["a", "b", "c", "d"]
        assert session.flush() == 4
    (proof,) = [
        params["continue"] for params in daemon.named("session.open") if "continue" in params
    ]
    assert proof == {"nextSeq": 1, "writer": "writer-1"}


def test_a_session_that_was_never_durable_is_made_again(daemon: FakeDaemon, client: Client) -> None:
    with open_session("s", client=client, cwd="/w") as session:
        session.append([{"type": "a", "data": 1}])
        daemon.crash()
        assert "s" not in daemon.sessions
        daemon.start()
        assert session.flush() == 1
    assert daemon.types("s") == ["a"]
    assert daemon.sessions["s"].header["cwd"] == "/w"


def test_an_end_seed_that_was_reserved_and_never_written_shifts_what_follows(
    daemon: FakeDaemon, client: Client
) -> None:
    daemon.sessions["s"] = FakeSession({"id": "s"}, [{"type": "old", "data": 0}], durable=1)
    with open_session("s", client=client) as session:
        first = session.append([{"type": "a", "data": 1}])
        session.append([{"type": "b", "data": 2, "sourceEventSeqs": [0, first]}])
        assert first == 2
        daemon.crash()
        daemon.start()
        session.flush()
    assert daemon.types("s") == ["old", "a", "b"]
    assert daemon.sessions["s"].events[2]["sourceEventSeqs"] == [0, 1]


def test_a_session_deleted_under_a_living_agent_is_not_made_again(
    daemon: FakeDaemon, client: Client
) -> None:
    with pytest.raises(SessionNotFoundError), open_session("s", client=client) as session:  # noqa: PT012  the whole block is what raises
        session.append([{"type": "a", "data": 1}])
        session.flush()
        daemon.crash()
        daemon.sessions.clear()
        daemon.start()
        session.flush()
    assert daemon.sessions == {}


def test_acknowledged_events_that_are_gone_stop_the_agent(
    daemon: FakeDaemon, client: Client
) -> None:
    with (  # noqa: PT012  the whole block is what raises
        pytest.raises(SeqConflictError, match="acknowledged"),
        open_session("s", client=client) as session,
    ):
        session.append([{"type": "a", "data": 1}, {"type": "b", "data": 2}])
        session.flush()
        daemon.sessions["s"].durable = 1
        daemon.crash()
        daemon.start()
        session.flush()


def test_a_daemon_that_stops_is_waited_for(daemon: FakeDaemon, client: Client) -> None:
    daemon.fault("checkpoint.request", "refuse", ShuttingDownError("stopping"))
    ran = Ran()
    with open_session("s", client=client) as session:
        agent(session, ran)
    whole(daemon.sessions["s"])
    assert daemon.connections == 2


# -- the latch


@pytest.mark.parametrize("kind", ["refuse", "fail"])
@pytest.mark.parametrize("method", CHECKPOINTS)
def test_after_a_failed_checkpoint_nothing_may_run_until_a_flush_succeeds(
    daemon: FakeDaemon, client: Client, method: str, kind: str
) -> None:
    ran = Ran()
    with open_session("s", client=client) as session:
        daemon.fault(method, kind, NoSpaceError("the disk is full", errno=28))
        with pytest.raises(NoSpaceError, match="disk is full"):
            agent(session, ran)
        assert ran.requests == (
            0 if method == "checkpoint.request" else 1 if "tool" in method else ran.requests
        )
        assert ran.bodies == ([] if method in CHECKPOINTS[:2] else ["c"])
        before = len(daemon.calls)
        with pytest.raises(LatchedError, match="disk is full") as latched:
            agent(session, ran)
        assert isinstance(latched.value.first_failure, NoSpaceError)
        assert len(daemon.calls) == before
        daemon.fault("session.flush", "fail", NoSpaceError("still full", errno=28))
        with pytest.raises(NoSpaceError, match="still full"):
            session.flush()
        with pytest.raises(LatchedError):
            agent(session, ran)
        session.flush()
        log = daemon.sessions["s"]
        assert log.durable == len(log.events)
        assert daemon.types("s")[-1] == "turn/end"
        again = Ran()
        agent(session, again)
        assert (again.requests, again.bodies) == (2, ["c"])
    starts = [e["data"]["turn"] for e in log.events if e["type"] == "turn/start"]
    assert starts == [1, 2]
    assert log.durable == len(log.events)


def test_inside_one_step_a_latched_handle_refuses_request_and_tool_without_a_call(
    daemon: FakeDaemon, client: Client
) -> None:
    bodies: list[str] = []
    with (
        open_session("s", client=client) as session,
        session.turn("x") as turn,
        turn.step() as step,
    ):
        step.request(HEADER)
        first, second = step.answer(ask("a", "b"))
        daemon.fault("checkpoint.tool", "fail", NoSpaceError("full"))
        with pytest.raises(NoSpaceError), step.tool(first):
            bodies.append("a")
        before = len(daemon.calls)
        with pytest.raises(LatchedError), step.tool(second):
            bodies.append("b")
        with pytest.raises(LatchedError):
            step.request(HEADER)
        assert len(daemon.calls) == before
        session.flush()
        with step.tool(second) as tool:
            bodies.append("b")
            tool.result("ok")
        with pytest.raises(MisuseError, match="started before"), step.tool(first):
            bodies.append("a")
    assert bodies == ["b"]
    results = [e["data"] for e in daemon.sessions["s"].events if e["type"] == "tool/result"]
    assert [r["message"]["source"]["callId"] for r in results] == ["b", "a"]
    assert results[1]["error"]["code"] == "ABORTED_BEFORE_DISPATCH"


def test_a_late_checkpoint_latches_and_flush_finds_out_what_became_of_it(
    daemon: FakeDaemon, client: Client
) -> None:
    client.timeout = 0.5
    ran = Ran()
    with open_session("s", client=client) as session:
        daemon.fault("checkpoint.tool", "silence")
        with pytest.raises(CallTimeoutError, match=r"checkpoint\.tool"):
            agent(session, ran)
        with pytest.raises(LatchedError):
            agent(session, ran)
        assert ran.bodies == []
        session.flush()
        agent(session, ran)
    assert ran.bodies == ["c"]
    types = daemon.types("s")
    assert types.count("tool/call") == 2
    assert types.count("turn/end") == 2


def test_a_daemon_that_is_gone_stops_the_agent_in_time_and_says_so(
    daemon: FakeDaemon, client: Client
) -> None:
    client.timeout = 0.5
    ran = Ran()
    with pytest.raises(DaemonUnavailableError, match="cannot be reached") as gone:  # noqa: PT012, SIM117  the whole block is what raises
        with open_session("s", client=client) as session:
            session.append([{"type": "a", "data": 1}])
            daemon.crash()
            agent(session, ran)
    assert ran.requests == 0
    assert any("closing session 's'" in note for note in gone.value.__notes__)


def test_a_lost_writer_latches_for_good(daemon: FakeDaemon, client: Client) -> None:
    ran = Ran()
    with pytest.raises(WriterLostError), open_session("s", client=client) as session:  # noqa: PT012  the whole block is what raises
        session.append([{"type": "a", "data": 1}])
        daemon.sessions["s"].writer = "another"
        with pytest.raises(WriterLostError):
            agent(session, ran)
        with pytest.raises(LatchedError):
            agent(session, ran)
        session.flush()
    assert ran.requests == 0


def test_a_refused_append_leaves_nothing_and_does_not_latch(
    daemon: FakeDaemon, client: Client
) -> None:
    with open_session("s", client=client) as session:
        session.append([{"type": "a", "data": 1}])
        with pytest.raises(EventInvalidError):
            session.append([{"type": "bad", "data": 1}])
        assert session.append([{"type": "b", "data": 1}]) == 1
    assert daemon.types("s") == ["a", "b"]


def test_what_happens_while_latched_reaches_the_log_with_the_flush(
    daemon: FakeDaemon, client: Client
) -> None:
    client.timeout = 0.5
    with open_session("s", client=client) as session:
        daemon.crash()
        with pytest.raises(DaemonUnavailableError):
            session.flush()
        session.append([{"type": "a", "data": 1}])
        session.append([{"type": "b", "data": 1}])
        daemon.start()
        session.flush()
    assert daemon.types("s") == ["a", "b"]


def test_an_event_refused_while_nobody_waited_is_told_by_the_flush(
    daemon: FakeDaemon, client: Client
) -> None:
    with open_session("s", client=client) as session:
        daemon.fault("session.flush", "refuse", NoSpaceError("full"))
        with pytest.raises(NoSpaceError):
            session.flush()
        session.append([{"type": "bad", "data": 1}])
        session.append([{"type": "a", "data": 1}])
        with pytest.raises(EventInvalidError):
            session.flush()
        session.flush()
    assert daemon.types("s") == ["a"]


# -- turns, steps, calls that do not end well


def test_a_body_that_raises_gets_its_error_recorded_and_the_turn_ends_with_it(
    daemon: FakeDaemon, client: Client
) -> None:
    with open_session("s", client=client) as session:  # noqa: SIM117  the whole block is what raises
        with pytest.raises(OSError, match="no such thing"), session.turn("x") as turn:  # noqa: PT012  the whole block is what raises
            with turn.step() as step:
                step.request(HEADER)
                first, _ = step.answer(ask("a", "b"))
                with step.tool(first):
                    raise OSError("no such thing \udcff")
    events = daemon.sessions["s"].events
    assert daemon.types("s")[-6:] == [
        "tool/call",
        "tool/result",
        "tool/call",
        "tool/result",
        "step/end",
        "turn/end",
    ]
    ended, never = (e["data"] for e in events if e["type"] == "tool/result")
    assert ended["error"] == {"name": "OSError", "code": "OSError"}
    assert never["error"]["code"] == "ABORTED_BEFORE_DISPATCH"
    assert events[-1]["data"]["reason"]["error"]["message"] == "no such thing \\udcff"


def test_an_interrupt_in_a_body_records_an_aborted_call_and_turn(
    daemon: FakeDaemon, client: Client
) -> None:
    with (  # noqa: PT012  the whole block is what raises
        pytest.raises(KeyboardInterrupt),
        open_session("s", client=client) as session,
        session.turn("x") as turn,
        turn.step() as step,
    ):
        step.request(HEADER)
        (call,) = step.answer(ask("a"))
        with step.tool(call):
            raise KeyboardInterrupt
    events = daemon.sessions["s"].events
    assert events[-3]["data"]["error"]["code"] == "ABORTED"
    assert events[-1]["data"]["reason"] == {"kind": "aborted", "reason": {"kind": "user"}}


def test_an_interrupt_while_a_checkpoint_is_awaited_runs_nothing_and_closes_the_turn(
    daemon: FakeDaemon, client: Client
) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(method: str, _params: dict[str, Any]) -> None:
        if method == "checkpoint.tool":
            daemon.fault(method, "silence")
            signal.pthread_kill(main, signal.SIGINT)

    daemon.on_call = interrupt
    ran = Ran()
    with pytest.raises(KeyboardInterrupt), open_session("s", client=client) as session:
        agent(session, ran)
    assert ran.bodies == []
    assert daemon.types("s") == [*WHOLE[:8], "turn/end"]


def test_a_call_that_the_agent_passes_over_is_answered_at_the_steps_end(
    daemon: FakeDaemon, client: Client
) -> None:
    with (
        open_session("s", client=client) as session,
        session.turn("x") as turn,
        turn.step() as step,
    ):
        step.request(HEADER)
        step.answer(ask("a"))
    assert daemon.types("s")[-4:] == ["tool/call", "tool/result", "step/end", "turn/end"]


def test_a_body_without_a_result_records_an_empty_one(daemon: FakeDaemon, client: Client) -> None:
    with (
        open_session("s", client=client) as session,
        session.turn("x") as turn,
        turn.step() as step,
    ):
        step.request(HEADER)
        (call,) = step.answer(ask("a"))
        with step.tool(call):
            pass
    result = daemon.sessions["s"].events[-3]["data"]["message"]["content"][0]
    assert result["content"] == []


def test_an_answer_without_a_request_is_refused_here(daemon: FakeDaemon, client: Client) -> None:
    with open_session("s", client=client) as session, session.turn("x") as turn:  # noqa: SIM117  read more easily nested
        with turn.step() as step, pytest.raises(MisuseError, match="without a request"):
            step.answer("x")
    assert "assistant/message" not in daemon.types("s")


def test_a_turn_inside_a_turn_is_refused_here(client: Client) -> None:
    with open_session("s", client=client) as session, session.turn("x"):  # noqa: SIM117  read more easily nested
        with pytest.raises(MisuseError, match="turn 1 is open"), session.turn("y"):
            pass


def test_a_call_that_the_model_did_not_make_is_refused_here(
    daemon: FakeDaemon, client: Client
) -> None:
    with open_session("s", client=client) as session, session.turn("x") as turn:
        with turn.step() as step:
            step.request(HEADER)
            step.answer("no calls")
            with (
                pytest.raises(MisuseError, match="did not ask"),
                step.tool(ToolCall("z", "t", "{}")),
            ):
                pass
        with (
            pytest.raises(MisuseError, match="no step is open"),
            step.tool(ToolCall("z", "t", "{}")),
        ):
            pass
    assert daemon.named("checkpoint.tool") == []


def test_a_header_is_recorded_once_and_again_when_it_changes(
    daemon: FakeDaemon, client: Client
) -> None:
    other = {"config": {"provider": "p", "model": "n"}}
    with open_session("s", client=client) as session, session.turn("x") as turn:
        for header in (HEADER, HEADER, other):
            with turn.step() as step:
                step.request(header)
                step.answer("ok")
    found = [e["data"] for e in daemon.sessions["s"].events if e["type"] == "request/header"]
    assert [(h["header"]["config"]["model"], h["reason"]) for h in found] == [
        ("m", "initial"),
        ("n", "change"),
    ]


def test_chunks_are_recorded_and_cited_by_the_answer(daemon: FakeDaemon, client: Client) -> None:
    with (
        open_session("s", client=client) as session,
        session.turn("x") as turn,
        turn.step() as step,
    ):
        with step.request(HEADER) as request:
            for number in range(100):
                request.chunk({"type": "text-delta", "index": 0, "text": str(number)})
        step.answer("all")
    (answer,) = [e for e in daemon.sessions["s"].events if e["type"] == "assistant/message"]
    assert answer["sourceEventSeqs"] == list(range(4, 104))


def test_a_nested_dispatch_is_recorded_inside_the_outer_call(
    daemon: FakeDaemon, client: Client
) -> None:
    with (
        open_session("s", client=client) as session,
        session.turn("x") as turn,
        turn.step() as step,
    ):
        step.request(HEADER)
        (call,) = step.answer(ask("a"))
        with step.tool(call) as tool:
            with tool.dispatch("inner", '{"k": 1}') as inner:
                inner.result("in")
            tool.result("out")
    types = daemon.types("s")
    assert types[5:9] == [
        "tool/call",
        "tool/code-dispatch-start",
        "tool/code-dispatch",
        "tool/result",
    ]
    data = daemon.sessions["s"].events[7]["data"]
    assert data["subCallId"] == "a:code:1"
    assert data["arguments"] == {"k": 1}


# -- opening and closing


def test_a_session_left_open_is_recovered_and_its_repairs_are_told(
    daemon: FakeDaemon, client: Client
) -> None:
    repairs = [{"callId": "c", "code": "TOOL_OUTCOME_UNKNOWN"}]
    daemon.sessions["s"] = FakeSession(
        {"id": "s"},
        [{"type": "turn/start", "data": {"turn": 4}}],
        durable=1,
        recovery={"committed": False, "repairs": repairs, "closers": []},
    )
    with open_session("s", client=client) as session:
        assert session.repairs == repairs
        assert session.recovery is not None
        assert session.recovery["committed"] is True
    assert len(daemon.named("session.recover")) == 1


def test_a_recovery_that_fails_gives_the_handle_back(daemon: FakeDaemon, client: Client) -> None:
    stored = [{"type": "turn/start", "data": {"turn": 1}}]
    recovery: dict[str, Any] = {"committed": False, "repairs": [], "closers": []}
    daemon.sessions["s"] = FakeSession({"id": "s"}, stored, durable=1, recovery=recovery)
    daemon.fault("session.recover", "refuse", NoSpaceError("full"))
    with pytest.raises(NoSpaceError), open_session("s", client=client):
        pass
    assert daemon.sessions["s"].writer is None


def test_a_busy_session_is_refused_at_once(daemon: FakeDaemon, client: Client) -> None:
    holder = holder_of_this_process() | {"pid": 1}
    daemon.sessions["s"] = FakeSession({"id": "s"})
    daemon.fault("session.open", "refuse", SessionBusyError("busy", holder=holder))
    with pytest.raises(SessionBusyError), open_session("s", client=client):
        pass
    assert len(daemon.named("session.open")) == 1


@pytest.mark.parametrize("method", ["session.create", "session.open", "session.recover"])
def test_a_lost_answer_while_opening_is_asked_for_again(
    daemon: FakeDaemon, client: Client, method: str
) -> None:
    if method != "session.create":
        recovery: dict[str, Any] = {"committed": False, "repairs": [], "closers": []}
        stored = [{"type": "turn/start", "data": {"turn": 1}}]
        daemon.sessions["s"] = FakeSession({"id": "s"}, stored, durable=1, recovery=recovery)
    daemon.fault(method, "lose-reply")
    with open_session("s", client=client) as session:
        session.append([{"type": "a", "data": 1}])
    assert daemon.types("s")[-1] == "a"


def test_an_absent_session_is_refused_where_none_may_be_made(
    daemon: FakeDaemon, client: Client
) -> None:
    with pytest.raises(SessionNotFoundError), open_session("s", client=client, create=False):
        pass
    assert daemon.sessions == {}


def test_a_new_session_gets_an_id_of_its_own(daemon: FakeDaemon, client: Client) -> None:
    with open_session(client=client) as one:
        pass
    with open_session(client=client) as other:
        pass
    assert one.id != other.id


def test_the_history_is_put_together_from_its_pages(daemon: FakeDaemon, client: Client) -> None:
    with open_session("s", client=client) as session:
        agent(session, Ran())
        roles = [message["role"] for message in session.messages()]
    assert roles == ["user", "assistant", "user", "assistant"]


def test_an_odd_log_is_asked_for_the_number_of_its_last_turn(
    daemon: FakeDaemon, client: Client
) -> None:
    stored: list[dict[str, Any]] = [{"type": "x", "data": None}] * 20
    stored += [{"type": "turn/start", "data": {"turn": 7}}, {"type": "turn/end", "data": {}}]
    daemon.sessions["s"] = FakeSession({"id": "s"}, stored, durable=len(stored))
    daemon.fault("session.append", "refuse", EventInvalidError("turn 2", index=0, rule="turn"))
    with open_session("s", client=client) as session, session.turn():
        pass
    assert daemon.sessions["s"].events[-2]["data"] == {"turn": 8}


def test_a_failed_close_is_raised_when_nothing_else_went_wrong(
    daemon: FakeDaemon, client: Client
) -> None:
    daemon.fault("session.close", "refuse", NoSpaceError("full"))
    with pytest.raises(DshdError, match="full"), open_session("s", client=client) as session:
        session.append([{"type": "a", "data": 1}])


# -- threads


def test_checkpoints_of_threads_are_on_the_wire_together_and_each_body_runs_once(
    daemon: FakeDaemon, client: Client
) -> None:
    bodies: list[str] = []
    with (
        open_session("s", client=client) as session,
        session.turn("x") as turn,
        turn.step() as step,
    ):
        step.request(HEADER)
        calls = step.answer(ask(*"abcdefgh"))
        daemon.fault("checkpoint.tool", "lose-reply", skip=2)

        def body(number: int) -> None:
            with step.tool(calls[number]) as tool:
                bodies.append(calls[number].id)
                tool.result(str(number))

        threads = [threading.Thread(target=body, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(bodies) == list("abcdefgh")
    types = daemon.types("s")
    assert types.count("tool/call") == types.count("tool/result") == 8
