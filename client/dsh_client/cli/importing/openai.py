"""OpenAI's requests and answers in files: chat messages or Responses items, in one document or one a line.

The rule: an object with its own list of messages is a conversation of its own; what stands alone goes on with the one
before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh_client.cli.importing.course import Answered, Asked, Returned
from dsh_client.cli.importing.items import Origin, blocks_of, is_item, take_item, usage_of
from dsh_client.cli.importing.lines import has_members
from dsh_client.cli.importing.reader import Reader, arguments_of, epoch_ms, text_of
from dsh_client.cli.values import as_list, as_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh_client.cli.importing.archive import Archive
    from dsh_client.cli.importing.report import Report

    Json = dict[str, Any]

_LISTS = ("messages", "input", "items", "choices", "output")


class OpenAI(Reader):
    """Takes documents, messages and items."""

    provider = "openai"

    def __init__(self, begin: Callable[[], Archive], report: Report) -> None:
        """Begin the first conversation."""
        super().__init__(begin, report)
        self._model = "unknown"
        self._time: int | None = None
        self._fresh = True
        self._answers = 0

    @staticmethod
    def plausible(value: Any) -> bool:
        """Whether a value looks like a message, an item or a document of them."""
        return has_members(value, "role", *_LISTS) or is_item(value)

    def other(self, line: int, value: Any) -> None:
        """Take a list of messages or items."""
        if isinstance(value, list):
            self._conversation()
            self._each(line, as_list(value))
        else:
            super().other(line, value)

    def record(self, line: int, record: Json) -> None:
        """Take a document, or one message or item."""
        lists = [name for name in _LISTS if isinstance(record.get(name), list)]
        if "role" in record or is_item(record):
            self._one(line, record)
        elif lists or isinstance(record.get("input"), str):
            self._document(line, record, lists)
        else:
            self.unknown(line, "an object without messages", record)

    def _document(self, line: int, record: Json, lists: list[str]) -> None:
        if "choices" not in lists and lists != ["output"]:
            self._conversation()
        self._model = text_of(record.get("model") or self._model)
        self._time = epoch_ms(record.get("created") or record.get("created_at"))
        instructions = record.get("instructions")
        if isinstance(instructions, str):
            self.archive.course.system = instructions
        if isinstance(record.get("input"), str):
            self._one(line, {"role": "user", "content": record["input"]})
        for name in lists:
            self._each(line, as_list(record[name]), as_object(record.get("usage")))
        left = {name: value for name, value in record.items() if name not in lists}
        self.beside(line, left, left, self._time)

    def _conversation(self) -> None:
        """Begin another conversation, where anything was taken of this one."""
        if not self._fresh:
            self.archive = self._begin()
        self._fresh = False

    def _each(self, line: int, values: list[Any], usage: Json | None = None) -> None:
        for value in values:
            one = as_object(value)
            if isinstance(one.get("message"), dict) and "role" not in one:  # a choice
                left = {name: part for name, part in one.items() if name != "message"}
                self._one(line, {**as_object(one["message"]), "choice": left}, usage)
            elif one:
                self._one(line, one, usage)
            else:
                self.unknown(line, f"{type(value).__name__} among messages", value)

    def _one(self, line: int, one: Json, usage: Json | None = None) -> None:
        self._fresh = False
        if is_item(one):
            self._take_item(line, one)
        elif not self._take_message(line, one, usage or {}):
            kind = one.get("role") if "role" in one else one.get("type")
            self.unknown(line, f"message of {kind!r}" if "role" in one else f"item {kind!r}", one)

    def _take_item(self, line: int, one: Json) -> None:
        taken = take_item(one, Origin(line, self._time, self.provider, self._model))
        if taken is None:
            self.unknown(line, f"item {one.get('type')!r}", one)
            return
        if taken.item is not None:
            self.archive.course.take(taken.item)
        self._keep_rest(line, one, taken.carried, taken.unread)

    def _take_message(self, line: int, one: Json, usage: Json) -> bool:
        """Take a chat message; return False for a role that is not known."""
        role = one.get("role")
        blocks, unread, whole = blocks_of(one.get("content"), line)
        done = ("content",) if whole else ()
        course = self.archive.course
        if role == "assistant":
            self._answers += 1
            reasoning = one.get("reasoning_content")
            if isinstance(reasoning, str) and reasoning:
                blocks = [{"type": "reasoning", "text": reasoning}, *blocks]
            if isinstance(one.get("refusal"), str):
                blocks += blocks_of([{"type": "refusal", "refusal": one["refusal"]}], line).blocks
            blocks += _calls(one, self._answers)
            course.take(
                Answered(
                    line,
                    self._time,
                    blocks,
                    f"message {self._answers}",
                    self.provider,
                    self._model,
                    usage_of(usage),
                )
            )
            done = (*done, "reasoning_content", "refusal")
        elif role in {"tool", "function"}:
            name = one.get("tool_call_id") or f"function {one.get('name')} {self._answers}"
            course.take(Returned(line, self._time, text_of(name), blocks, failed=False))
        elif role in {"system", "developer"}:
            course.system = "\n".join(block["text"] for block in blocks)
            source = {"kind": "plugin", "plugin": str(role)}
            course.take(Asked(line, self._time, blocks, source))
        elif role == "user":
            course.take(Asked(line, self._time, blocks, {"kind": "user"}))
        else:
            return False
        self._keep_rest(line, one, (*done, "role"), unread)
        return True

    def _keep_rest(
        self, line: int, one: Json, carried: tuple[str, ...], unread: tuple[str, ...]
    ) -> None:
        for kind in unread:
            self.report.unknown(kind, line)
        rest = {name: value for name, value in one.items() if name not in carried}
        self.beside(line, one, rest, self._time)


def _calls(message: Json, answer: int) -> list[Json]:
    """Return the calls that a chat message asks for, the one of the older form too."""
    found: list[Json] = []
    for place, value in enumerate(as_list(message.get("tool_calls"))):
        call = as_object(value)
        inner = as_object(call.get("function")) or as_object(call.get("custom"))
        found.append(_call(call.get("id") or f"call {answer}.{place}", inner))
    older = as_object(message.get("function_call"))
    if older:
        found.append(_call(f"function {older.get('name')} {answer}", older))
    return found


def _call(name: Any, function: Json) -> Json:
    given = function.get("arguments") if "arguments" in function else function.get("input")
    return {
        "type": "tool-call",
        "id": text_of(name),
        "name": text_of(function.get("name") or "unnamed"),
        "arguments": arguments_of(given),
    }
