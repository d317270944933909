"""An agent of the soak: plays turns for ever, and notes what the daemon acknowledged, by the standard library alone."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import events, turns
from support.rpc import CallRefusedError, Connection


def main() -> None:
    """Open or make the session, recover it where it was cut off, and go on until killed."""
    path, journal, name = sys.argv[1:4]
    with Connection(path, name=name, limit_s=60) as one, Path(journal).open("a", 1) as notes:
        handle, turn = _take(one, name)
        choose = random.Random(os.getpid())  # noqa: S311  # variety, not secrecy
        while True:
            turn += 1
            _play(one, handle, turn, notes, choose)
            if choose.random() < 0.05:
                one.call("session.fork", id=name)


def _take(one: Connection, name: str) -> tuple[dict[str, Any], int]:
    try:
        opened = one.call("session.create", id=name)
        return {"id": name, "writer": opened["writer"]}, 0
    except CallRefusedError as refused:
        if refused.kind != "SESSION_EXISTS":
            raise
    handle = {"id": name, "writer": _open(one, name)}
    one.call("session.recover", **handle)
    return handle, one.call("session.stat", id=name)["session"]["turns"]


def _open(one: Connection, name: str) -> str:
    """Take the handle as soon as the killed agent's has ended."""
    while True:
        try:
            return str(one.call("session.open", id=name, access="write")["writer"])
        except CallRefusedError as refused:
            if refused.kind != "SESSION_BUSY":
                raise


def _play(
    one: Connection, handle: dict[str, Any], turn: int, notes: Any, choose: random.Random
) -> None:
    asked = one.call("checkpoint.request", **handle, events=turns.opening(turn))
    notes.write(json.dumps({"durableSeq": asked["durableSeq"]}) + "\n")
    for number in range(choose.randrange(20)):
        text = f"{turn}.{number}.{'x' * choose.randrange(2000)}"
        one.call("session.append", **handle, events=[events.chunk(text, turn=turn)])
    text = f"last of {turn}"
    sent = one.call("session.append", **handle, events=[events.chunk(text, turn=turn)])
    answer = events.assistant("a", turn=turn)
    one.call("session.append", **handle, events=[answer])
    told = one.call("checkpoint.tool", **handle, **turns.tool("a"))
    note = {"durableSeq": told["durableSeq"], "seq": sent["firstSeq"], "text": text}
    notes.write(json.dumps(note) + "\n")
    one.call("session.append", **handle, events=[events.tool_result("a", turn=turn)])
    ended = turns.end_turn(one, handle, turn)
    notes.write(json.dumps({"durableSeq": ended["durableSeq"]}) + "\n")


if __name__ == "__main__":
    main()
