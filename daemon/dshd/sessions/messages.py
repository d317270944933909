"""The history that a provider is given: derived from the log, never stored.

A message is the data of a surface event, at the place where the surface has it. The one rule: nothing is merged,
dropped or repaired here, and nothing added but the answers that the caller brings for calls that the log left without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsh_protocol.events import SURFACE_TYPES
from dshd.sessions.surface import Surface
from dshd.sessions.values import is_object, members

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dsh_protocol.events import Event


@dataclass(frozen=True, slots=True)
class History:
    """Messages in order, and what the last request was made with (None where none was recorded)."""

    messages: list[dict[str, Any]]
    request_header: dict[str, Any] | None
    request_context: dict[str, Any] | None


class Transcript:
    """A history under construction: events in, `history` at any time."""

    def __init__(self) -> None:
        """Begin before the first event."""
        self._surface = Surface()
        self._messages: dict[int, dict[str, Any]] = {}
        self._results: set[int] = set()
        self._request_header: dict[str, Any] | None = None
        self._request_context: dict[str, Any] | None = None

    def add(self, event: Event) -> None:
        """Take the next event in; its seq is not checked.

        Raises:
            SurfaceDefectError: It does not fit the surface. Nothing changed.
        """
        kind: str = event["type"]
        data: Any = event["data"]
        if kind in SURFACE_TYPES:
            self._surface.apply(event)
            message = _message(kind, data)
            if message is not None:
                self._messages[event["seq"]] = message
                if kind == "tool/result":
                    self._results.add(event["seq"])
        elif kind == "request/header":
            header = members(data).get("header")
            if is_object(header):
                self._request_header = canonical_header(header)
        elif kind == "request/context" and is_object(data):
            self._request_context = data

    def history(self, answers: Mapping[int, Sequence[dict[str, Any]]] | None = None) -> History:
        """Return the history so far: a fresh list of shared messages.

        Args:
            answers: Messages to put behind the results that follow a message that asked, by that message's seq. Those
                of a message that the surface has not are left out.
        """
        return History(
            messages=list(self._with(answers or {})),
            request_header=self._request_header,
            request_context=self._request_context,
        )

    def _with(self, answers: Mapping[int, Sequence[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        waiting: Sequence[dict[str, Any]] = ()
        for seq in self._surface.nodes:
            message = self._messages.get(seq)
            if message is None:
                continue
            if waiting and seq not in self._results:
                yield from waiting
                waiting = ()
            yield message
            waiting = answers.get(seq, waiting)
        yield from waiting


def derive(events: Iterable[Event]) -> History:
    """Return the history of a log.

    An interrupted turn is closed only where its closers are among `events`.

    Raises:
        SurfaceDefectError: An event does not fit the surface.
    """
    transcript = Transcript()
    for event in events:
        transcript.add(event)
    return transcript.history()


def canonical_header(header: dict[str, Any]) -> dict[str, Any]:
    """Return a request header without what is as good as absent: empty system, tools and adapter defaults."""
    optional = ("system", "tools", "adapterDefaults")
    return {key: value for key, value in header.items() if key not in optional or value}


def _message(kind: str, data: Any) -> dict[str, Any] | None:
    """Return the message of a surface event; None for an answer without content, which only carries its usage."""
    message = data if kind == "user/message" else members(data).get("message")
    if not is_object(message):
        return None
    if kind == "assistant/message" and message.get("content") == []:
        return None
    return message
