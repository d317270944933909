"""Events without likely secrets, also where a secret was streamed in pieces over many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.values import as_object

if TYPE_CHECKING:
    from dsh_client.cli.redaction import Pieces, Redactor

_MEMBERS = {
    "text-delta": "text",
    "reasoning-delta": "text",
    "tool-call-delta": "argumentsDelta",
}


class EventCleaner:
    """Cleans the events of one session, page after page.

    Args:
        redactor: What hides and counts; None lets everything through.
    """

    def __init__(self, redactor: Redactor | None) -> None:
        """Begin with no text open."""
        self._redactor = redactor
        self._streams: dict[str, Pieces] = {}

    def events(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the events as they may be shown."""
        if self._redactor is None:
            return events
        streamed = self._streamed(events)
        return [
            streamed[place] if place in streamed else self._redactor.value(event)
            for place, event in enumerate(events)
        ]

    def _streamed(self, events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Return the cleaned pieces of streamed text by their place among the events."""
        places: dict[str, list[tuple[int, str, str]]] = {}
        for place, event in enumerate(events):
            kind = event.get("type")
            if kind == "assistant/chunk":
                data = as_object(event.get("data"))
                chunk = as_object(data.get("chunk"))
                member = _MEMBERS.get(str(chunk.get("type")), "")
                if isinstance(chunk.get(member), str):
                    key = str((data.get("turn"), data.get("step"), chunk.get("index"), member))
                    places.setdefault(key, []).append((place, member, chunk[member]))
        cleaned: dict[int, dict[str, Any]] = {}
        for key, run in places.items():
            for (place, member, _), piece in zip(
                run, self._pieces(key).take([text for _, _, text in run]), strict=True
            ):
                event = events[place]
                chunk = {**event["data"]["chunk"], member: piece}
                cleaned[place] = {**event, "data": {**event["data"], "chunk": chunk}}
        return cleaned

    def _pieces(self, key: str) -> Pieces:
        if self._redactor is None:
            raise RuntimeError("nothing is cleaned without a redactor")
        if key not in self._streams:
            from dsh_client.cli.redaction import Pieces  # only where there is a redactor

            kept = list(self._streams.items())[-7:]
            self._streams = {**dict(kept), key: Pieces(self._redactor)}
        return self._streams[key]
