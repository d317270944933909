"""Counting the values of a JSON text without making them, so that too many are refused before they cost anything.

The rule that holds here: a count is exact for a text that is JSON, and never too small for one that may be; nothing is
decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_protocol.jsonscan import SLICE

if TYPE_CHECKING:
    from dsh_protocol.jsonscan import Steps

_SPACE = b" \t\n\r"


def count_values(text: bytes, enough: int) -> int:
    """Return how many values a text has if it is JSON, at most: exactly, where a rough count exceeds `enough`.

    Far cheaper than reading it, which is the point: a text of a million empty arrays is refused without making them.
    """
    rough = 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
    if rough <= enough:
        return rough
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = b"0".join(unescaped.split(b'"')[::2]).translate(None, _SPACE)
    opened = bare.count(b"[") + bare.count(b"{") - bare.count(b"[]") - bare.count(b"{}")
    return 1 + bare.count(b",") + opened


def count_steps(text: bytes, enough: int) -> Steps[int]:
    """Count as `count_values` does, in steps, and no further than it takes to know that it is beyond `enough`."""
    rough = 1
    for start in range(0, len(text), SLICE):
        piece = text[start : start + SLICE]
        rough += piece.count(b",") + piece.count(b"[") + piece.count(b"{")
        yield
    if rough <= enough:
        return rough
    counter = _Counter()
    for start in range(0, len(text), SLICE):
        counter.add(text[start : start + SLICE])
        if counter.values > enough + 1:
            break
        yield
    return counter.values


class _Counter:
    """Counts values over consecutive pieces of one text."""

    def __init__(self) -> None:
        self.values = 1
        self._in_string = False
        self._escaping = False
        self._last = b""

    def add(self, piece: bytes) -> None:
        if self._escaping:
            piece = piece[1:]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        self._escaping = backslashes % 2 == 1
        if self._escaping:
            piece = piece[:-1]
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"0".join(parts[self._in_string :: 2]).translate(None, _SPACE)
        bare = b"".join((self._last, b"0" if self._in_string else b"", outside))
        self._in_string ^= len(parts) % 2 == 0
        if self._in_string:
            bare += b"0"
        opened = bare.count(b"[") + bare.count(b"{") - (self._last in (b"[", b"{"))
        self.values += bare.count(b",") - (self._last == b",") + opened
        self.values -= bare.count(b"[]") + bare.count(b"{}")
        self._last = bare[-1:]
