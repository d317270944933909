"""Finds the members of a JSON text without reading them.

For a line that the gate refuses: whose call was it, and which items of a batch are good all the same? Nesting costs
nothing here and values are not looked at, so a text that is too deep, too wide or half broken still shows its members.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dsh_protocol.jsonscan import Bounds, JsonTextError, Steps, drain, scan

_START = re.compile(rb"[ \t\n\r]*+([\[{])")
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(rb"%b|([\[{]++)|([\]}]++)|(,)" % _STRING, re.DOTALL)
_MEMBER = re.compile(rb"[ \t\n\r]*+(%b)[ \t\n\r]*+:(.*)" % _STRING, re.DOTALL)
_SCALAR = rb"(?:%b|-?[0-9][0-9.eE+-]*+|true|false|null)" % _STRING
_LAST = re.compile(
    rb"((?:,[ \t\n\r]*+%b[ \t\n\r]*+:[ \t\n\r]*+%b[ \t\n\r]*+)*)\}[ \t\n\r]*+\Z"
    % (_STRING, _SCALAR),
    re.DOTALL,
)
_END_BYTES = 2048
_STEP_TOKENS = 5000
_KEY = Bounds(max_depth=1, max_values=1, stored=True)


@dataclass(frozen=True, slots=True)
class Slices:
    """The outermost array or object of a text, cut at its commas.

    Attributes:
        opener: `[`, `{`, or empty where the text is neither.
        pieces: Texts between the commas.
        complete: Whether the closer was there, and nothing after it.
    """

    opener: bytes
    pieces: list[bytes]
    complete: bool


def opener_of(text: bytes) -> bytes:
    """Return `[` or `{` where a text begins so, else nothing."""
    start = _START.match(text)
    return b"" if start is None else start[1]


def cut(text: bytes) -> Slices:
    """Cut a text at the commas of its outermost array or object."""
    return drain(cut_steps(text))


def cut_steps(text: bytes) -> Steps[Slices]:
    """Cut a text as `cut` does, in steps."""
    start = _START.match(text)
    if start is None:
        return Slices(b"", [], complete=False)
    pieces: list[bytes] = []
    depth, begin = 0, start.end()
    for number, token in enumerate(_TOKEN.finditer(text, begin), 1):
        if number % _STEP_TOKENS == 0:
            yield
        opened, closed, comma = token.span(1), token.span(2), token[3]
        depth += opened[1] - opened[0]
        if comma and depth == 0:
            pieces.append(text[begin : token.start()])
            begin = token.end()
        count = closed[1] - closed[0]
        if count > depth:
            end = closed[0] + depth
            last = text[begin:end]
            if pieces or last.strip():
                pieces.append(last)
            return Slices(start[1], pieces, complete=not text[end + 1 :].strip())
        depth -= count
    return Slices(start[1], [*pieces, text[begin:]], complete=False)


def members(text: bytes, *, broken: bool = False) -> dict[str, bytes]:
    """Return the texts of an object's members by key.

    Left out are a key that stands twice or cannot be read, and the last member of a text that breaks off, unless that
    is asked for (`broken`) as far as it goes.
    """
    found: dict[str, bytes] = {}
    doubtful: set[str] = set()
    sliced = cut(text)
    pieces = sliced.pieces if sliced.complete or broken else sliced.pieces[:-1]
    for piece in pieces if sliced.opener == b"{" else ():
        member = _MEMBER.fullmatch(piece)
        key: Any = None if member is None else peek(member[1], _KEY)
        if member is None or not isinstance(key, str):
            continue
        if key in found:
            doubtful.add(key)
        found[key] = member[2]
    return {key: value for key, value in found.items() if key not in doubtful}


def members_at_ends(
    text: bytes, look: int, inside: str
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the members of an object and those of its member `inside`, having looked at no more than its two ends.

    Of a text longer than `look` there are those that begin in its first `look` bytes, the last one cut short, and the
    numbers and short strings that stand last in each of the two.
    """
    if len(text) <= look:
        found = members(text)
        return found, members(found.get(inside, b""))
    found = members(text[:look])
    cut_short = members(text[:look], broken=True)
    outer, rest = _last_members(text[-_END_BYTES:])
    inner: dict[str, bytes] = {}
    if inside in cut_short and inside not in found:
        inner, _ = _last_members(rest)
    return {**outer, **cut_short}, {**inner, **members(cut_short.get(inside, b""))}


def _last_members(text: bytes) -> tuple[dict[str, bytes], bytes]:
    """The members of no depth that end an object, of which the beginning need not be there; and what is before them.

    A comma inside a string is never taken for one between members: the quotes behind it would not come out even.
    """
    found = _LAST.search(text)
    if found is None:
        return {}, b""
    return members(b"{%b}" % found[1].removeprefix(b",")), text[: found.start()]


def peek(text: bytes | None, bounds: Bounds) -> Any:
    """Return the value of a small text, or None where it is absent or the gate refuses it."""
    if text is None:
        return None
    try:
        return scan(text, bounds)
    except JsonTextError:
        return None
