"""The keys of the wire's objects, as the page that fixes them has them, and the events that the tests append."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support import events

if TYPE_CHECKING:
    from support.rpc import Connection

Event = dict[str, Any]

_ATTEMPTS = 10_000


def keys(text: str) -> set[str]:
    return set(text.split())


SESSION = keys(
    "id header state nextSeq durableSeq sizeBytes revision createdAt updatedAt title turns openTurn"
    " openStep pendingCalls writer problem"
)
WRITER = keys("pid client since connected")
RECOVERY = keys("committed repairs closers nextSeq")
REPAIR = keys("callId name arguments turn step code callSeq idempotencyKey message")
PROBLEM = keys("kind message path offset")
SERVER = keys("name version pid instanceId")
LIMITS = keys(
    "maxLineBytes maxValues maxDepth maxEventBytes maxBatchEvents maxPendingBytes maxConnections maxOpenSessions"
    " maxCallsInFlight maxBatchCalls maxSubscriptions maxUnsentBytes unsentSeconds helloSeconds frameSeconds"
)
POSITION = keys("nextSeq durableSeq")

OPENING: list[Event] = [
    events.turn_start(),
    events.step_start(),
    events.user(),
    events.request_header(),
]
"""A turn with a step in it, ready for the model."""


class Recorder:
    """One session with its writer, so that a test says only what it is about."""

    def __init__(self, connection: Connection, session_id: str, **params: Any) -> None:
        created = connection.call("session.create", id=session_id, **params)
        self.id = session_id
        self.writer: str = created["writer"]
        self.connection = connection

    def call(self, method: str, /, **params: Any) -> Any:
        return self.connection.call(method, id=self.id, writer=self.writer, **params)

    def refusal(self, method: str, /, **params: Any) -> Any:
        return self.connection.refusal(method, id=self.id, writer=self.writer, **params)

    def append(self, *appended: Event, **params: Any) -> Any:
        return self.call("session.append", events=list(appended), **params)

    def ask(self, *call_ids: str) -> Any:
        """Record a step up to a model's answer that asks for calls; five events."""
        self.call("checkpoint.request", events=OPENING)
        return self.append(events.assistant(*call_ids))

    def start(self, call_id: str, **params: Any) -> Any:
        """Take the tool checkpoint for a call of `ask`."""
        arguments = f'{{"for":"{call_id}"}}'
        asked = {"callId": call_id, "name": "t", "arguments": arguments}
        return self.call("checkpoint.tool", **{**asked, **params})

    def length(self) -> int:
        """How many events stand there."""
        return int(self.connection.call("session.read", id=self.id)["nextOffset"])


def until_accepted(connection: Connection, method: str, /, **params: Any) -> Any:
    """Make a call until it is no longer refused because of a handle that is just ending."""
    answer: Event = {}
    for _ in range(_ATTEMPTS):
        answer = connection.answer(connection.send(method, **params))
        if "result" in answer:
            return answer["result"]
        assert answer["error"]["data"]["kind"] in {"SESSION_BUSY", "SESSION_EXISTS"}
    raise AssertionError(f"{method} is still refused: {answer}")
