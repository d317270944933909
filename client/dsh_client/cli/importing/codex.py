"""Codex's rollout files: JSON Lines of `{timestamp, type, payload}`; the first ones had the payload alone.

The rule: `response_item` is the conversation. What tells it a second time for a screen (`event_msg`) is kept, not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.importing.items import Origin, is_item, take_item
from dsh_client.cli.importing.lines import has_members
from dsh_client.cli.importing.reader import Reader, epoch_ms
from dsh_client.cli.values import as_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_client.cli.importing.archive import Archive
    from dsh_client.cli.importing.report import Report

    Json = dict[str, Any]

_MODEL = "unknown"


class Codex(Reader):
    """Takes Codex's records."""

    provider = "openai"

    def __init__(self, begin: Callable[[], Archive], report: Report) -> None:
        """Know no model yet."""
        super().__init__(begin, report)
        self._model = _MODEL
        self._provider = self.provider
        self._last: tuple[Any, Json] | None = None

    @staticmethod
    def plausible(value: Any) -> bool:
        """Whether a value looks like a record."""
        return has_members(value, "type") and (has_members(value, "payload") or is_item(value))

    def record(self, line: int, record: Json) -> None:
        """Take one record."""
        kind, payload = record.get("type"), as_object(record.get("payload"))
        time = epoch_ms(record.get("timestamp"))
        if not payload and is_item(record):
            kind, payload = "response_item", record
        if kind == "response_item" and payload:
            self._item(line, record, payload, time)
            return
        if kind == "session_meta":
            self._provider = _text(payload.get("model_provider")) or self._provider
            instructions = as_object(payload.get("base_instructions")).get("text")
            system = _text(payload.get("instructions")) or _text(instructions)
            self.archive.course.system = system or self.archive.course.system
        elif kind == "turn_context":
            self._model = _text(payload.get("model")) or self._model
        named = f"record {kind!r}" if isinstance(kind, str) else "a record without type"
        inner = payload.get("type")
        self.unknown(line, f"{named}, {inner!r}" if isinstance(inner, str) else named, record)

    def _item(self, line: int, record: Json, payload: Json, time: int | None) -> None:
        if "timestamp" in record and self._last == (record["timestamp"], payload):
            self.report.damage("a record twice (left out the second time)", line)
            return
        self._last = (record.get("timestamp"), payload)
        taken = take_item(payload, Origin(line, time, self._provider, self._model))
        if taken is None:
            self.unknown(line, f"item {payload.get('type')!r}", record)
            return
        for kind in taken.unread:
            self.report.unknown(kind, line)
        if taken.item is not None:
            self.archive.course.take(taken.item)
        left = {name: value for name, value in payload.items() if name not in taken.carried}
        rest = {**record, "payload": left} if payload is not record else left
        self.beside(line, record, rest, time)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
