"""Lines that no client of ours sends: each has its one right answer, and nobody else notices it."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import events
from support.rpc import Connection
from wire.shapes import OPENING, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from support.daemon import DaemonProcess
    from wire.conftest import Bystander

    FreshId = Callable[[], str]

LIST = b'{"jsonrpc":"2.0","id":7,"method":"session.list","params":{"limit":1}}'


@pytest.fixture(autouse=True)
def nobody_else_notices(bystander: Bystander) -> Generator[None, None, None]:
    yield
    bystander.check()


def answer_to(connection: Connection, line: bytes) -> Any:
    """Send a line and return its one answer; the connection must go on."""
    connection.send_line(line)
    answer = connection.read_message()
    connection.send_line(LIST)
    assert connection.read_message()["id"] == 7
    return answer


def kind_of(answer: Any) -> str:
    assert set(answer) == {"jsonrpc", "id", "error"}
    assert answer["jsonrpc"] == "2.0"
    return str(answer["error"]["data"]["kind"])


def call_with(params: str, method: str = "session.list") -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (
        method.encode(),
        params.encode("utf-8", "surrogatepass"),
    )


@pytest.mark.parametrize("line", [b"", b"\r", b"  \t ", b" \r"])
def test_blank_lines_are_passed_over(connection: Connection, line: bytes) -> None:
    for _ in range(900):
        connection.send_line(line)
    connection.send_line(LIST)
    assert connection.read_message()["id"] == 7


def test_more_than_a_thousand_blank_lines_in_a_row_end_the_connection(
    connection: Connection,
) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.socket.sendall(b"\n" * 1001)
    assert connection.ends()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"nonsense",
        b'{"jsonrpc":"2.0","id":1,"method":"session.list"',
        b'{"jsonrpc":"2.0","id":1,"method":"session.list"} trailing',
        b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
        b'{"jsonrpc":"2.0","id":1,"method":"\xc0\xaf"}',
        b'{"jsonrpc":"2.0","id":1,"method":"\xed\xa0\x80"}',
        b"\xef\xbb\xbf" + LIST,
        LIST.decode().encode("utf-16"),
        LIST.decode().encode("utf-16-le"),
        LIST.decode().encode("utf-32-be"),
        call_with('{"limit":NaN}'),
        call_with('{"limit":Infinity}'),
        call_with('{"limit":-Infinity}'),
        call_with('{"limit":01}'),
        call_with('{"limit":1.}'),
        call_with('{"limit":+1}'),
        call_with('{"limit":.5}'),
        call_with('{"limit":0x10}'),
        call_with("{'limit':1}"),
        call_with('{"limit":1,}'),
        call_with('{"cwd":"\t"}'),
        call_with('{"cwd":"\\x41"}'),
        call_with('{"cwd":"\\ud83d\\u12"}'),
        b"[" * 100_000,
        b'"unfinished',
        b"\x00",
    ],
)
def test_what_is_not_json_is_a_parse_error(connection: Connection, line: bytes) -> None:
    answer = answer_to(connection, line)
    if answer["error"]["code"] == -32602:  # nested too deep is found before the end is missed
        assert kind_of(answer) == "INVALID_PARAMS"
        assert line.startswith(b"[[")
        return
    assert kind_of(answer) == "PARSE_ERROR"
    assert answer["error"]["code"] == -32700
    assert answer["id"] is None


@pytest.mark.parametrize(
    ("params", "rule"),
    [
        ('{"limit":1e400}', "number-range"),
        ('{"limit":-1e400}', "number-range"),
        ('{"limit":9007199254740992}', "number-range"),
        ('{"limit":-9007199254740992}', "number-range"),
        ('{"limit":' + "9" * 5000 + "}", "number-range"),
        ('{"limit":-0}', "negative-zero"),
        ('{"limit":-0.0}', "negative-zero"),
        ('{"limit":-0e5}', "negative-zero"),
        ('{"cwd":"\\ud800"}', "lone-surrogate"),
        ('{"cwd":"\\udc00\\ud800"}', "lone-surrogate"),
        ('{"limit":1,"limit":2}', "duplicate-key"),
        ('{"limit":1,"l\\u0069mit":2}', "duplicate-key"),
        ('{"cwd":' + "[" * 63 + "]" * 63 + "}", "too-deep"),
        ('{"cwd":' + '{"a":' * 1000 + "1" + "}" * 1000 + "}", "too-deep"),
    ],
)
def test_what_json_allows_and_a_log_cannot_hold_is_refused_by_its_rule(
    connection: Connection, params: str, rule: str
) -> None:
    answer = answer_to(connection, call_with(params))
    assert kind_of(answer) == "INVALID_PARAMS"
    assert answer["id"] == 1
    assert answer["error"]["data"]["rule"] == rule
    assert answer["error"]["data"]["path"].startswith("params.")


def test_numbers_and_strings_at_the_edge_are_taken(connection: Connection) -> None:
    for params in (
        '{"limit":1.0}',
        '{"limit":1e2}',
        '{"limit":9007199254740991}',
        '{"cwd":"\\ud83d\\ude00"}',
        '{"cwd":"/\u2028\u0085\x7f"}',
    ):
        answer = answer_to(connection, call_with(params))
        assert "result" in answer, params


@pytest.mark.parametrize("depth", [65, 1000, 100_000])
def test_depth_is_bounded_at_once(connection: Connection, depth: int) -> None:
    line = call_with('{"cwd":' + "[" * depth + "]" * depth + "}")
    began = time.perf_counter()
    assert kind_of(answer_to(connection, line)) == "INVALID_PARAMS"
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "params",
    [
        '{"states":[' + "[]," * 350_000 + "0]}",
        '{"cwd":{' + ",".join(f'"k{n}":0' for n in range(200_000)) + "}}",
        '{"states":[' + "0," * 100_000 + "0]}",
    ],
)
def test_too_many_values_are_refused_by_their_limit(connection: Connection, params: str) -> None:
    answer = answer_to(connection, call_with(params))
    assert kind_of(answer) == "FRAME_TOO_LARGE"
    data = answer["error"]["data"]
    assert (data["limit"], data["maximum"]) == ("maxValues", 100_000)


def test_a_line_without_an_end_is_refused_at_the_cap_and_the_connection_closed(
    daemon: DaemonProcess,
) -> None:
    before = resident_bytes(daemon)
    with Connection(daemon.socket) as connection:
        piece = b"x" * (1 << 20)
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(64):
                connection.socket.sendall(piece)
        answer = connection.read_message()
        assert kind_of(answer) == "FRAME_TOO_LARGE"
        assert answer["error"]["data"]["limit"] == "maxLineBytes"
        assert answer["id"] is None
        assert connection.ends()
    assert resident_bytes(daemon) - before < 64 << 20


def resident_bytes(daemon: DaemonProcess) -> int:
    return int(Path(f"/proc/{daemon.pid}/statm").read_text("ascii").split()[1]) * 4096


def test_a_half_closed_connection_gets_its_answers(
    daemon: DaemonProcess, fresh_id: FreshId
) -> None:
    with Connection(daemon.socket) as connection:
        created = connection.call("session.create", id=fresh_id())
        name = created["session"]["id"]
        asked = connection.send(
            "checkpoint.request", id=name, writer=created["writer"], events=OPENING
        )
        connection.half_close()
        assert connection.result(asked) == {"nextSeq": 4, "durableSeq": 4}
        assert connection.ends()


def test_a_last_line_without_its_newline_is_no_call(daemon: DaemonProcess) -> None:
    with Connection(daemon.socket) as connection:
        connection.socket.sendall(LIST)
        connection.half_close()
        assert connection.ends()


def test_a_call_whose_reply_is_lost_is_recognised_when_it_is_repeated(
    daemon: DaemonProcess, connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    for attempt in range(5):
        with Connection(daemon.socket) as other:
            other.send(
                "checkpoint.request",
                id=recorder.id,
                writer=recorder.writer,
                events=OPENING if attempt == 0 else [events.chunk(str(attempt))],
                expectedSeq=0 if attempt == 0 else 3 + attempt,
            )
        sent = OPENING if attempt == 0 else [events.chunk(str(attempt))]
        first = 0 if attempt == 0 else 3 + attempt
        found = recorder.call("checkpoint.request", events=sent, expectedSeq=first)
        assert found["durableSeq"] >= first + len(sent)
    assert recorder.length() == 8


def test_ten_thousand_calls_at_once_are_all_answered(daemon: DaemonProcess) -> None:
    with Connection(daemon.socket, limit_s=60) as connection:
        asked = {"subscriptionId": "none"}
        calls = [connection.request("session.unsubscribe", **asked) for _ in range(10_000)]
        lines = b"".join(json.dumps(call).encode() + b"\n" for call in calls)
        connection.socket.settimeout(0)
        sent, received = 0, b""
        deadline = time.monotonic() + 50
        answered = 0
        while answered < len(calls):
            assert time.monotonic() < deadline
            if sent < len(lines):
                with suppress(BlockingIOError):
                    sent += connection.socket.send(lines[sent : sent + 65536])
            with suppress(BlockingIOError):
                received += connection.socket.recv(1 << 20)
            *whole, received = received.split(b"\n")
            answered += len(whole)


def test_calls_on_one_session_keep_their_order_however_many_come_at_once(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    recorder.append(*OPENING)
    about = {"id": recorder.id, "writer": recorder.writer}
    calls = [
        connection.request(
            "session.append", events=[events.chunk(str(n))], expectedSeq=4 + n, **about
        )
        for n in range(600)
    ]
    ids = connection.send_together(*calls)
    found = [connection.result(call_id)["nextSeq"] for call_id in ids]
    assert found == list(range(5, 605))
    stored = connection.call("session.read", id=recorder.id, offset=4)["events"]
    assert [event["data"]["chunk"]["text"] for event in stored] == [str(n) for n in range(600)]


def test_connections_beyond_the_limit_are_turned_away_and_the_others_served(
    daemon: DaemonProcess, bystander: Bystander
) -> None:
    with Connection(daemon.socket) as first:
        limit = first.call("daemon.status")["limits"]["maxConnections"]
        crowd = [Connection(daemon.socket) for _ in range(limit + 20)]
        try:
            answer = crowd[-1].read_message()
            assert kind_of(answer) == "OVERLOADED"
            assert answer["error"]["data"]["limit"] == "maxConnections"
            assert answer["error"]["data"]["retryable"] is True
            assert crowd[-1].ends()
            bystander.check()
            assert first.call("session.list", limit=1)
        finally:
            for connection in crowd:
                connection.close()
    for _ in range(10_000):
        with Connection(daemon.socket) as again:
            again.send_line(LIST)
            if "result" in again.read_message():
                return
    raise AssertionError("nobody is served any more")


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_other_kinds_of_sockets_are_refused_by_the_kernel(
    daemon: DaemonProcess, kind: socket.SocketKind
) -> None:
    with socket.socket(socket.AF_UNIX, kind) as other, pytest.raises(OSError, match="rong type"):
        other.connect(str(daemon.socket))


def test_thousands_of_short_connections_leave_nothing_behind(daemon: DaemonProcess) -> None:
    def open_files() -> int:
        return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))

    with daemon.connect() as connection:
        connection.call("session.unsubscribe", subscriptionId="none")
        before = open_files()
        for _ in range(1000):
            with socket.socket(socket.AF_UNIX) as short:
                short.connect(str(daemon.socket))  # waits where the kernel's queue is full
        for _ in range(10_000):
            connection.call("session.unsubscribe", subscriptionId="none")
            if open_files() <= before:
                return
    raise AssertionError(f"{open_files()} open files where {before} were")
