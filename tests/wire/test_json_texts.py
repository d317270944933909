"""Every list of `json_texts` over the wire: what must be refused is, and what is kept comes out everywhere alike."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from support.daemon import DaemonProcess, open_daemon
from support.rpc import Connection
from wire.json_texts import KEPT, OURS, REFUSED
from wire.shapes import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    FreshId = Callable[[], str]


def answers(connection: Connection, line: bytes) -> list[Any]:
    """What comes back for a line (two, where a line end is in the text) before the next call's own answer."""
    connection.send_line(line)
    connection.send_line(
        b'{"jsonrpc":"2.0","id":"after","method":"session.list","params":{"limit":1}}'
    )
    found: list[Any] = []
    while not found or found[-1].get("id") != "after":
        found.append(connection.read_message())
    assert "result" in found.pop()
    return found


def append_of(recorder: Recorder, data: bytes) -> bytes:
    return (
        b'{"jsonrpc":"2.0","id":1,"method":"session.append","params":{"id":"%b","writer":"%b",'
        b'"events":[{"type":"feedback/record","data":%b}]}}'
    ) % (recorder.id.encode(), recorder.writer.encode(), data)


def test_what_is_no_json_is_refused_as_a_line_and_as_the_data_of_an_event(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    taken: list[bytes] = []
    for text in REFUSED:
        for line in (text, append_of(recorder, text)):
            found = answers(connection, line)
            if not found or any("error" not in answer for answer in found):
                taken.append(line[:200])
    assert taken == []
    assert recorder.length() == 0
    assert len(REFUSED) > 200


def test_what_programs_read_differently_is_refused_by_its_rule(
    connection: Connection, fresh_id: FreshId
) -> None:
    recorder = Recorder(connection, fresh_id())
    for text, rule in OURS:
        (answer,) = answers(connection, append_of(recorder, text))
        assert answer["error"]["data"]["kind"] == "EVENT_INVALID", text[:80]
        assert answer["error"]["data"]["rule"] == rule, text[:80]
    assert recorder.length() == 0


def test_what_is_taken_comes_byte_for_byte_out_of_the_log_a_read_and_an_export(
    tmp_path: Path,
) -> None:
    with (
        open_daemon(tmp_path, flags=("--compression", "none")) as daemon,
        Connection(daemon.socket) as connection,
    ):
        recorder = Recorder(connection, "texts")
        for text, kept in KEPT:
            for data in (text, kept):
                (answer,) = answers(connection, append_of(recorder, data))
                assert "result" in answer, (text, answer)
        recorder.call("session.flush")
        wanted = [kept for _, kept in KEPT for _ in range(2)]
        (log,) = daemon.root.rglob("session.jsonl")
        assert [data_of(row) for row in log.read_bytes().split(b"\n")[1:-1]] == wanted
        assert read_back(connection) == wanted
        assert exported(daemon, tmp_path / "out.jsonl") == wanted


def data_of(row: bytes) -> bytes:
    return row.partition(b',"data":')[2].removesuffix(b"}")


def read_back(connection: Connection) -> list[bytes]:
    """The data of each event in the bytes of the replies, one event a reply."""
    found: list[bytes] = []
    for seq in range(2 * len(KEPT)):
        params = {"id": "texts", "offset": seq, "length": 1}
        call = {"jsonrpc": "2.0", "id": 1, "method": "session.read", "params": params}
        connection.send_line(json.dumps(call).encode())
        found.append(data_of(connection.read_line().partition(b'}],"nextOffset"')[0] + b"}"))
    return found


def exported(daemon: DaemonProcess, target: Path) -> list[bytes]:
    words = ("export", "texts", "-f", "jsonl", "--no-redact", "--to", str(target))
    command = [sys.executable, "-m", "dsh_client.cli.main", "--socket", str(daemon.socket), *words]
    subprocess.run(command, check=True, capture_output=True, env=daemon.env, timeout=60)
    return [data_of(row) for row in target.read_bytes().split(b"\n")[1:-1]]
