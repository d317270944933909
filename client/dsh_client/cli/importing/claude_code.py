"""Claude Code's session files: JSON Lines, a record each; a message may come in several.

The rule: only `user` and `assistant` records are read as conversation; sub-agents' and all others are kept as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.importing.course import Answered, Asked, Returned
from dsh_client.cli.importing.lines import has_members
from dsh_client.cli.importing.reader import (
    Reader,
    arguments_of,
    count_of,
    epoch_ms,
    text_block,
    text_of,
)
from dsh_client.cli.values import as_list, as_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_client.cli.importing.archive import Archive
    from dsh_client.cli.importing.report import Report

    Json = dict[str, Any]

_USAGE = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadTokens": "cache_read_input_tokens",
    "cacheWriteTokens": "cache_creation_input_tokens",
}


class ClaudeCode(Reader):
    """Takes Claude Code's records."""

    provider = "anthropic"

    def __init__(self, begin: Callable[[], Archive], report: Report) -> None:
        """Know no record yet."""
        super().__init__(begin, report)
        self._seen: dict[str, int] = {}

    @staticmethod
    def plausible(value: Any) -> bool:
        """Whether a value looks like a record."""
        return has_members(value, "uuid", "sessionId", "leafUuid") and has_members(value, "type")

    def record(self, line: int, record: Json) -> None:
        """Take one record."""
        kind = record.get("type")
        if self._known(line, record):
            return
        message = as_object(record.get("message"))
        if kind not in {"user", "assistant"} or not message:
            self.unknown(
                line,
                f"record {kind!r}" if isinstance(kind, str) else "a record without type",
                record,
            )
        elif record.get("isSidechain") is True:
            self.unknown(line, "a sub-agent's record", record)
        elif kind == "user":
            self._user(line, record, message)
        else:
            self._assistant(line, record, message)

    def _known(self, line: int, record: Json) -> bool:
        """Whether a record was there before, word for word; another one of the same id is kept apart."""
        name = record.get("uuid")
        if not isinstance(name, str):
            return False
        mark = hash(text_of(record))
        if name not in self._seen:
            self._seen[name] = mark
            return False
        if self._seen[name] == mark:
            self.report.damage("a record twice (left out the second time)", line)
        else:
            self.report.damage("a record's uuid twice, with other content", line)
            self.archive.keep(line, "uuid twice", record)
        return True

    def _user(self, line: int, record: Json, message: Json) -> None:
        time = epoch_ms(record.get("timestamp"))
        said: list[Json] = []
        left: list[Any] = []
        for value in _content(message):
            block = as_object(value)
            if block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str):
                result, unread = self._blocks(line, _content(block))
                left += unread + _more(block, "tool_use_id", "content", "is_error")
                failed = block.get("is_error") is True
                name = str(block["tool_use_id"])
                self.archive.course.take(Returned(line, time, name, result, failed))
            else:
                made, unread = self._blocks(line, [value])
                said += made
                left += unread
        if said:
            meta = record.get("isMeta") is True or record.get("isCompactSummary") is True
            source = {"kind": "plugin", "plugin": "claude-code"} if meta else {"kind": "user"}
            self.archive.course.take(Asked(line, time, said, source))
        self._rest(line, record, message, left)

    def _assistant(self, line: int, record: Json, message: Json) -> None:
        blocks: list[Json] = []
        left: list[Any] = []
        for value in _content(message):
            block = as_object(value)
            kind = block.get("type")
            if kind == "tool_use" and isinstance(block.get("id"), str) and block["id"]:
                blocks.append(
                    {
                        "type": "tool-call",
                        "id": block["id"],
                        "name": str(block.get("name") or "unnamed"),
                        "arguments": arguments_of(block.get("input")),
                    }
                )
                left += _more(block, "id", "name", "input")
            elif kind == "thinking" and isinstance(block.get("thinking"), str):
                blocks.append({"type": "reasoning", "text": block["thinking"]})
                left += _more(block, "thinking")
            else:
                made, unread = self._blocks(line, [value])
                blocks += made
                left += unread
        key = message.get("id") or record.get("uuid") or f"line {line}"
        answered = Answered(
            line,
            epoch_ms(record.get("timestamp")),
            blocks,
            str(key),
            self.provider,
            str(message.get("model") or "unknown"),
            _usage(as_object(message.get("usage"))),
        )
        self.archive.course.take(answered)
        self._rest(line, record, message, left)

    def _blocks(self, line: int, content: list[Any]) -> tuple[list[Json], list[Any]]:
        """Return content as blocks of text, and what of it is none."""
        blocks: list[Json] = []
        left: list[Any] = []
        for value in content:
            block = as_object(value)
            if isinstance(value, str):
                blocks.append(text_block(value))
            elif block.get("type") == "text" and isinstance(block.get("text"), str):
                blocks.append(text_block(block["text"]))
                left += _more(block, "text")
            else:
                kind = block.get("type") if isinstance(block.get("type"), str) else "without type"
                self.report.unknown(f"content {kind!r}", line)
                blocks.append(text_block(f"[{kind}: kept in the records of line {line}]"))
                left.append(value)
        return blocks, left

    def _rest(self, line: int, record: Json, message: Json, left: list[Any]) -> None:
        rest = {name: value for name, value in record.items() if name != "message"}
        rest["message"] = {name: value for name, value in message.items() if name != "content"}
        if left:
            rest["content"] = left
        self.beside(line, record, rest, epoch_ms(record.get("timestamp")))


def _more(block: Json, *carried: str) -> list[Json]:
    """Return what a block has beside its type and what was carried over; nothing where that is all."""
    more = {name: value for name, value in block.items() if name not in {"type", *carried}}
    return [{"type": block.get("type"), **more}] if more else []


def _content(holder: Json) -> list[Any]:
    content = holder.get("content")
    if content is None or content == "":
        return []
    return as_list(content) if isinstance(content, list) else [content]


def _usage(usage: Json) -> Json | None:
    found = {ours: count_of(usage.get(theirs)) for ours, theirs in _USAGE.items()}
    return {name: value for name, value in found.items() if value is not None} or None
