from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from fuzz.run import FuzzFailedError, Talk, fuzz
from support.daemon import open_daemon

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = float(os.environ.get("DSHD_FUZZ_SECONDS", "15"))
DEFECT = {"code": -32603, "message": "internal error", "data": {"kind": "INTERNAL"}}
DOCUMENT: dict[str, Any] = {
    "components": {"schemas": {}},
    "methods": [{"name": "daemon.status", "params": []}],
}


def test_no_traffic_ends_the_daemon_or_meets_a_defect_of_its_own(tmp_path: Path) -> None:
    seed = secrets.randbelow(1 << 32)
    with open_daemon(tmp_path) as daemon:
        report = fuzz(daemon, seed, cases=1_000_000, seconds=SECONDS)
    assert report.cases > 500
    assert report.answers > report.cases / 3


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("a defect", "INTERNAL"),
        ("twice", "answered more than once"),
        ("the last alone", "never answered"),
        ("half", "no JSON came back"),
    ],
)
def test_a_daemon_that_does_what_it_must_not_is_found_out(
    tmp_path: Path, fault: str, found: str
) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=_serve, args=(listener, fault), daemon=True).start()
        with pytest.raises(FuzzFailedError, match=found):
            _talk_often(path)


def _talk_often(path: Path) -> None:
    for seed in range(9):
        with Talk(path, DOCUMENT, seed) as one:
            one.run()


def _serve(listener: socket.socket, fault: str) -> None:
    """Answer the calls of one connection after the other, with a fault; anything else is passed over."""
    with suppress(OSError):
        while True:
            one, _ = listener.accept()
            with suppress(BrokenPipeError, ConnectionResetError), one, one.makefile("rb") as lines:
                for line in lines:
                    one.sendall(b"".join(_answers(line, fault)))


def _answers(line: bytes, fault: str) -> list[bytes]:
    try:
        call_id = json.loads(line)["id"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return []
    good: dict[str, Any] = {"jsonrpc": "2.0", "id": call_id, "result": {}}
    defect: dict[str, Any] = {"jsonrpc": "2.0", "id": call_id, "error": DEFECT}
    made = {
        "a defect": [defect],
        "twice": [good, good],
        "the last alone": [good] if call_id == "last" else [],
    }
    return [json.dumps(one).encode() + b"\n" for one in made[fault]] if fault in made else [b"{\n"]
