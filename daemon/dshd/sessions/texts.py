"""What can be found in an event, and how a person's words become a question to the index.

The rule that holds here: both sides are cut into words in the same way, and whatever a person types is a text to look
for, never a part of a language.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from dshd.sessions.values import is_array, is_object, members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsh_protocol.events import Event

MOST_CHARACTERS = 1_000_000
"""Of one event so many can be found: what a person looks for stands in front of the megabytes of a tool's output."""

_MOST_TERMS = 64
_SPOKEN = frozenset({"user/message", "assistant/message", "tool/result"})
_TERM = re.compile(r'"([^"]*)"|([^\s"]+)')
_UNWRITTEN = re.compile(r"[\x00-\x1f\x7f\u200b\ud800-\udfff]")
# Scripts without spaces between words: every character of them is a word of its own, and a word of several is a phrase.
_UNSPACED = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_GAP = "\u200b"


def text_of(event: Event) -> str | None:
    """Return what a person may look for in an event, cut into words; None where there is nothing."""
    kind, data = event["type"], members(event["data"])
    if kind in _SPOKEN:
        message = data if kind == "user/message" else members(data.get("message"))
        found = "\n".join(_texts(message.get("content")))
    elif kind == "session/title":
        found = str(data.get("title") or "")
    else:
        return None
    found = found[:MOST_CHARACTERS]
    return spaced(found) if found.strip() else None


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content, in order."""
    if isinstance(content, str):
        yield content
    for block in content if is_array(content) else ():
        kind = members(block).get("type")
        if kind in {"text", "reasoning"}:
            if isinstance(block.get("text"), str):
                yield block["text"]
        elif kind == "tool-call":
            yield str(block.get("name"))
            yield from _strings(_parsed(block.get("arguments")))
        elif kind == "tool-result":
            yield from _texts(block.get("content"))


def _parsed(arguments: Any) -> Any:
    """Return what a call's raw arguments mean; as text, where they mean nothing."""
    try:
        return json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments if isinstance(arguments, str) else None


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings and keys in a JSON value, in order; nested however deep."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif is_object(one):
            for name, inner in reversed(one.items()):
                left += [inner, name]
        elif is_array(one):
            left += reversed(one)


def spaced(text: str) -> str:
    """Return a text that SQLite cuts into the words that we mean."""
    clean = _UNWRITTEN.sub(" ", text)
    return clean if clean.isascii() else _UNSPACED.sub(f"{_GAP}\\g<0>{_GAP}", clean)


def shown(text: str) -> str:
    """Undo `spaced` for a reader, in one line."""
    return " ".join(text.replace(_GAP, "").split())


def match_of(query: str) -> str | None:
    """Return the question that stands for a person's words; None where they hold no letter and no digit.

    Every word must occur in the same event, as it is or as the beginning of a longer one; words in quotes as they
    follow each other.
    """
    terms: list[str] = []
    for phrase, word in _TERM.findall(query):
        term = spaced(phrase or word).replace('"', " ")
        if any(map(_is_written, term)):
            terms.append(f'"{term}"' if phrase else f'"{term}"*')
    return " ".join(terms[:_MOST_TERMS]) or None


def _is_written(char: str) -> bool:
    kind = unicodedata.category(char)
    return kind[0] in "LN" or kind == "Co"
