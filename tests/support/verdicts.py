"""The judge of a recovery: told what an agent acknowledged and nothing else, it demands what must hold of the session.

The one rule: the verdicts are worked out here anew, from the stored events, and never taken from the daemon.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from support import events
from support.rpc import Connection

if TYPE_CHECKING:
    from pathlib import Path

    from support.daemon import DaemonProcess

NOT_STARTED = "TOOL_NOT_STARTED"
UNKNOWN = "TOOL_OUTCOME_UNKNOWN"


class Journal:
    """What an agent wrote down. See tests/e2e/agents/turn.py."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as lines:
            notes = [json.loads(line) for line in lines]
        self.writer: str = notes[0]["writer"]
        self.created_at: int = notes[0]["createdAt"]
        self.durable = max([0, *(note["durable"] for note in notes if "durable" in note)])
        self.keys = {note["seq"]: note["key"] for note in notes if "dispatched" in note}
        self.sent: list[events.Event] = []
        for note in notes:
            if "sent" in note:
                assert note["at"] == len(self.sent)
                self.sent += note["sent"]


def read_all(connection: Connection, session_id: str, page_events: int = 7) -> list[events.Event]:
    """Return every event of a session, page by page; short pages have their bounds tried, too."""
    found: list[events.Event] = []
    while True:
        page = connection.call("session.read", id=session_id, offset=len(found), length=page_events)
        found += page["events"]
        assert page["nextOffset"] == len(found)
        if page["end"]:
            return found


def repairs_due(stored: list[events.Event], header: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the repairs that an interrupted turn needs, in transcript order, without their texts."""
    due: dict[str, dict[str, Any]] = {}
    for event in stored:
        data = event["data"]
        if event["type"] == "assistant/message":
            for block in data["message"]["content"]:
                if block["type"] == "tool-call":
                    due[block["id"]] = {
                        "callId": block["id"],
                        "name": block["name"],
                        "arguments": block["arguments"],
                        "turn": data["turn"],
                        "step": data["step"],
                        "code": NOT_STARTED,
                        "callSeq": None,
                        "idempotencyKey": None,
                    }
        elif event["type"] == "tool/call":
            key = idempotency_key(header, event["seq"], data["callId"])
            due[data["callId"]] |= {
                "code": UNKNOWN,
                "callSeq": event["seq"],
                "idempotencyKey": key,
            }
        elif event["type"] == "tool/result":
            del due[data["message"]["source"]["callId"]]
        elif event["type"] == "turn/end":
            due.clear()
    return list(due.values())


def idempotency_key(header: dict[str, Any], call_seq: int, call_id: str) -> str:
    """Return the key of a started call, by the rule of the protocol."""
    text = json.dumps([header["id"], header["createdAt"], call_seq, call_id], separators=(",", ":"))
    return f"dshd1-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def check_stored(stored: list[events.Event], journal: Journal) -> None:
    """Demand that nothing acknowledged is missing, nothing is changed and nothing invented."""
    assert [event["seq"] for event in stored] == list(range(len(stored)))
    assert len(stored) >= journal.durable, "an acknowledged event is missing"
    assert len(stored) <= len(journal.sent), "an event was invented"
    started = {one["seq"] for one in stored if one["type"] == "tool/call"}
    assert started >= journal.keys.keys(), "a body ran whose start is not recorded"
    for event, sent in zip(stored, journal.sent, strict=False):
        assert (event["type"], event["data"]) == (sent["type"], sent["data"])


def check_history(messages: list[dict[str, Any]]) -> None:
    """Demand that a provider takes the history: each call is answered once, before anything else is said."""
    awaited: set[str] = set()
    for message in messages:
        blocks = message["content"]
        results = [block["toolCallId"] for block in blocks if block["type"] == "tool-result"]
        if results:
            assert awaited.issuperset(results)
            awaited.difference_update(results)
            continue
        assert not awaited, f"{message['id']} comes before the results of {awaited}"
        awaited = {block["id"] for block in blocks if block["type"] == "tool-call"}
    assert not awaited


def check_recovery(
    daemon: DaemonProcess, session_id: str, journal: Journal, *, takeover: bool = False
) -> list[dict[str, Any]]:
    """Recover a session whose agent was killed, demand everything that must hold, and begin the next turn.

    Returns:
        The repairs.
    """
    with Connection(daemon.socket, name="judge") as one:
        stored = read_all(one, session_id)
        check_stored(stored, journal)
        interrupted = _is_open(stored)
        view = one.call("session.stat", id=session_id)["session"]
        assert view["header"]["createdAt"] == journal.created_at
        assert (view["openTurn"] is not None) == interrupted
        due = repairs_due(stored, view["header"])
        for repair in due:
            if repair["callSeq"] in journal.keys:
                assert repair["idempotencyKey"] == journal.keys[repair["callSeq"]]
        opened = one.call("session.open", id=session_id, access="write", takeover=takeover)
        handle = {"id": session_id, "writer": opened["writer"]}
        if not interrupted:
            assert opened["recovery"] is None
            again = one.call("session.recover", **handle)
            assert (again["repairs"], again["closers"]) == ([], [])
        else:
            _check_interrupted(one, handle, opened, stored, due)
        check_history(one.call("session.messages", id=session_id)["messages"])
        one.call("session.close", **handle)
    with Connection(daemon.socket, name="the next agent") as other:
        _check_next_turn(other, session_id, len(due))
    return due


def _is_open(stored: list[events.Event]) -> bool:
    bounds = [one["type"] for one in stored if one["type"] in {"turn/start", "turn/end"}]
    return bool(bounds) and bounds[-1] == "turn/start"


def _check_interrupted(
    one: Connection,
    handle: dict[str, Any],
    opened: dict[str, Any],
    stored: list[events.Event],
    due: list[dict[str, Any]],
) -> None:
    session_id, count = handle["id"], len(stored)
    preview = opened["recovery"]
    assert preview["committed"] is False
    assert [_without_text(repair) for repair in preview["repairs"]] == due
    refused = one.refusal("session.append", **handle, events=[events.title()])
    assert refused.kind == "RECOVERY_REQUIRED"
    assert len(read_all(one, session_id)) == count, "a look has changed the log"
    committed = one.call("session.recover", **handle)
    assert committed == preview | {"committed": True}, f"{committed} is not the {preview} of before"
    whole = read_all(one, session_id)
    assert whole[:count] == stored
    assert whole[count:-1] == committed["closers"]
    assert whole[-1]["type"] == "session/end-seed"
    assert committed["nextSeq"] == len(whole)
    results = [event for event in committed["closers"] if event["type"] == "tool/result"]
    answered = [event["data"]["message"]["source"]["callId"] for event in results]
    assert answered == [repair["callId"] for repair in due]
    assert one.call("session.recover", **handle) == committed
    assert read_all(one, session_id) == whole, "a repeated recovery has added something"
    for call_id in answered:
        late = one.refusal("session.append", **handle, events=[events.tool_result(call_id)])
        assert late.kind == "EVENT_INVALID"


def _check_next_turn(other: Connection, session_id: str, repaired: int) -> None:
    before = read_all(other, session_id)
    opened = other.call("session.open", id=session_id, access="write")
    handle = {"id": session_id, "writer": opened["writer"]}
    told = other.call("session.recover", **handle)
    assert told["committed"] is True
    assert len(told["repairs"]) == repaired
    last = max([0, *(e["data"]["turn"] for e in before if e["type"] == "turn/start")])
    wrong = other.refusal("session.append", **handle, events=[events.turn_start(last + 2)])
    assert wrong.facts["index"] == 0
    begun = [
        events.turn_start(last + 1),
        events.step_start(1, last + 1),
        events.user(),
        events.request_header(),
    ]
    seq = opened["session"]["nextSeq"]
    asked = other.call("checkpoint.request", **handle, events=begun, expectedSeq=seq)
    assert asked["durableSeq"] == asked["nextSeq"] == seq + len(begun)
    whole = read_all(other, session_id)
    assert [event["seq"] for event in whole] == list(range(asked["nextSeq"]))
    assert [e["type"] for e in whole].count("session/end-seed") == (1 if before else 0)
    other.call("session.close", **handle)


def _without_text(repair: dict[str, Any]) -> dict[str, Any]:
    assert repair["message"]
    return {key: value for key, value in repair.items() if key != "message"}
